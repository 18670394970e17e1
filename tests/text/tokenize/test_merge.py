"""Merging what tokenize made is the same as tokenizing all of it at once, sidecars included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.checks.inspect.datasets import inspect_dataset, inspect_document
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.parameters import MergeParameters
from tokshard.errors import TokenizerMismatchError

SAMPLE = Path(__file__).parents[3] / "sample_data"
CORPORA = [SAMPLE / "hostile.jsonl", SAMPLE / "manuals.jsonl", SAMPLE / "stories.jsonl"]
TOKENIZER = str(SAMPLE / "tokenizer.json")
SAME = ("dataset", "files", "tokenizer", "inputs", "counts")


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def tokenize(inputs, output, **options):
    settings = {"on_error": "skip", "unit_size": 100_000, "tokenizer": TOKENIZER, **options}
    return run_tokenize(list(map(str, inputs)), output, workers=1, encoder="reference", **settings)


def contents(prefix: str) -> dict[str, bytes]:
    sidecars = Path(f"{prefix}.tokshard")
    files = {path.name: path.read_bytes() for path in sidecars.iterdir() if path.name != "manifest.json"}
    return {**files, "bin": Path(f"{prefix}.bin").read_bytes(), "idx": Path(f"{prefix}.idx").read_bytes()}


def test_a_merge_of_parts_is_the_whole():
    tokenize(CORPORA, "whole")
    for number, corpus in enumerate(CORPORA):
        tokenize([corpus], f"part-{number}")
    report = merge(MergeOptions(inputs="part-*", output="merged"))
    merge(MergeOptions(inputs=["part-0", "part-1"], output="first"))
    merge(MergeOptions(inputs=["first", "part-2"], output="nested"))
    assert report.output.files.provenance
    assert not report.warnings
    whole = read_manifest("whole")
    for prefix in ("merged", "nested"):
        assert contents(prefix) == contents("whole")
        manifest = read_manifest(prefix)
        assert {name: getattr(manifest, name) for name in SAME} == {
            name: getattr(whole, name) for name in SAME
        }
    assert read_manifest("merged").options == MergeParameters(
        inputs=("part-0", "part-1", "part-2"), multimodal=False, eod_id=0, append_eod=True
    )
    assert inspect_dataset("merged").ends_with_eod == inspect_dataset("whole").ends_with_eod


def test_other_tokenizers_are_refused_unless_allowed():
    tokenize(CORPORA[2:], "a")
    tokenize(CORPORA[2:], "b", tokenizer=None)
    with pytest.raises(
        TokenizerMismatchError,
        match=r"a \(huggingface \w{12}, [\d,]+ tokens\) and b \(bytes \w{12}, 257 tokens\) were encoded with "
        "different tokenizers: vocabulary sizes",
    ) as refused:
        merge(MergeOptions(inputs=["a", "b"], output="out"))
    assert refused.value.exit_code == 6
    assert "--allow-tokenizer-mismatch" in refused.value.hint
    report = merge(MergeOptions(inputs=["a", "b"], output="out", allow_tokenizer_mismatch=True))
    assert report.output.tokenizer is None
    assert any("different tokenizers" in warning for warning in report.warnings)
    assert inspect_dataset("out").eod_id is None
    assert inspect_document("out", 0).text is None
    assert inspect_document("out", 0, tokenizer=TOKENIZER).text


def test_an_allowed_mismatch_is_recorded_and_repeated():
    tokenize(CORPORA[2:], "a")
    tokenize(CORPORA[2:], "b", tokenizer=None)
    merge(MergeOptions(inputs=["a", "b"], output="mixed", allow_tokenizer_mismatch=True))
    (mismatch,) = read_manifest("mixed").tokenizer_mismatches
    assert (mismatch.kind, mismatch.first.names, mismatch.second.names) == ("tokenizer", ("a",), ("b",))
    # A merge of it needs no consent again, and repeats it.
    again = merge(MergeOptions(inputs=["mixed", "mixed"], output="again"))
    assert again.output.tokenizer_mismatches == (mismatch,)
    assert any(mismatch.message in warning for warning in again.warnings)
    up_to_date = merge(MergeOptions(inputs=["mixed", "mixed"], output="again"))
    assert (up_to_date.action, up_to_date.warnings) == ("found", again.warnings)


def test_another_eod_is_refused():
    tokenize(CORPORA[2:], "a")
    tokenize(CORPORA[2:], "b", eod="1")
    with pytest.raises(TokenizerMismatchError, match="end documents with different EOD tokens: ids 0 and 1"):
        merge(MergeOptions(inputs=["a", "b"], output="out"))


def test_an_input_without_a_manifest_makes_the_tokenizer_unknown():
    tokenize(CORPORA[2:], "a")
    tokenize(CORPORA[2:], "b", provenance=False)
    for path in Path("b.tokshard").iterdir():
        path.unlink()
    Path("b.tokshard").rmdir()
    report = merge(MergeOptions(inputs=["a", "b"], output="out"))
    assert report.warnings == (
        "the tokenizer of b is unknown and was not compared",
        "b: no provenance, so the output has none",
    )
    assert (report.output.tokenizer, report.output.files.provenance) == (None, None)
    assert read_manifest("out").files.provenance is None
    units = [json.loads(line) for line in Path("out.tokshard/units.jsonl").read_text().splitlines()]
    known = sum(unit["input"] == 0 for unit in units)
    assert [list(unit["counts"]["encoders"]) for unit in units[known:]] == [["unknown"]]
    tokens = [unit["counts"]["tokens"] for unit in units]
    assert sum(tokens[:known]) == tokens[known]
