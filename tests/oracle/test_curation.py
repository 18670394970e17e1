"""The writers of datatrove, in the installed version, against the files in tests/golden/curation."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("datatrove.pipeline.writers")
parquet = pytest.importorskip("pyarrow.parquet")

CURATION = Path(__file__).parents[1] / "golden/curation"


def rows(directory: Path) -> list[tuple[str, dict]]:
    """Return the rows of all files, with the files' names."""
    found = []
    for path in sorted(directory.rglob("*.jsonl.gz")):
        found += [
            (path.name, json.loads(line)) for line in gzip.decompress(path.read_bytes()).split(b"\n") if line
        ]
    for path in sorted(directory.rglob("*.parquet")):
        found += [(path.name, row) for row in parquet.read_table(path).to_pylist()]
    return found


def test_the_recorded_files_are_those_of_the_installed_datatrove(tmp_path):
    spec = importlib.util.spec_from_file_location("record_curation", CURATION / "record.py")
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)
    recorder.record_datatrove(tmp_path)
    assert rows(tmp_path) == rows(CURATION / "datatrove")
    assert len(rows(tmp_path)) == 2 * len(recorder.DOCUMENTS)
