"""The example of training with torch: what its ranks wrote down, judged here and not by the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.support import skip_unless_first
from support import slow_samplers

pytestmark = pytest.mark.oracle

SCRIPT = Path(__file__).parents[2] / "scripts/train_ddp_example.py"
SAMPLES, MICRO_BATCH_SIZE, GLOBAL_BATCH_SIZE = 640, 4, 16


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The directory of a run of the example, and what it printed."""
    skip_unless_first()
    if os.environ.get("TOKSHARD_ORACLE") != "required":
        pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("example") / "run"
    done = subprocess.run([sys.executable, SCRIPT, directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return directory, done.stdout


@pytest.fixture
def directory(example):
    return example[0]


def entries(directory, logs, rank):
    lines = (directory / logs / f"rank-{rank}.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture
def both(directory):
    """Steps that both ranks did before they were killed."""
    return list(zip(entries(directory, "logs-2", 0), entries(directory, "logs-2", 1), strict=False))


@pytest.fixture
def kept(directory, both):
    """The steps of both ranks that the checkpoint stands for."""
    consumed = checkpoint_at_the_kill(directory)
    return [step for step in both if step[0]["consumed"] < consumed]


@pytest.fixture
def resumed(directory):
    return entries(directory, "logs-1", 0)


def checkpoint_at_the_kill(directory):
    """Return how many samples the run of one rank found consumed."""
    return entries(directory, "logs-1", 0)[0]["consumed"]


def test_both_ranks_were_killed_in_the_middle(directory, both):
    log = (directory / "logs-2/torchrun.log").read_text()
    assert log.count("Signal 9 (SIGKILL)") >= 1
    # One of the ranks may have written down a step less than the other.
    assert 11 <= len(both) < SAMPLES // GLOBAL_BATCH_SIZE
    assert 0 < checkpoint_at_the_kill(directory) <= both[-1][0]["consumed"] + GLOBAL_BATCH_SIZE


def test_each_rank_read_what_megatrons_sampler_gives_it(directory):
    for rank in (0, 1):
        batches = iter(slow_samplers.single_sampler(SAMPLES, 0, MICRO_BATCH_SIZE, rank, 2))
        for step, entry in enumerate(entries(directory, "logs-2", rank)):
            assert entry["samples"] == next(batches) + next(batches)
            assert entry["consumed"] == GLOBAL_BATCH_SIZE * step


def test_gradients_were_equal_on_both_ranks_and_new_at_every_step(both):
    assert all(first["gradients"] == second["gradients"] for first, second in both)
    assert len({first["gradients"] for first, _ in both}) == len(both)
    # Of different samples: the ranks' own losses differ.
    assert all(first["loss"] != second["loss"] for first, second in both)


def test_all_samples_are_in_the_model_once(kept, resumed):
    before = [sample for step in kept for entry in step for sample in entry["samples"]]
    after = [sample for entry in resumed for sample in entry["samples"]]
    assert before
    assert after
    assert sorted(before + after) == list(range(SAMPLES))


def test_the_training_resumed_at_the_checkpoint(both, kept, resumed):
    """The same steps with one rank have the losses that two ranks had: model, optimizer and data agree."""
    again = both[len(kept) :]
    for (first, second), entry in zip(again, resumed, strict=False):
        assert entry["consumed"] == first["consumed"]
        assert sorted(entry["samples"]) == sorted(first["samples"] + second["samples"])
        assert entry["loss"] == pytest.approx((first["loss"] + second["loss"]) / 2, abs=0.01)


def test_the_loss_fell(kept, resumed):
    losses = [(first["loss"] + second["loss"]) / 2 for first, second in kept] + [
        entry["loss"] for entry in resumed
    ]
    fifth = len(losses) // 5
    assert sum(losses[-fifth:]) / fifth < sum(losses[:fifth]) / fifth - 1
    assert sum(losses[fifth:][:fifth]) > sum(losses[-fifth:])


def test_what_the_example_says_is_readable(example):
    printed = example[1]
    assert printed.count("yes: ") == 6
    assert "$ tokshard shard-plan mix --data-parallel 2" in printed
    assert max(map(len, printed.splitlines())) < 300
