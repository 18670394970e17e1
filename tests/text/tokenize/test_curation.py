"""Output files of datatrove and NeMo Curator as inputs, written by these packages: tests/golden/curation."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from support.tokenize_runs import pair, run_tokenize, write_jsonl

CURATION = Path(__file__).parents[2] / "golden/curation"


def recorder():
    """Return the program that wrote the files: its documents, and the calls of the packages."""
    spec = importlib.util.spec_from_file_location("record_curation", CURATION / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDER = recorder()


def test_the_versions_are_recorded():
    assert set(json.loads((CURATION / "versions.json").read_text())) == {"datatrove", "nemo_curator"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("package", ["datatrove", "nemo_curator"])
def test_the_files_are_tokenized_as_their_documents_are(tmp_path, package, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    run_tokenize(write_jsonl(tmp_path / "plain.jsonl", RECORDER.DOCUMENTS), str(tmp_path / "plain"))
    run_tokenize(str(CURATION / package / kind), str(tmp_path / "out"))
    assert pair(tmp_path / "out") == pair(tmp_path / "plain")
