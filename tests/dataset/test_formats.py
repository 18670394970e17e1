"""Files that were written once by this version of each format are read, and written back byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokshard.core.codec import decode, encode
from tokshard.dataset.delivery import UploadEntry
from tokshard.dataset.manifest import Manifest
from tokshard.dataset.merge.shuffle import ShuffleEntry
from tokshard.dataset.merge.staging import CopiedInput
from tokshard.dataset.plan import BuildPlan
from tokshard.dataset.records import PieceRecord, RejectionRecord, UnitRecord, read_records, to_line
from tokshard.dataset.workdir import PublicationRecord
from tokshard.errors import IntegrityError
from tokshard.exchange.conversion.conversion import ConvertedUnit
from tokshard.storage.digest import seal_of
from tokshard.storage.journal import JournalLine

GOLDEN = Path(__file__).parents[1] / "golden/formats"
DOCUMENTS = {
    "dataset-2.json": Manifest,
    "dataset-2-hub.json": Manifest,
    "dataset-2-subset.json": Manifest,
    "dataset-2-shuffled.json": Manifest,
    "dataset-2-unrepresented.json": Manifest,
    "build-plan-tokenize-2.json": BuildPlan,
    "build-plan-tokenize-2-hub.json": BuildPlan,
    "build-plan-tokenize-2-subset.json": BuildPlan,
    "build-plan-merge-2.json": BuildPlan,
    "build-plan-merge-2-shuffled.json": BuildPlan,
    "build-plan-convert-2.json": BuildPlan,
    "publication-2.json": PublicationRecord,
}


RECORDS = {"pieces-2.jsonl": PieceRecord, "units-2.jsonl": UnitRecord, "rejected-2.jsonl": RejectionRecord}


@pytest.mark.parametrize("name", RECORDS)
def test_lines_are_read_and_written_back(name):
    path = GOLDEN / name
    records = [*read_records(RECORDS[name], str(path))]
    assert b"".join(map(to_line, records)) == path.read_bytes()


JOURNALS = {
    "delivery-2.jsonl": UploadEntry,
    "merge-2.jsonl": CopiedInput,
    "shuffle-2.jsonl": ShuffleEntry,
    "convert-2.jsonl": ConvertedUnit,
}


@pytest.mark.parametrize("name", JOURNALS)
def test_journals_are_read_and_written_back(name):
    content = (GOLDEN / name).read_bytes()
    lines = [JournalLine.from_bytes(line) for line in content.splitlines(keepends=True)]
    entries = [line.entry and decode(JOURNALS[name], line.entry, name) for line in lines]
    again = [
        JournalLine(entry=entry and encode(entry), checkpoint=line.checkpoint)
        for line, entry in zip(lines, entries, strict=True)
    ]
    assert b"".join(line.to_bytes() for line in again) == content
    assert {line.entry is None for line in lines} == {False, True}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_read_and_written_back(name):
    content = (GOLDEN / name).read_bytes()
    assert DOCUMENTS[name].from_bytes(content, name).to_bytes() == content


def test_the_seal_of_the_manifest():
    manifest = Manifest.from_bytes((GOLDEN / "dataset-2.json").read_bytes(), "x")
    assert manifest.seal == seal_of(manifest.to_json())


def test_fingerprints_of_plans():
    tokenize, merge = (
        BuildPlan.from_bytes((GOLDEN / name).read_bytes(), name)
        for name in ("build-plan-tokenize-2.json", "build-plan-merge-2.json")
    )
    assert tokenize.fingerprint == "87ae414dfb7f584c4af2aeb3d7aeb0aa795896c65e43b3329e9460d0a0760add"
    assert merge.fingerprint == "6471ff8bdbac99b344daa62dbdcf64a21d1fa50c1245d0315864407ce75d390f"
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
