"""P1, P2 for convert: killed, failed and starved at every storage call, and a control."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults.processes import scratch_directory
from faults.test_crashes import STEP, first_failures, run
from support import slow_conversions

BOS = 3
SHARDS = [[BOS, 1, 2, BOS, 4, *range(10, 40)], [5, 6, BOS, 7], [8, BOS, 9, BOS, BOS, 1, 2, 3, 4]]
BOUNDED = [[list(range(20)), [], [1, 2]], [[3, 4, 5], [6] * 30]]


@pytest.fixture
def job(tmp_path):
    """A campaign's description; units are a few tokens, each with a checkpoint."""
    with scratch_directory(tmp_path) as scratch:
        inputs = scratch / "in"
        inputs.mkdir()
        source = slow_conversions.nanogpt(SHARDS, dtype="uint16", bos=BOS, eod=BOS, treatment="move")
        source.write(inputs / "nano")
        slow_conversions.datatrove(BOUNDED, dtype="uint32", metadata=True).write(inputs / "trove")
        yield {
            "workdir": str(scratch / "work"),
            "inputs": str(inputs),
            "prefixes": ["out/x"],
            "arguments": NANOGPT,
            "control": "controls.small_conversions:checkpoints",
        }


COMMON = ["-o", "out/x", "--quiet"]
NANOGPT = ["convert", "{in}/nano", "--from", "nanogpt", "--split", "all", "--bos-id", str(BOS), *COMMON]
DATATROVE = ["convert", "{in}/trove", "--from", "datatrove", *COMMON]

CAMPAIGNS = {
    "nanogpt": ({}, 13),
    "datatrove": ({"arguments": DATATROVE}, 11),
    "replacing": ({"arguments": [*DATATROVE, "--force"], "prepare": NANOGPT}, 17),
    "killed in the middle of a write": ({"mode": "half", "only": ["write"]}, 5),
    "disk full": ({"mode": "enospc", "only": ["write", "create", "open_for_append"]}, 7),
    "fsync fails": ({"mode": "eio", "only": ["fsync", "fsync_directory"]}, 7),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_storage_call(job, name, record_property):
    changes, step = CAMPAIGNS[name]
    result = run("campaign.py", {**job, **changes, "step": STEP or step})
    record_property("points", result["points"])
    assert result["points"] > 4
    assert not result["failures"], first_failures(result)


def test_a_broken_implementation_is_caught(job):
    control = "controls.small_conversions:lengths_without_checkpoints"
    result = run("campaign.py", {**job, "control": control, "step": STEP or 7, "stop_at_failure": True})
    assert result["failures"]


def test_the_journal_of_these_runs_has_several_checkpoints(job, tmp_path, monkeypatch):
    from faults.controls import small_conversions
    from tokshard import ConvertOptions, convert
    from tokshard.exchange.conversion import content, conversion

    for module, name in ((content, "UNIT_BYTES"), (content, "BLOCK_BYTES"), (conversion, "CHECKPOINT_BYTES")):
        monkeypatch.setattr(module, name, getattr(module, name))
    small_conversions.checkpoints()
    convert(ConvertOptions(sources=f"{job['inputs']}/trove", format="datatrove", output=tmp_path / "x"))
    units = Path(tmp_path / "x.tokshard/units.jsonl").read_text().splitlines()
    assert len([json.loads(unit) for unit in units]) > 5
