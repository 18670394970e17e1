"""``tokshard tokenize`` in job arrays, as a user types it: options, messages and exit codes."""

from __future__ import annotations

import os

import pytest

from support.array_corpora import content
from support.command_line import SAMPLE, failure
from support.mixture_data import run
from tokshard.storage.lock import WriterLock
from tokshard.text.tokenize import array

STORIES = str(SAMPLE / "stories.jsonl")
TOKENIZER = str(SAMPLE / "tokenizer.json")
COMMON = ["tokenize", STORIES, "-o", "x", "--unit-size", "200kB", "--tokenizer", TOKENIZER]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_job_array_from_the_first_task_to_the_output():
    done = run(*COMMON, "--array-task", "1/2")
    assert done.returncode == 0
    task, time, following = done.stdout.splitlines()
    assert task.startswith("task 1 of 2: 2 units encoded, ")
    assert time.startswith("time: ")
    assert (
        following == "next: when all tasks have ended, run this command with --finish instead of --array-task"
    )
    code, error, hint = failure(run(*COMMON, "--finish"))
    assert (code, error) == (1, f"2 units are not finished: 0, 2 of {STORIES}")
    assert hint == "run the array tasks again with the same options (finished units are kept), then --finish"
    done = run(*COMMON, "--finish", "--json")
    assert done.returncode == 1
    assert done.json["missing"] == [{"input": STORIES, "units": [0, 2]}]
    again = run(*COMMON, "--array-task", "1/2").stdout
    assert again.startswith("task 1 of 2: 0 units encoded, 0 documents, 0 tokens\nreused: 2 units\n")
    done = run(*COMMON, "--array-task", "0/2", "--json")
    assert (done.json["schema"], done.json["state"]) == ("tokshard.tokenize-array/2", "encoded")
    assert (done.json["task"], done.json["tasks"], done.json["units"]) == (0, 2, 2)
    done = run(*COMMON, "--finish")
    assert "x.bin, .idx: 430 documents" in done.stdout
    assert "next: tokshard inspect x" in done.stdout
    assert run(*COMMON, "--finish").stdout.startswith("up to date: x.bin")
    late = run(*COMMON, "--array-task", "0/2").stdout
    assert late == "task 0 of 2: nothing to do, the output is up to date\n"
    assert run("tokenize", STORIES, "-o", "y", *COMMON[4:]).returncode == 0
    assert content("x") == content("y")


def test_an_allocation_that_nobody_asks_for_changes_nothing(monkeypatch):
    """A plain command does all the work, wherever it is run."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert "x.bin, .idx: 430 documents" in run(*COMMON).stdout


def test_a_lock_of_others_is_respected(monkeypatch):
    monkeypatch.setattr(array, "_TRIES", 2)
    run(*COMMON, "--array-task", "1/2")
    with WriterLock("x.tokshard/lock", shared=True):
        done = run(*COMMON, "--finish")
        assert done.returncode == 5
        assert "a task of a job array holds x.tokshard/lock" in done.stderr
    with WriterLock("x.tokshard/lock"):
        for more in (["--array-task", "0/2"], ["--array-task", "0/2", "--dtype", "int32"], ["--finish"]):
            done = run(*COMMON, *more)
            assert done.returncode == 5
            assert f"process {os.getpid()} on " in done.stderr


def test_tasks_of_other_options_are_refused():
    run(*COMMON, "--array-task", "1/2")
    code, error, hint = failure(run(*COMMON, "--array-task", "0/2", "--dtype", "int32"))
    assert code == 4
    assert (
        "x.tokshard/work has 2 finished units of other options: --dtype was 'uint16' and is now 'int32'"
        in error
    )
    assert "--force" in hint
    code, error, _ = failure(run(*COMMON, "--finish", "--dtype", "int32"))
    assert code == 1
    assert "no task has begun to make x with these options: --dtype was 'uint16' and is now 'int32'" in error


def test_without_locks():
    for more in (["--array-task", "0/2"], ["--array-task", "1/2"], ["--finish"]):
        assert run(*COMMON, *more, "--lock", "none").returncode == 0
    assert run("tokenize", STORIES, "-o", "y", *COMMON[4:]).returncode == 0
    assert content("x") == content("y")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--array-task", "0/2", "--finish"], "--finish cannot be used with --array-task"),
        (
            ["--array-task", "0/2", "-o", "s3://bucket/data/x"],
            "require an --output on a shared file system, got s3://",
        ),
        (["--array-task", "0/2", "--no-resume"], "--no-resume would remove the finished units"),
        (["--finish", "--no-resume"], "--no-resume would remove the finished units"),
        (["--array-task", "8/8"], "tasks are numbered from 0, the last is 7/8"),
        (["--array-task", "auto"], "--array-task must be I/N, got 'auto'"),
        (["--array-task", "one"], "--array-task must be I/N, got 'one'"),
        (["--finish", "--limit", "3"], "--limit cannot be applied by the tasks of a job array"),
        (["--finish", "--executor", "ray"], "--finish"),
        (["--array-task", "0/2", "--executor", "ray"], "--executor"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(more, message):
    done = run(*COMMON, *more)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert os.listdir() == []


def test_standard_input_cannot_be_shared():
    done = run("tokenize", "-", "-o", "x", "--array-task", "0/2", stdin='{"text": "a"}\n')
    assert done.returncode == 2
    assert "can be read only once, by one process" in done.stderr
