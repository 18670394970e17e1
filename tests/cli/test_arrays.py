"""``tokshard tokenize`` in job arrays, as a user types it: options, messages and exit codes."""

from __future__ import annotations

import os

import pytest

from support.array_corpora import content
from support.command_line import SAMPLE, failure
from support.mixture_data import run
from tokshard.storage.lock import WriterLock

STORIES = str(SAMPLE / "stories.jsonl")
TOKENIZER = str(SAMPLE / "tokenizer.json")
COMMON = ["tokenize", STORIES, "-o", "x", "--unit-size", "200kB", "--tokenizer", TOKENIZER]
SCHEDULERS = (
    "SLURM_ARRAY_TASK_ID",
    "SLURM_PROCID",
    "JOB_COMPLETION_INDEX",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)


def test_a_job_array_from_the_first_task_to_the_output():
    done = run(*COMMON, "--array-task", "1/2")
    assert done.returncode == 0
    task, time, following = done.stdout.splitlines()
    assert task.startswith("task 1 of 2: 2 units encoded, ")
    assert time.startswith("time: ")
    assert following == "next: the last task to end assembles the output; or run this command with --finish"
    done = run(*COMMON, "--finish", "--tasks", "2")
    assert done.returncode == 1
    assert f"error: 2 units are not finished: 0, 2 of {STORIES}" in done.stderr
    assert "hint: run task 0 of 2 again, then --finish" in done.stderr
    done = run(*COMMON, "--finish", "--json")
    assert done.returncode == 1
    assert done.json["missing"] == [{"input": STORIES, "units": [0, 2], "open_from": None}]
    assert "tasks" not in done.json
    again = run(*COMMON, "--array-task", "1/2").stdout
    assert again.startswith("task 1 of 2: 0 units encoded, 0 documents, 0 tokens\nreused: 2 units\n")
    done = run(*COMMON, "--array-task", "0/2")
    assert done.stdout.startswith("task 0 of 2: 2 units encoded, ")
    assert "x.bin, .idx: 430 documents" in done.stdout
    assert "next: tokshard inspect x" in done.stdout
    assert run(*COMMON, "--finish").stdout.startswith("up to date: x.bin")
    assert run(*COMMON, "--array-task", "0/2").stdout.startswith("up to date: x.bin")
    assert run("tokenize", STORIES, "-o", "y", *COMMON[4:]).returncode == 0
    assert content("x") == content("y")


def test_an_allocation_that_nobody_asks_for_changes_nothing(monkeypatch):
    """A plain command does all the work, wherever it is run."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert "x.bin, .idx: 430 documents" in run(*COMMON).stdout


def test_the_scheduler_is_asked(monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    done = run(*COMMON, "--array-task", "auto/2", "--json")
    assert (done.json["task"], done.json["tasks"], done.json["state"]) == (1, 2, "encoded")
    code, error, hint = failure(run(*COMMON, "--array-task", "auto"))
    assert (code, error) == (2, "--array-task auto: Kubernetes does not set the number of tasks")
    assert hint == "pass --array-task auto/N, where N is the number of completions of the job"


def test_a_lock_of_others_is_respected():
    run(*COMMON, "--array-task", "1/2")
    with WriterLock("x.tokshard/lock", shared=True, purpose="task 0/2"):
        done = run(*COMMON, "--finish")
        assert done.returncode == 5
        assert "(shared, possibly with others) holds x.tokshard/lock" in done.stderr
    with WriterLock("x.tokshard/lock"):
        done = run(*COMMON, "--array-task", "0/2")
        assert done.returncode == 0
        assert done.stdout.startswith(f"task 0 of 2: nothing to do, process {os.getpid()} on ")
        assert done.stdout.endswith("completes the output\n")
        assert run(*COMMON, "--array-task", "0/2", "--dtype", "int32").returncode == 5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--array-task", "0/2", "--finish"], "--array-task cannot be used with --finish"),
        (["--no-finish"], "--no-finish requires --array-task"),
        (["--tasks", "3"], "--tasks requires --finish"),
        (["--array-task", "0/3", "--tasks", "3"], "--tasks requires --finish"),
        (["--finish", "--tasks", "0"], "--tasks must be at least 1, got 0"),
        (
            ["--array-task", "0/2", "-o", "s3://bucket/data/x"],
            "must be on a file system that all tasks share, got s3://",
        ),
        (["--array-task", "0/2", "--no-resume"], "--no-resume would remove the finished units"),
        (["--finish", "--no-resume"], "--no-resume would remove the finished units"),
        (["--array-task", "8/8"], "tasks are numbered from 0, the last is 7/8"),
        (["--array-task", "auto"], "cannot determine the task number"),
        (["--array-task", "one"], "must be I/N, auto or auto/N"),
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
