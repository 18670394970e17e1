"""Seals and limits of the files of datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokshard.dataset.manifest import Manifest
from tokshard.dataset.records import PieceRecord, RejectionRecord, UnitRecord, read_records
from tokshard.errors import IntegrityError
from tokshard.storage.digest import seal_of

GOLDEN = Path(__file__).parents[1] / "golden/formats"
RECORDS = {"pieces-2.jsonl": PieceRecord, "units-2.jsonl": UnitRecord, "rejected-2.jsonl": RejectionRecord}


def test_the_seal_of_the_manifest():
    manifest = Manifest.from_bytes((GOLDEN / "dataset-2.json").read_bytes(), "x")
    assert manifest.seal == seal_of(manifest.to_json())


@pytest.mark.parametrize("name", RECORDS)
def test_a_line_of_more_than_a_mebibyte_is_damage(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b'{"x": [' + b"[]," * (1 << 20) + b"0]}\n")
    with pytest.raises(IntegrityError, match="line 1 must have at most 1,048,576 bytes"):
        next(read_records(RECORDS[name], str(path)))
