"""P1, P2, P6, P34 for merge: killed, failed and starved at every storage call, and the controls."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.campaign import leftovers, outputs
from faults.processes import scratch_directory
from faults.test_crashes import STEP, first_failures, run
from support.command_line import tokshard
from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.storage.lock import WriterLock

TEXTS = {"a": 24, "b": 9, "c": 30}


def make_inputs(directory: Path) -> Path:
    """Three datasets, of which b has no manifest when it is called ``foreign``."""
    directory.mkdir()
    for name, count in TEXTS.items():
        lines = [f'{{"text": "{name}{i} {"word " * (i % 13)}"}}\n' for i in range(count)]
        corpus = directory / f"{name}.jsonl"
        corpus.write_text("".join(lines) + '{"text": null}\n')
        prefix = str(directory / name)
        run_tokenize(str(corpus), prefix, unit_size=512, workers=1, on_error="skip")
        corpus.unlink()
    for suffix in (".bin", ".idx"):
        shutil.copy(directory / f"b{suffix}", directory / f"foreign{suffix}")
    return directory


@pytest.fixture
def job(tmp_path):
    """A campaign's description. Inputs and outputs share a file system, so that the kernel can copy."""
    with scratch_directory(tmp_path) as scratch:
        yield {
            "workdir": str(scratch / "work"),
            "inputs": str(make_inputs(scratch / "in")),
            "prefixes": ["out/x"],
            "arguments": KNOWN,
        }


COMMON = ["-o", "out/x", "--quiet"]
KNOWN = ["merge", "{in}/a", "{in}/b", "{in}/c", *COMMON]
MIXED = ["merge", "{in}/a", "{in}/foreign", "{in}/c", *COMMON]
REPLACING = [*KNOWN, "--force"]
SHUFFLED = [*MIXED, "--shuffle", "7", "--memory", "4000"]
OLDER = ["merge", "{in}/c", *COMMON]

COPIES = ["write", "copy_range"]
CAMPAIGNS = {
    "known": ({}, 11),
    "mixed": ({"arguments": MIXED}, 9),
    "replacing": ({"arguments": REPLACING, "prepare": OLDER}, 10),
    "killed in the middle of a write": ({"arguments": MIXED, "mode": "half", "only": COPIES}, 3),
    "disk full": ({"arguments": MIXED, "mode": "enospc", "only": [*COPIES, "create", "open_for_append"]}, 4),
    "input/output error": ({"arguments": MIXED, "mode": "eio"}, 10),
    "fsync fails": ({"mode": "eio", "only": ["fsync", "fsync_directory"]}, 2),
    "shuffled": ({"arguments": SHUFFLED}, 41),
    "shuffled, killed in the middle of a write": (
        {"arguments": SHUFFLED, "mode": "half", "only": ["write"]},
        21,
    ),
    "shuffled, disk full": ({"arguments": SHUFFLED, "mode": "enospc", "only": ["write", "create"]}, 19),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_storage_call(job, name, record_property):
    changes, step = CAMPAIGNS[name]
    result = run("campaign.py", {**job, **changes, "step": STEP or step})
    record_property("points", result["points"])
    assert result["points"] > 10
    assert not result["failures"], first_failures(result)


CONTROLS = {
    "manifest_first": {"only": ["replace"]},
    "new_tokens_beside_the_old_index": {"arguments": REPLACING, "prepare": OLDER, "only": ["replace"]},
    "write_behind_the_end": {"mode": "half", "only": ["copy_range"]},
    "ignore_failed_fsync": {"mode": "eio", "only": ["fsync"]},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_implementation_is_caught(job, control):
    description = {**job, **CONTROLS[control], "stop_at_failure": True}
    result = run("campaign.py", {**description, "control": f"controls.broken_writers:{control}"})
    assert result["failures"]


KIB = 1024


@pytest.mark.parametrize("arguments", [KNOWN, MIXED])
def test_a_file_size_limit_loses_nothing(job, arguments):
    sizes = list(range(0, 8 * KIB, KIB // (4 if STEP else 1)))
    wanted = {"job": {**job, "arguments": arguments}, "kind": "limit", "sizes": sizes}
    result = run("disk_full.py", wanted)
    assert not result["failures"], first_failures(result)
    assert 0 < result["too_small"] < result["points"]


def test_a_small_disk_loses_nothing(job):
    sizes = [pages * 4 * KIB for pages in range(4, 40, 1 if STEP else 4)]
    result = run("disk_full.py", {"job": job, "kind": "tmpfs", "sizes": sizes})
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert not result["failures"], first_failures(result)
    assert 0 < result["too_small"] < result["points"]


def write(job: dict) -> tuple[int, str]:
    """Run the command; return its exit status and stderr."""
    done = tokshard(*(word.replace("{in}", job["inputs"]) for word in KNOWN))
    return done.returncode, done.stderr


def test_a_second_writer_is_told_who_is_the_first(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with WriterLock("out/x.tokshard/lock"):
        status, words = write(job)
    assert status == 5
    assert f"process {os.getpid()} on" in words
    assert write(job) == (0, "")


def test_writers_at_once_leave_one_right_output(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    merge(MergeOptions(inputs=[f"{job['inputs']}/{name}" for name in "abc"], output="right"))
    with ThreadPoolExecutor(6) as threads:
        for _ in range(3):
            ends = [*threads.map(write, [job] * 6)]
            codes = [code for code, _ in ends]
            assert set(codes) <= {0, 5}, ends
            assert 0 in codes
            assert outputs(["out/x"]) == outputs(["right"])
            assert leftovers() == []
            shutil.rmtree("out")
