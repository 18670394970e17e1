"""Inputs that are here are held against what was tokenized, however they are stored."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from tokshard import merge_datasets, tokenize_corpus
from tokshard.diagnosis.verify.job import verify

RECORDS = [json.dumps({"text": f"record {number} " * (number % 4)}) for number in range(24)]
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "plain": bytes}


def write(path, lines, kind):
    path.write_bytes(PACKERS[kind]("".join(line + "\n" for line in lines).encode()))


def codes(report):
    return {one.code for one in report.findings}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("unit_bytes", [3, 200, 1 << 20])
def test_changes_are_found_in_every_kind_of_file(inside, kind, unit_bytes):
    write(Path("a.jsonl"), RECORDS, kind)
    tokenize_corpus(["a.jsonl"], "x", workers=1, unit_bytes=unit_bytes)
    report = verify("x", level="deep")
    assert codes(report) == set()
    assert report.subjects[0].counts["inputs_compared"] == 1
    changes = {
        "other": [*RECORDS[:9], RECORDS[10], *RECORDS[10:]],
        "same size": [*RECORDS[:9], RECORDS[9].replace("record", "rexord"), *RECORDS[10:]],
        "shorter": RECORDS[:-1],
        "longer": [*RECORDS, RECORDS[1]],
        "empty": [],
    }
    for lines in changes.values():
        write(Path("a.jsonl"), lines, kind)
        assert codes(verify("x", level="deep")) == {"input-changed"}
    assert codes(verify("x")) == set()


@pytest.mark.parametrize("kind", ["gz", "plain"])
def test_an_empty_input_is_unchanged(inside, kind):
    write(Path("a.jsonl"), [], kind)
    write(Path("b.jsonl"), RECORDS, kind)
    tokenize_corpus(["a.jsonl", "b.jsonl"], "x", workers=1)
    assert codes(verify("x", level="deep")) == set()


def test_a_stream_with_a_line_that_was_too_long_is_compared_by_its_size(inside):
    write(Path("a.jsonl"), [*RECORDS, json.dumps({"text": "long" * 5000})], "gz")
    tokenize_corpus(["a.jsonl"], "x", workers=1, max_document_bytes=1000, on_error="skip", unit_bytes=100)
    assert codes(verify("x", level="deep")) == set()


def test_a_plain_file_with_a_line_that_was_too_long_is_compared_whole(inside):
    write(Path("a.jsonl"), [*RECORDS, json.dumps({"text": "long" * 5000})], "plain")
    tokenize_corpus(["a.jsonl"], "x", workers=1, max_document_bytes=1000, on_error="skip", unit_bytes=100)
    assert codes(verify("x", level="deep")) == set()


def test_a_cut_stream_is_told(inside):
    write(Path("a.jsonl"), RECORDS, "gz")
    tokenize_corpus(["a.jsonl"], "x", workers=1)
    size = os.path.getsize("a.jsonl")
    Path("a.jsonl").write_bytes(Path("a.jsonl").read_bytes()[:-9] + bytes(9))
    assert os.path.getsize("a.jsonl") == size
    assert codes(verify("x", level="deep")) == {"input-changed"}


def test_merged_data_sets_know_all_their_inputs(inside):
    for name in "ab":
        write(Path(f"{name}.jsonl"), RECORDS, "plain")
        tokenize_corpus([f"{name}.jsonl"], name, workers=1, unit_bytes=500)
    merge_datasets(["a", "b"], "x")
    report = verify("x", level="deep")
    assert codes(report) == set()
    assert report.subjects[0].counts["inputs_compared"] == 2
    write(Path("b.jsonl"), RECORDS[1:], "plain")
    (finding,) = verify("x", level="deep").findings
    assert (finding.code, finding.path) == ("input-changed", "b.jsonl")


def test_an_input_from_a_pipe_is_not_here(inside):
    read, write_end = os.pipe()
    os.write(write_end, "\n".join(RECORDS[:5]).encode())
    os.close(write_end)
    before = os.dup(0)
    try:
        os.dup2(read, 0)
        tokenize_corpus(["-"], "x", workers=1)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
    assert codes(verify("x", level="deep")) == {"input-missing"}
