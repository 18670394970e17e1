"""Seals, fingerprints and limits of the files of datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokshard.dataset.manifest import Manifest
from tokshard.dataset.parameters import BuildPlan
from tokshard.dataset.records import PieceRecord, RejectionRecord, UnitRecord, read_records
from tokshard.errors import IntegrityError
from tokshard.storage.digest import seal_of

GOLDEN = Path(__file__).parents[1] / "golden/formats"
RECORDS = {"pieces-2.jsonl": PieceRecord, "units-2.jsonl": UnitRecord, "rejected-2.jsonl": RejectionRecord}


def test_the_seal_of_the_manifest():
    manifest = Manifest.from_bytes((GOLDEN / "dataset-2.json").read_bytes(), "x")
    assert manifest.seal == seal_of(manifest.to_json())


def test_fingerprints_of_plans():
    tokenize, merge = (
        BuildPlan.from_bytes((GOLDEN / name).read_bytes(), name)
        for name in ("build-plan-tokenize-2.json", "build-plan-merge-2.json")
    )
    assert tokenize.fingerprint == "be28afc9f9f851a5da70f40d6346e467fcad06550b95dc885fcd4908fe76d3d3"
    assert merge.fingerprint == "e9114f1cdf2b36b4ac4f371f53d9488a355ad4aa807d9ea5dce007327690bd08"
    # The name of a revision is no part of it: the inputs have the commit in their paths.
    name = "build-plan-tokenize-2-hub.json"
    named = BuildPlan.from_bytes((GOLDEN / name).read_bytes(), name)
    assert named.hub_datasets
    assert (named.fingerprint, named) == (tokenize.fingerprint, tokenize)


@pytest.mark.parametrize("name", RECORDS)
def test_a_line_of_more_than_a_mebibyte_is_damage(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b'{"x": [' + b"[]," * (1 << 20) + b"0]}\n")
    with pytest.raises(IntegrityError, match="line 1 must have at most 1,048,576 bytes"):
        next(read_records(RECORDS[name], str(path)))
