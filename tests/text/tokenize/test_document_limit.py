"""P47: larger documents are bad records, and the default of the limit is that of the encoder."""

from __future__ import annotations

import json
import sys

import pytest

from support.command_line import failure, json_of, tokshard
from support.tokenize_runs import TOKENIZER, dry_run, manifest, run_tokenize, write_jsonl

MEMORY = (
    "raise --max-document-bytes (a process takes up to 0.5 GB of memory for a document of 16 MB "
    "with the fast encoder, 3.1 GB with the reference encoder), or pass --on-error skip to skip bad records "
    "and list them in rejected.jsonl"
)


def line_of(size):
    """Return a record whose line has so many bytes."""
    frame = len(json.dumps({"text": ""}))
    words = "word " * (size // 5)
    return json.dumps({"text": words[: size - frame]}).encode()


def limit_of(path, **options):
    return dry_run(path, "out", **options).options.max_document_bytes


@pytest.mark.parametrize("size", [10, 1_200_000])
def test_the_default_is_that_of_the_encoder_for_corpora_of_any_size(tmp_path, monkeypatch, size):
    """A corpus below 1 MB is encoded by the reference, and may grow: it has the limit of the fast encoder."""
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "a" * size}])
    assert limit_of(path, tokenizer=TOKENIZER) == 16_000_000
    assert limit_of(path, tokenizer=TOKENIZER, encoder="fast") == 16_000_000
    assert limit_of(path, tokenizer=TOKENIZER, encoder="reference") == 4_000_000
    assert limit_of(path) == 4_000_000
    assert limit_of(path, tokenizer=TOKENIZER, encoder="reference", max_document_bytes=2**21) == 2**21
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert limit_of(path, tokenizer=TOKENIZER) == 4_000_000


@pytest.mark.parametrize(
    ("limit", "options"),
    [(16_000_000, ["--tokenizer", TOKENIZER]), (4_000_000, [])],
    ids=["fast", "reference"],
)
def test_a_document_above_the_default_is_a_bad_record(tmp_path, limit, options):
    path = write_jsonl(tmp_path / "in.jsonl", [b'{"text": "a"}', line_of(limit + 1)])
    code, error, hint = failure(tokshard("tokenize", path, "-o", tmp_path / "out", *options))
    assert (code, hint) == (3, MEMORY)
    assert error.startswith(f"{path}:2: the line must be at most {limit:,} bytes, got {limit + 1:,}")
    done = tokshard("tokenize", path, "-o", tmp_path / "out", "--on-error", "skip", "--json", *options)
    assert (json_of(done)["counts"]["rejected"], json_of(done)["counts"]["documents"]) == ({"too-long": 1}, 1)
    assert manifest(tmp_path / "out")["options"]["max_document_bytes"] == limit


def test_a_document_of_the_limit_is_encoded(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [line_of(4_000_000)])
    assert run_tokenize(path, str(tmp_path / "out")).counts.documents == 1
