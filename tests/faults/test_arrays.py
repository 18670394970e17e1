"""Job arrays whose tasks run at once and are killed, in any number: then --finish makes the same bytes."""

from __future__ import annotations

import os

import pytest

from faults.processes import TOKENIZER, Run, campaign, make_corpus, output, scratch_directory

ROUNDS = int(os.environ.get("TOKSHARD_ARRAY_ROUNDS", "4"))


def test_killed_disturbed_and_changed_arrays_end_with_the_same_bytes(world):
    ends = campaign("--world", world, "--json", "--rounds", "arrays", "--factor", ROUNDS)
    assert ends["killed"] > 0
    assert ends["0"] > 0


@pytest.fixture
def directory(tmp_path):
    with scratch_directory(tmp_path) as scratch:
        make_corpus(scratch / "corpus.jsonl", 14.2)
        yield scratch


def test_real_commands_with_workers_of_which_two_are_killed(directory):
    """Then another number of tasks ends it: what the killed ones have finished is not encoded again."""
    options = ["--tokenizer", str(TOKENIZER), "--unit-size", "300kB", "--workers", "2"]
    command = ["tokenize", "corpus.jsonl", "-o", "out/x", *options]
    first = [Run([*command, "--array-task", f"{index}/3"], directory).start() for index in range(3)]
    for run_to_kill in first[1:3]:
        run_to_kill.wait_for_workers(1)  # or its end
        run_to_kill.process.kill()
    ends = [task.end()[0] for task in first]
    assert ends[0] == 0
    assert set(ends[1:3]) <= {-9, 0}
    assert all(task.gone() for task in first)
    second = [Run([*command, "--array-task", f"{index}/2"], directory).start() for index in range(2)]
    assert [task.end() for task in second if task.end()[0] != 0] == []
    assert Run([*command, "--finish"], directory).start().end()[0] == 0
    assert Run(["tokenize", "corpus.jsonl", "-o", "local/x", *options], directory).start().end()[0] == 0
    assert output(directory / "out/x") == output(directory / "local/x")
    assert not (directory / "out/x.tokshard/work").exists()
