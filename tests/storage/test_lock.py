"""The writer's lock inside one process; tests/faults/test_locks.py kills processes that hold it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from support.file_faults import names, open_descriptors, raising
from tokshard.errors import LockedError, StorageError
from tokshard.storage.lock import WriterLock


def test_the_second_is_told_who_holds_it(tmp_path):
    path = str(tmp_path / "lock")
    with WriterLock(path), pytest.raises(LockedError) as caught, WriterLock(path):
        pass
    assert f"process {os.getpid()} on {socket.gethostname()!r} (started '2" in str(caught.value)
    assert path in str(caught.value)
    assert caught.value.exit_code == 5
    with WriterLock(path):
        assert names(tmp_path) == ["lock"]
    assert names(tmp_path) == []


def test_it_is_released_by_an_exception(tmp_path):
    before = open_descriptors()
    with pytest.raises(KeyError), WriterLock(str(tmp_path / "lock")):
        raise KeyError
    assert names(tmp_path) == []
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b'{"pid": 1}',
        b'{"pid": 1e999, "host": "h", "started": "s"}',
        b"process 1 on 'h'" + b" " * 5000,
        b"\xff" * 5000,
    ],
)
def test_a_lock_with_a_strange_text_is_still_a_lock(tmp_path, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="a process that just started"), WriterLock(str(path)):
            pass
    with WriterLock(str(path)):
        pass
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_lock_behind(tmp_path, monkeypatch):
    path = str(tmp_path / "lock")
    before = open_descriptors()
    monkeypatch.setattr(os, "write", raising(errno.ENOSPC))
    with pytest.raises(StorageError), WriterLock(path):
        pass
    monkeypatch.undo()
    assert names(tmp_path) == []
    assert open_descriptors() <= before
    with WriterLock(path):
        pass


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    before = open_descriptors()
    with pytest.raises(StorageError, match="cannot lock"), WriterLock(str(tmp_path / "lock")):
        pass
    assert open_descriptors() <= before


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_of_ours_is_refused_and_stays(tmp_path, make):
    path = tmp_path / "lock"
    make(path)
    with pytest.raises(StorageError, match="cannot open"), WriterLock(str(path)):
        pass
    assert names(tmp_path) == ["lock"]


def test_a_directory_that_another_process_gives_up_is_made_again(tmp_path, monkeypatch):
    """The other one removes its empty directory between our making it and opening the lock in it."""
    directory = tmp_path / "x.tokshard"
    original, seen = os.open, []

    def late(path, *arguments):
        if path == str(directory / "lock") and len(seen) < 3:
            seen.append(path)
            directory.rmdir()
        return original(path, *arguments)

    monkeypatch.setattr(os, "open", late)
    with WriterLock(str(directory / "lock")):
        assert names(directory) == ["lock"]
    assert len(seen) == 3


def test_a_file_that_was_released_meanwhile_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """The other one removes the file between our opening it and locking it."""
    path = tmp_path / "lock"
    original, seen = fcntl.flock, []

    def late(descriptor, operation):
        if not seen:
            seen.append(descriptor)
            path.unlink()
        return original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with WriterLock(str(path)):
        assert path.exists()
        with pytest.raises(LockedError), WriterLock(str(path)):
            pass


def test_the_lock_of_another_is_not_removed(tmp_path):
    """Somebody removes the file by hand, and another run makes its own."""
    path = tmp_path / "lock"
    first = WriterLock(str(path))
    with first:
        path.unlink()
        second = WriterLock(str(path))
        second.__enter__()
    assert path.exists()
    with pytest.raises(LockedError), WriterLock(str(path)):
        pass
    second.__exit__(None, None, None)
    assert names(tmp_path) == []


def test_a_lock_in_a_directory_that_was_removed_is_an_error(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for path in ("lock", "x.tokshard/lock"):
        with pytest.raises(StorageError, match="No such file"), WriterLock(path):
            pass


def shared(path):
    return WriterLock(str(path), shared=True)


def test_several_share_a_lock_and_none_of_them_with_who_holds_it_alone(tmp_path):
    path = tmp_path / "lock"
    with shared(path), shared(path):
        with (
            pytest.raises(LockedError, match="a task of a job array holds"),
            WriterLock(str(path)),
        ):
            pass
        with shared(path):
            pass
    assert names(tmp_path) == []
    with WriterLock(str(path)), pytest.raises(LockedError, match=f"process {os.getpid()} on"), shared(path):
        pass
    assert names(tmp_path) == []


def test_the_last_of_those_who_share_a_lock_removes_its_file(tmp_path):
    """In whatever order they go: a file that went earlier would let another in who holds a new one alone."""
    path = tmp_path / "lock"
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        locks = [shared(path) for _ in range(3)]
        for lock in locks:
            lock.__enter__()
        for number in order[:2]:
            locks[number].__exit__(None, None, None)
            with pytest.raises(LockedError), WriterLock(str(path)):
                pass
        locks[order[2]].__exit__(None, None, None)
        assert names(tmp_path) == []


def test_a_killed_process_that_shared_a_lock_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import os, sys; from tokshard.storage.lock import WriterLock; WriterLock(sys.argv[1], shared=True)"
    )
    subprocess.run([sys.executable, "-c", f"{code}.__enter__(); os._exit(0)", str(path)], check=True)
    assert names(tmp_path) == ["lock"]
    with WriterLock(str(path)):
        pass
    assert names(tmp_path) == []
