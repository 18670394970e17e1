"""``--lock none``: outputs on file systems that refuse locks, for every command that takes one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from support.mixture_data import files_of, run, write_mixture
from tokshard.storage import scratch

SIZES = ("--seq-length", 16, "--num-samples", 8, "--split", "1,0,0")
COMMANDS = {
    "tokenize": ("tokenize", "corpus.jsonl", "-o", "new"),
    "merge": ("merge", "data/web", "data/code", "-o", "new"),
    "export": ("export", "data/web", "--to", "olmo", "-o", "new"),
    "build-indices": ("build-indices", "data/web", *SIZES, "--cache-dir", "new"),
    "blend": ("blend", 1, "data/web", 1, "data/code", *SIZES, "-o", "new"),
    "shard-plan": ("shard-plan", "mix", "--data-parallel", 2, "-o", "new"),
    "replan": (
        "replan",
        "plan",
        "--consumed-samples",
        4,
        "--global-batch-size",
        4,
        "--data-parallel",
        1,
        "-o",
        "new",
    ),
    "verify": ("verify", "data/foreign", "--adopt"),
}
REFUSALS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
ARRAY = ("tokenize", "corpus.jsonl", "-o", "new", "--unit-size", "300")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    texts = [{"text": f"sample {number} of the corpus"} for number in range(40)]
    Path("corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    for suffix in ("bin", "idx"):
        Path(f"data/foreign.{suffix}").write_bytes(Path(f"data/web.{suffix}").read_bytes())
    assert run("blend", 1, "data/web", 1, "data/code", *SIZES, "-o", "mix").returncode == 0
    assert run("shard-plan", "mix", "--data-parallel", 2, "-o", "plan").returncode == 0


def refuse(monkeypatch, number):
    def refused(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_system_without_flock_is_an_error_with_a_way_on(place, monkeypatch, name):
    refuse(monkeypatch, REFUSALS[len(name) % 3])
    done = run(*COMMANDS[name])
    assert done.returncode == 7, done.stderr
    assert "the file system does not support flock" in done.stderr
    assert "hint: pass --lock none, and let only one run write this output at a time" in done.stderr
    left = [path for path in Path().rglob("*") if "lock" in path.name]
    assert left == [], "a lock file that was never a lock stays"
    done = run(*COMMANDS[name], "--lock", "none")
    assert done.returncode == 0, done.stderr
    again = run(*COMMANDS[name], "--lock", "none")
    assert again.returncode == 0, again.stderr
    assert not any("lock" in path.name for path in Path().rglob("*"))


@pytest.mark.parametrize("number", REFUSALS)
def test_each_refusal_is_named(place, monkeypatch, number):
    refuse(monkeypatch, number)
    done = run(*COMMANDS["tokenize"])
    assert f"new.tokshard/lock: the file system does not support flock ({os.strerror(number)})" in done.stderr
    assert not Path("new.tokshard").exists()


def test_a_run_without_locks_resumes_one_with_them(place):
    """The mode is not part of what an output is made of."""
    assert run(*ARRAY, "--array-task", "0/2").returncode == 0
    done = run(*ARRAY, "--lock", "none", "--json")
    assert done.returncode == 0
    assert done.json["units_reused"] > 0
    assert run(*ARRAY).stdout.startswith("up to date")


def test_a_job_array_without_locks_is_assembled_by_a_run_of_its_own(place, monkeypatch):
    run("tokenize", *ARRAY[1:2], "-o", "alone", *ARRAY[4:])
    refuse(monkeypatch, errno.ENOLCK)
    for task in ("1/2", "0/2"):
        done = run(*ARRAY, "--array-task", task, "--lock", "none")
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("run this command with --finish instead of --array-task\n")
    assert not Path("new.bin").exists()
    assert run(*ARRAY, "--finish", "--lock", "none").returncode == 0
    for suffix in ("bin", "idx"):
        assert Path(f"new.{suffix}").read_bytes() == Path(f"alone.{suffix}").read_bytes()
    assert "nothing to do" in run(*ARRAY, "--array-task", "0/2", "--lock", "none").stdout


def test_tasks_without_locks_never_remove_the_work_of_others(place, monkeypatch):
    refuse(monkeypatch, errno.ENOLCK)
    assert run(*ARRAY, "--array-task", "0/2", "--lock", "none").returncode == 0
    parts = sorted(os.listdir("new.tokshard/work/parts"))
    other = (*ARRAY, "--dtype", "int32", "--lock", "none")
    done = run(*other, "--array-task", "1/2")
    assert done.returncode == 4
    assert "new.tokshard/work has 3 finished units of other options: --dtype was" in done.stderr
    hint = "pass the same options to resume, or remove the directory when no task is at work"
    assert f"\nhint: {hint}\n" in done.stderr
    assert sorted(os.listdir("new.tokshard/work/parts")) == parts


def test_two_tasks_that_begin_at_once_without_locks_share_one_work_directory(place, monkeypatch):
    """The second one begins between the first one's look and its rename."""
    from tokshard.dataset.run import Run

    original, seen = Run._write_job, []

    def late(self, directory):
        if not seen:
            seen.append(True)
            assert run(*ARRAY, "--array-task", "1/2", "--lock", "none").returncode == 0
        original(self, directory)

    monkeypatch.setattr(Run, "_write_job", late)
    assert run(*ARRAY, "--array-task", "0/2", "--lock", "none").returncode == 0
    assert sorted(os.listdir("new.tokshard")) == ["work"]
    assert run(*ARRAY, "--finish", "--lock", "none").returncode == 0


def test_a_wrong_mode_is_refused(place):
    done = run(*COMMANDS["merge"], "--lock", "dotlock")
    assert done.returncode == 2
    assert "--lock must be one of flock, none, got 'dotlock'" in done.stderr


def test_scratch_directories_are_locked_whatever_the_mode(tmp_path, monkeypatch):
    """Their locks tell other processes that their owner is alive."""
    from tokshard.storage.lock import lock_mode

    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", -1.0)
    with lock_mode("none"), scratch.scratch_directory() as first, scratch.scratch_directory():
        assert os.path.isdir(first)


def test_scratch_directories_need_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    refuse(monkeypatch, errno.ENOSYS)
    with scratch.scratch_directory() as directory:
        assert os.path.isdir(directory)
    assert os.listdir(tmp_path) == []


def test_indexes_are_built_by_threads_without_locks_too(place, monkeypatch):
    run(*COMMANDS["build-indices"][:-1], "alone")
    refuse(monkeypatch, errno.ENOLCK)
    done = run(*COMMANDS["build-indices"], "--lock", "none", "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert files_of(Path("new")) == files_of(Path("alone"))
