"""Inputs that are here are held against what was tokenized, however they are stored."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.file_changes import edit_manifest
from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.dataset.manifest import read_manifest
from tokshard.verification.inputs import read_units
from tokshard.verification.job import verify
from tokshard.verification.options import VerifyOptions
from tokshard.verification.report import ProductFindings

RECORDS = [json.dumps({"text": f"record {number} " * (number % 4)}) for number in range(24)]
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "plain": bytes}


def write(path, lines, kind):
    path.write_bytes(PACKERS[kind]("".join(line + "\n" for line in lines).encode()))


def codes(report):
    return {finding.code for finding in report.findings}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("unit_bytes", [3, 200, 1 << 20])
def test_changes_are_found_in_every_kind_of_file(inside, kind, unit_bytes):
    write(Path("a.jsonl"), RECORDS, kind)
    run_tokenize(["a.jsonl"], "x", workers=1, unit_bytes=unit_bytes)
    report = verify(VerifyOptions("x", level="deep"))
    assert codes(report) == set()
    assert report.products[0].counts["inputs_compared"] == 1
    changes = {
        "other": [*RECORDS[:9], RECORDS[10], *RECORDS[10:]],
        "same size": [*RECORDS[:9], RECORDS[9].replace("record", "rexord"), *RECORDS[10:]],
        "shorter": RECORDS[:-1],
        "longer": [*RECORDS, RECORDS[1]],
        "empty": [],
    }
    for lines in changes.values():
        write(Path("a.jsonl"), lines, kind)
        assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-changed"}
    assert codes(verify("x")) == set()


@pytest.mark.parametrize("kind", ["gz", "plain"])
def test_an_empty_input_is_unchanged(inside, kind):
    write(Path("a.jsonl"), [], kind)
    write(Path("b.jsonl"), RECORDS, kind)
    run_tokenize(["a.jsonl", "b.jsonl"], "x", workers=1)
    assert codes(verify(VerifyOptions("x", level="deep"))) == set()


def test_a_stream_with_a_line_that_was_too_long_is_compared_by_its_size(inside):
    write(Path("a.jsonl"), [*RECORDS, json.dumps({"text": "long" * 5000})], "gz")
    write(Path("b.jsonl"), RECORDS, "gz")
    how = {"workers": 1, "max_document_bytes": 1000, "on_error": "skip", "unit_bytes": 100}
    run_tokenize(["a.jsonl", "b.jsonl"], "x", **how)
    (note,) = verify(VerifyOptions("x", level="deep")).findings
    assert (note.code, note.severity) == ("input-size-only", "note")
    assert note.message == "1 of 2 inputs were compared by their sizes only, the first is a.jsonl"
    write(Path("b.jsonl"), RECORDS[1:], "gz")  # no line of this one was too long
    assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-size-only", "input-changed"}


def test_a_plain_file_with_a_line_that_was_too_long_is_compared_whole(inside):
    write(Path("a.jsonl"), [*RECORDS, json.dumps({"text": "long" * 5000})], "plain")
    run_tokenize(["a.jsonl"], "x", workers=1, max_document_bytes=1000, on_error="skip", unit_bytes=100)
    assert codes(verify(VerifyOptions("x", level="deep"))) == set()


def write_table(path, texts, kind, *, rows=5, **more):
    table = pa.table({"text": texts, **more})
    if kind == "parquet":
        options = {"row_group_size": rows, "compression": "none", "use_dictionary": False}
        parquet.write_table(table, path, write_statistics=False, **options)
        return
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with new(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=rows)


TEXTS = [f"record {number} " * (number % 4) for number in range(24)]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("unit_bytes", [3, 300, 1 << 20])
def test_changes_are_found_in_every_kind_of_table(inside, kind, unit_bytes):
    path = Path("a.table")
    texts = [*TEXTS[:3], None, *TEXTS[3:]]
    write_table(path, texts, kind)
    run_tokenize([str(path)], "x", workers=1, unit_bytes=unit_bytes, on_error="skip")
    assert codes(verify(VerifyOptions("x", level="deep"))) == set()
    size = path.stat().st_size
    write_table(path, [text and text.replace("record 9", "rexord 9") for text in texts], kind)
    assert path.stat().st_size == size
    (finding,) = verify(VerifyOptions("x", level="deep")).findings
    assert (finding.code, finding.path) == ("input-changed", "a.table")
    assert re.search(r": its rows \d+ to \d+ have changed$", finding.message)
    first, stop = map(int, re.findall(r"\d+", finding.message)[-2:])
    assert first <= 10 < stop
    path.write_bytes(bytes(size))
    assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-changed"}


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_table_with_other_groups_is_not_what_was_tokenized(inside, count):
    path = Path("a.parquet")
    write_table(path, TEXTS[:count], "parquet", rows=2)
    run_tokenize([str(path)], "x", workers=1, unit_bytes=3)
    assert codes(verify(VerifyOptions("x", level="deep"))) == set()
    write_table(path, TEXTS[: count + 1], "parquet", rows=3)
    # Sizes are looked at first: let this one have the same.
    edit_manifest("x", lambda value: value["inputs"][0].update(size_bytes=path.stat().st_size))
    (finding,) = verify(VerifyOptions("x", level="deep")).findings
    assert finding.message == "a.parquet: its row groups have changed"


def test_tables_of_several_columns_and_of_merged_data_are_compared_by_their_sizes(inside):
    write_table(Path("a.parquet"), TEXTS, "parquet", title=TEXTS)
    run_tokenize(["a.parquet"], "two", workers=1, fields=["text", "title"])
    run_tokenize(["a.parquet"], "one", workers=1)
    merge(MergeOptions(["one", "one"], "merged"))
    for prefix in ("two_text_document", "merged"):
        assert codes(verify(VerifyOptions(prefix, level="deep"))) == {"input-size-only"}
    Path("a.parquet").write_bytes(b"PAR1")
    for prefix in ("two_text_document", "merged"):
        assert codes(verify(VerifyOptions(prefix, level="deep"))) == {"input-changed"}


def test_without_pyarrow_a_table_is_compared_by_its_size(inside, monkeypatch):
    write_table(Path("a.parquet"), TEXTS, "parquet")
    run_tokenize(["a.parquet"], "x", workers=1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-size-only"}


@pytest.mark.parametrize(
    ("given", "seen"), [((True, True), True), ((False, False), False), ((True, False), None)]
)
def test_eod_of_merged_datasets_is_looked_at_where_it_is_the_same_of_all(inside, given, seen):
    write(Path("a.jsonl"), RECORDS, "plain")
    for name, append in zip("ab", given, strict=True):
        run_tokenize(["a.jsonl"], name, workers=1, append_eod=append)
    merge(MergeOptions(["a", "b"], "both"))
    merge(MergeOptions(["both", "a"], "x"))
    assert read_manifest("both").options.append_eod == seen
    assert read_manifest("x").options.append_eod == seen
    assert codes(verify(VerifyOptions("both", level="deep"))) == set()
    eod = read_manifest("both").options.eod_id
    tokens = np.fromfile("both.bin", np.uint16)
    tokens[-1] = 65 if tokens[-1] == eod else eod
    Path("both.bin").write_bytes(tokens.tobytes())
    expected = {True: {"bin-digest", "eod-missing"}, False: {"bin-digest", "eod-count"}, None: {"bin-digest"}}
    assert codes(verify(VerifyOptions("both", level="deep"))) == expected[seen]


def test_a_cut_stream_is_told(inside):
    write(Path("a.jsonl"), RECORDS, "gz")
    run_tokenize(["a.jsonl"], "x", workers=1)
    size = os.path.getsize("a.jsonl")
    Path("a.jsonl").write_bytes(Path("a.jsonl").read_bytes()[:-9] + bytes(9))
    assert os.path.getsize("a.jsonl") == size
    assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-changed"}


def test_merged_datasets_know_all_their_inputs(inside):
    for name in "ab":
        write(Path(f"{name}.jsonl"), RECORDS, "plain")
        run_tokenize([f"{name}.jsonl"], name, workers=1, unit_bytes=500)
    merge(MergeOptions(["a", "b"], "x"))
    report = verify(VerifyOptions("x", level="deep"))
    assert codes(report) == set()
    assert report.products[0].counts["inputs_compared"] == 2
    write(Path("b.jsonl"), RECORDS[1:], "plain")
    (finding,) = verify(VerifyOptions("x", level="deep")).findings
    assert (finding.code, finding.path) == ("input-changed", "b.jsonl")


def test_an_input_from_a_pipe_is_not_here(inside):
    read, write_end = os.pipe()
    os.write(write_end, "\n".join(RECORDS[:5]).encode())
    os.close(write_end)
    before = os.dup(0)
    try:
        os.dup2(read, 0)
        run_tokenize(["-"], "x", workers=1)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
    assert codes(verify(VerifyOptions("x", level="deep"))) == {"input-missing"}


def test_of_a_file_full_of_damaged_units_ten_are_reported(tmp_path):
    """A finding for each of 500,000 lines took more than 10 minutes."""
    (tmp_path / "x.tokshard").mkdir()
    (tmp_path / "x.tokshard/units.jsonl").write_bytes(b"\n" * 100_000)
    findings = ProductFindings("dataset", str(tmp_path / "x"))
    assert read_units(str(tmp_path / "x"), findings) is None
    assert [finding.code for finding in findings.findings] == ["units-damaged"] * 10
