"""Inputs that are available have the size and the modification time of those that were tokenized."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.inputs import read_units
from tokshard.checks.verify.options import VerifyOptions
from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset.manifest import Manifest, read_manifest

RECORDS = [json.dumps({"text": f"record {number} " * (number % 4)}) for number in range(24)]
PACKERS = {"gz": gzip.compress, "plain": bytes}


def write(path, lines, kind):
    path.write_bytes(PACKERS[kind]("".join(line + "\n" for line in lines).encode()))


def codes(report):
    return {finding.code for finding in report.findings}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", PACKERS)
def test_changes_of_sizes_and_times_are_found(inside, kind):
    write(Path("a.jsonl"), RECORDS, kind)
    run_tokenize(["a.jsonl"], "x", workers=1, unit_size=200)
    report = verify(VerifyOptions(path="x", level="deep"))
    assert codes(report) == set()
    assert report.products[0].counts["inputs_compared"] == 1
    before = os.stat("a.jsonl")
    for lines in (RECORDS[:9], [*RECORDS, *RECORDS], []):
        write(Path("a.jsonl"), lines, kind)
        size = os.path.getsize("a.jsonl")
        (finding,) = verify(VerifyOptions(path="x", level="deep")).findings
        assert (finding.code, finding.path) == ("input-changed", "a.jsonl")
        assert finding.message == f"a.jsonl: its size was {before.st_size} bytes and is now {size}"
    write(Path("a.jsonl"), RECORDS, kind)
    os.utime("a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    (finding,) = verify(VerifyOptions(path="x", level="deep")).findings
    text = f"its size is still {before.st_size} bytes, but its modification time has changed"
    assert (finding.code, finding.message) == ("input-changed", f"a.jsonl: {text}")
    assert codes(verify("x")) == set()
    os.utime("a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert codes(verify(VerifyOptions(path="x", level="deep"))) == set()


@pytest.mark.parametrize("kind", PACKERS)
def test_an_empty_input_is_unchanged(inside, kind):
    write(Path("a.jsonl"), [], kind)
    write(Path("b.jsonl"), RECORDS, kind)
    run_tokenize(["a.jsonl", "b.jsonl"], "x", workers=1)
    assert codes(verify(VerifyOptions(path="x", level="deep"))) == set()


@pytest.mark.parametrize(
    ("given", "seen"), [((True, True), True), ((False, False), False), ((True, False), None)]
)
def test_eod_of_merged_datasets_is_looked_at_where_it_is_the_same_of_all(inside, given, seen):
    write(Path("a.jsonl"), RECORDS, "plain")
    for name, append in zip("ab", given, strict=True):
        run_tokenize(["a.jsonl"], name, workers=1, append_eod=append)
    merge(MergeOptions(inputs=["a", "b"], output="both"))
    merge(MergeOptions(inputs=["both", "a"], output="x"))
    assert read_manifest("both").options.append_eod == seen
    assert read_manifest("x").options.append_eod == seen
    assert codes(verify(VerifyOptions(path="both", level="deep"))) == set()
    eod = read_manifest("both").options.eod_id
    tokens = np.fromfile("both.bin", np.uint16)
    tokens[-1] = 65 if tokens[-1] == eod else eod
    Path("both.bin").write_bytes(tokens.tobytes())
    expected = {True: {"bin-digest", "eod-missing"}, False: {"bin-digest", "eod-count"}, None: {"bin-digest"}}
    assert codes(verify(VerifyOptions(path="both", level="deep"))) == expected[seen]


def test_merged_datasets_know_all_their_inputs(inside):
    for name in "ab":
        write(Path(f"{name}.jsonl"), RECORDS, "plain")
        run_tokenize([f"{name}.jsonl"], name, workers=1, unit_size=500)
    merge(MergeOptions(inputs=["a", "b"], output="x"))
    report = verify(VerifyOptions(path="x", level="deep"))
    assert codes(report) == set()
    assert report.products[0].counts["inputs_compared"] == 2
    write(Path("b.jsonl"), RECORDS[1:], "plain")
    (finding,) = verify(VerifyOptions(path="x", level="deep")).findings
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
    assert codes(verify(VerifyOptions(path="x", level="deep"))) == {"input-missing"}


def test_of_a_file_full_of_damaged_units_ten_are_reported(tmp_path):
    """A finding for each of 500,000 lines took more than 10 minutes."""
    (tmp_path / "x.tokshard").mkdir()
    (tmp_path / "x.tokshard/units.jsonl").write_bytes(b"\n" * 100_000)
    findings = ProductFindings("dataset", str(tmp_path / "x"))
    golden = Path(__file__).parents[2] / "golden/formats/dataset-2.json"
    manifest = Manifest.from_bytes(golden.read_bytes(), "dataset-2.json")
    assert read_units(str(tmp_path / "x"), manifest, findings) is None
    assert [finding.code for finding in findings.findings] == ["units-damaged"] * 10
