"""P1, P2, P3, P6, P7: killed, failed and starved at every storage call, and the controls."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from faults.processes import HERE, scratch_directory
from support import forked_commands

# How much of each campaign to run: every call, or every n-th (TOKSHARD_CAMPAIGN_STEP=1 for all).
STEP = int(os.environ.get("TOKSHARD_CAMPAIGN_STEP", "0"))


def make_inputs(directory: Path) -> Path:
    directory.mkdir()
    for name, count in (("a", 24), ("b", 9)):
        lines = [
            json.dumps({"text": f"{name}{i} " + "word " * (i % 13), "title": f"t{i}"}) for i in range(count)
        ]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    with (directory / "a.jsonl").open("a") as file:
        file.write('{"text": null, "title": "none"}\n{"text": "", "title": ""}\n')
    subprocess.run(["gzip", "-kn", "a.jsonl"], cwd=directory, check=True)
    return directory


@pytest.fixture
def job(tmp_path):
    """A campaign's description."""
    with scratch_directory(tmp_path) as scratch:
        yield {
            "workdir": str(scratch / "work"),
            "inputs": str(make_inputs(tmp_path / "in")),
            "prefixes": ["out/x"],
            "arguments": PLAIN,
        }


COMMON = ["-o", "out/x", "--unit-size", "512", "--on-error", "skip", "--quiet"]
PLAIN = ["tokenize", "{in}/a.jsonl", "{in}/b.jsonl", *COMMON]
STREAMED = ["tokenize", "{in}/a.jsonl.gz", "{in}/b.jsonl", *COMMON]
TWO_FIELDS = [
    "tokenize",
    "{in}/a.jsonl",
    *COMMON,
    "--field",
    "text",
    "--field",
    "title",
]
SUBSET = [*PLAIN, "--holdout", "40%", "--sample", "80%", "--limit", "17"]
REPLACING = [*PLAIN, "--force"]
OLDER = ["tokenize", "{in}/b.jsonl", "-o", "out/x", "--quiet"]


def run(program: str, description: dict, **variables: str) -> dict:
    """Run a program of this directory with these environment variables; return what it prints."""
    done = forked_commands.run(
        [json.dumps(description)], program=HERE / program, environment={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def first_failures(result: dict) -> str:
    return "\n".join(f"call or round {k}: {wrong}" for k, wrong in list(result["failures"].items())[:3])


GROWING = ["write", "create", "open_for_append", "make_directory"]
CAMPAIGNS = {
    "plain": ({}, 17),
    "streamed": ({"arguments": STREAMED}, 17),
    "two fields": (
        {"arguments": TWO_FIELDS, "prefixes": ["out/x_text_document", "out/x_title_document"]},
        23,
    ),
    "a subset": ({"arguments": SUBSET, "prefixes": ["out/x_train", "out/x_valid"]}, 23),
    "replacing": ({"arguments": REPLACING, "prepare": OLDER}, 15),
    "killed in the middle of a write": ({"mode": "half", "only": ["write"]}, 5),
    "disk full": ({"mode": "enospc", "only": GROWING}, 7),
    "input/output error": ({"mode": "eio"}, 16),
    "fsync fails": ({"mode": "eio", "only": ["fsync", "fsync_directory"]}, 3),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_storage_call(job, name, record_property):
    changes, step = CAMPAIGNS[name]
    result = run("campaign.py", {**job, **changes, "step": STEP or step})
    record_property("points", result["points"])
    assert result["points"] > 10
    assert not result["failures"], first_failures(result)


CONTROLS = {
    "manifest_first": {},
    "new_tokens_beside_the_old_index": {"arguments": REPLACING, "prepare": OLDER},
    "append_without_cutting": {"step": 5},
    "forget_finished_parts": {"step": 5},
    "trust_every_part": {"only": ["write"]},
    "ignore_failed_fsync": {"mode": "eio", "only": ["fsync"]},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_implementation_is_caught(job, control):
    description = {**job, "only": ["write", "replace", "unlink", "fsync"], **CONTROLS[control]}
    description |= {"control": f"controls.broken_writers:{control}", "stop_at_failure": True}
    result = run("campaign.py", description)
    assert result["failures"]


KIB = 1024


def test_a_file_size_limit_loses_nothing(job):
    sizes = list(range(0, 8 * KIB, KIB // (4 if STEP else 1)))
    result = run("disk_full.py", {"job": job, "kind": "limit", "sizes": sizes})
    assert not result["failures"], first_failures(result)
    assert 0 < result["too_small"] < result["points"]


def test_a_small_disk_loses_nothing(job):
    sizes = [pages * 4 * KIB for pages in range(4, 60, 1 if STEP else 4)]
    result = run("disk_full.py", {"job": job, "kind": "tmpfs", "sizes": sizes})
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert not result["failures"], first_failures(result)
    assert 0 < result["too_small"] < result["points"]


def test_a_writer_by_tofile_is_caught_on_a_small_disk(job):
    wrong = {**job, "control": "controls.broken_writers:write_with_tofile"}
    result = run("disk_full.py", {"job": wrong, "kind": "limit", "sizes": list(range(KIB, 4 * KIB, 256))})
    assert result["failures"]
