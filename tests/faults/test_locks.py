"""P34: of several writers to one output exactly one goes on, and a killed one blocks nobody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from faults.processes import HERE, START_SECONDS, Run, output
from support.command_line import tokshard

ROUNDS = int(os.environ.get("TOKSHARD_LOCK_ROUNDS", "25"))
CONTROL = "controls.lock_by_existence:WriterLock"


def contest(directory, **description):
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "lock_rounds.py"),
            json.dumps({"directory": str(directory), **description}),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_eight_processes_of_which_a_third_is_killed(tmp_path):
    verdicts, stderr = contest(tmp_path, rounds=ROUNDS)
    assert verdicts == {"held": 5 * ROUNDS, "killed": 3 * ROUNDS}, stderr


def test_a_lock_by_existence_lets_two_pass(tmp_path):
    verdicts, _ = contest(tmp_path, lock=CONTROL, rounds=500, kill_every=0)
    assert verdicts.get("two winners")


def test_a_lock_by_existence_is_stuck_after_a_kill(tmp_path):
    killed, _ = contest(tmp_path, lock=CONTROL, rounds=1, processes=1, kill_every=1)
    assert killed == {"killed": 1}
    left, _ = contest(tmp_path, lock=CONTROL, rounds=1, processes=2, kill_every=0, patience_seconds=0.5)
    assert left == {"stuck": 2}


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.fixture
def pipe(directory):
    """The pipe, open to write: one that nobody has opened is an error after 5 s."""
    with open(os.open(directory / "pipe", os.O_RDWR), "wb", buffering=0) as file:
        yield file


def waiting_run(directory):
    """Start a run that waits for its input and holds the lock."""
    run = Run(["tokenize", "pipe", "-o", "out/x"], directory).start()
    run.wait_for_path("out/x.tokshard/lock")
    deadline = time.monotonic() + START_SECONDS
    while not (directory / "out/x.tokshard/lock").read_bytes().endswith(b")"):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return run


def tokenize(directory, *more):
    done = tokshard("tokenize", "corpus.jsonl", "-o", "out/x", *more, cwd=directory)
    return done.returncode, done.stderr


@pytest.mark.parametrize("more", [(), ("--force",), ("--no-resume",)])
@pytest.mark.usefixtures("pipe")
def test_the_second_command_names_the_first(directory, more):
    first = waiting_run(directory)
    try:
        status, stderr = tokenize(directory, *more)
        assert status == 5
        assert f"process {first.process.pid} on {socket.gethostname()!r} (started '2" in stderr
        assert "out/x.tokshard/lock" in stderr
        assert "hint: " in stderr
        assert first.process.poll() is None
        assert sorted(os.listdir(directory / "out")) == ["x.tokshard"]
    finally:
        first.clean_up()


def test_the_first_continues_undisturbed(directory, pipe):
    first = waiting_run(directory)
    assert tokenize(directory)[0] == 5
    pipe.write((directory / "corpus.jsonl").read_bytes())
    pipe.close()
    assert first.end()[0] == 0
    assert (directory / "out/x.bin").stat().st_size == 16
    assert sorted(os.listdir(directory / "out/x.tokshard")) == [
        "manifest.json",
        "provenance.bin",
        "units.jsonl",
    ]


@pytest.mark.usefixtures("pipe")
def test_a_killed_command_blocks_nobody(directory):
    first = waiting_run(directory)
    first.clean_up()
    assert (directory / "out/x.tokshard/lock").exists()
    status, stderr = tokenize(directory)
    assert status == 0, stderr
    assert sorted(os.listdir(directory / "out/x.tokshard")) == [
        "manifest.json",
        "provenance.bin",
        "units.jsonl",
    ]


def test_commands_started_together_make_one_dataset(directory, monkeypatch):
    assert tokenize(directory)[0] == 0
    monkeypatch.chdir(directory)
    expected = output("out/x")
    for arguments in (["--force"], ["--force", "--no-resume"]):
        runs = [
            Run(["tokenize", "corpus.jsonl", "-o", "out/x", *arguments], directory).start() for _ in range(4)
        ]
        statuses = {run.end()[0] for run in runs}
        assert 0 in statuses <= {0, 5}
        assert output("out/x") == expected
