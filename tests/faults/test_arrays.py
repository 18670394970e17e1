"""Job arrays whose tasks run at once and are killed: the same bytes, and always one that publishes them."""

from __future__ import annotations

import json
import os

import pytest

from faults.campaign import leftovers, outputs
from faults.processes import TOKENIZER, Run, make_corpus, scratch_directory
from faults.test_crashes import STEP, first_failures, make_inputs, run

ROUNDS = int(os.environ.get("TOKSHARD_ARRAY_ROUNDS", "0"))
OPTIONS = ["-o", "out/x", "--unit-size", "512", "--on-error", "skip"]
ARGUMENTS = ["tokenize", "{in}/a.jsonl", "{in}/a.jsonl.gz", "{in}/b.jsonl", *OPTIONS]


@pytest.fixture
def place(tmp_path):
    """Where to work, and where the inputs are."""
    with scratch_directory(tmp_path) as scratch:
        yield {"workdir": str(scratch / "work"), "inputs": str(make_inputs(tmp_path / "in"))}


def play(place: dict, **changes) -> dict:
    result = run("array_rounds.py", {**place, "arguments": ARGUMENTS, **changes}, TMPDIR="/tmp")
    assert not result["failures"], json.dumps(result["failures"], indent=1)
    return result["ends"]


def test_killed_disturbed_and_changed_arrays_end_with_the_same_bytes(place):
    ends = play(place, rounds=ROUNDS or 5)
    assert ends["published"] + ends["up-to-date"] > 0
    assert ends["killed by SIGKILL"] > 0


def test_the_tasks_that_end_last_at_once_leave_nothing_undone(place):
    """Nobody is killed: exactly one of them publishes each time, be it before the last has begun."""
    rounds = ROUNDS or 10
    inputs = ["tokenize", "{in}/b.jsonl", *OPTIONS]
    ends = play(place, arguments=inputs, rounds=rounds, waves=0, seed=2)
    assert ends["published"] == rounds


@pytest.mark.parametrize(("mode", "step"), [("kill", 9), ("enospc", 13)])
def test_every_storage_call_of_a_task(place, tmp_path, mode, step):
    """An array of one: the task encodes all, checks, puts together and publishes."""
    arguments = ["tokenize", "{in}/a.jsonl.gz", "{in}/b.jsonl", *OPTIONS, "--array-task", "0/1"]
    growing = ["write", "create", "open_for_append", "make_directory", "make_private_directory"]
    description = {**place, "prefixes": ["out/x"], "arguments": arguments, "step": STEP or step, "mode": mode}
    if mode == "enospc":
        description["only"] = growing
    result = run("campaign.py", description, TMPDIR=str(tmp_path))
    assert result["points"] > 5
    assert not result["failures"], first_failures(result)


def test_real_commands_with_workers_of_which_two_are_killed(tmp_path, monkeypatch):
    """Then another number of tasks ends it: what the killed ones have finished is not encoded again."""
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path / "corpus.jsonl", 14.2)
    options = ["--tokenizer", str(TOKENIZER), "--unit-size", "300kB", "--workers", "2"]
    command = ["tokenize", "corpus.jsonl", "-o", "out/x", *options]
    first = [Run([*command, "--array-task", f"{index}/3"], tmp_path).start() for index in range(3)]
    for run_to_kill in first[1:3]:
        run_to_kill.wait_for_workers(1)  # or its end
        run_to_kill.process.kill()
    ends = [task.end()[0] for task in first]
    assert ends[0] == 0
    assert set(ends[1:3]) <= {-9, 0}
    assert all(task.gone() for task in first)
    second = [Run([*command, "--array-task", f"{index}/2"], tmp_path).start() for index in range(2)]
    assert [task.end() for task in second if task.end()[0] != 0] == []
    assert Run(["tokenize", "corpus.jsonl", "-o", "local/x", *options], tmp_path).start().end()[0] == 0
    assert outputs(["out/x"]) == outputs(["local/x"])
    assert leftovers() == []
