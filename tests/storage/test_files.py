"""Atomic files, append-only files, temporary names and removal: the old state or the new one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.file_faults import names, open_descriptors, raising
from support.interleaving import interleaved
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage import files, syscalls
from tokshard.storage.files import (
    AppendFile,
    AtomicFile,
    is_temporary,
    remove_tree,
    temporary_path,
    write_atomically,
)


@settings(max_examples=30)
@given(pieces=st.lists(st.binary(max_size=50), max_size=6))
def test_an_atomic_file_holds_what_was_written(tmp_path_factory, pieces):
    directory = tmp_path_factory.mktemp("atomic")
    with AtomicFile(str(directory / "x")) as file:
        for piece in pieces:
            file.write(piece)
        assert file.size_bytes == sum(map(len, pieces))
        assert not (directory / "x").exists()
    assert (directory / "x").read_bytes() == b"".join(pieces)
    assert names(directory) == ["x"]


def test_items_wider_than_a_byte_count_in_bytes(tmp_path):
    with AtomicFile(str(tmp_path / "x")) as file:
        file.write(memoryview(bytes(24)).cast("d"))
        assert file.size_bytes == 24
    assert (tmp_path / "x").stat().st_size == 24


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path, error):
    write_atomically(str(tmp_path / "x"), b"old")
    before = open_descriptors()
    with pytest.raises(error), AtomicFile(str(tmp_path / "x")) as file:
        file.write(b"new")
        raise error
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]
    assert open_descriptors() <= before


@pytest.mark.parametrize("call", ["open", "write", "fsync", "close", "replace"])
def test_a_failing_system_call_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    write_atomically(str(tmp_path / "x"), b"old")
    original, failed = getattr(os, call), []

    def fail_once(*arguments, **options):
        if failed:
            return original(*arguments, **options)
        failed.append(call)
        if call == "close":  # Linux has released the descriptor by the time it reports the error
            original(*arguments)
        raise OSError(errno.ENOSPC, "no space")

    before = open_descriptors()
    monkeypatch.setattr(os, call, fail_once)
    with pytest.raises(StorageError, match="no space"):
        write_atomically(str(tmp_path / "x"), b"new")
    monkeypatch.undo()
    assert failed == [call]
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]
    assert open_descriptors() <= before


def test_short_writes_are_continued(tmp_path, monkeypatch):
    original, sizes = os.write, []

    def short(descriptor, view):
        sizes.append(len(view))
        return original(descriptor, view[:7])

    monkeypatch.setattr(os, "write", short)
    content = bytes(range(100))
    write_atomically(str(tmp_path / "x"), content)
    assert (tmp_path / "x").read_bytes() == content
    assert sizes == list(range(100, 0, -7))


@pytest.mark.parametrize("kind", [AtomicFile, AppendFile])
def test_a_write_that_claims_more_than_it_wrote_is_caught(tmp_path, monkeypatch, kind):
    """What stdio does on a full disk: everything is reported as written, and is not."""
    original = os.write

    def lying(descriptor, view):
        original(descriptor, view[: len(view) // 2])
        return len(view)

    monkeypatch.setattr(os, "write", lying)
    path = str(tmp_path / "x")
    with pytest.raises(IntegrityError, match="must have 100 bytes after the write, got 50"):
        if kind is AtomicFile:
            write_atomically(path, bytes(100))
        else:
            file = AppendFile(path)
            try:
                file.write(bytes(100))
                file.sync()
            finally:
                file.close()
    assert kind is AppendFile or names(tmp_path) == []


def test_a_durable_file_is_forced_before_its_name_and_the_name_after(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace", "fsync_directory"):
        original = getattr(syscalls, name)
        monkeypatch.setattr(
            syscalls, name, lambda *a, name=name, original=original: (order.append(name), original(*a))
        )
    write_atomically(str(tmp_path / "x"), b"1")
    with AtomicFile(str(tmp_path / "y"), durable=False) as file:
        file.write(b"2")
    assert order == ["fsync", "replace", "fsync_directory", "replace"]


def test_a_large_file_is_forced_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FORCED_BYTES", 10)
    sizes, forced, original = [], threading.Event(), syscalls.fsync

    def fsync(descriptor, path):
        sizes.append(os.fstat(descriptor).st_size)
        forced.set()
        return original(descriptor, path)

    monkeypatch.setattr(syscalls, "fsync", fsync)
    with AtomicFile(str(tmp_path / "x")) as file:
        file.write(bytes(9))
        assert not forced.wait(0.01)
        file.write(bytes(9))
        assert forced.wait(60)
        file.write(bytes(9))
    assert sizes[0] == 18
    assert sizes[-1] == 27
    assert len(sizes) == 2
    with AtomicFile(str(tmp_path / "y"), durable=False) as file:
        file.write(bytes(99))
    assert len(sizes) == 2
    file = AppendFile(str(tmp_path / "x"), 27)
    forced.clear()
    file.write(bytes(9))
    assert not forced.wait(0.01)
    file.write(bytes(9))
    assert forced.wait(60)
    file.sync()
    file.close()
    assert sizes[2:] == [45, 45]


@pytest.mark.parametrize("later", ["write", "exit"])
def test_an_early_failure_to_force_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, later):
    write_atomically(str(tmp_path / "x"), b"old")
    monkeypatch.setattr(files, "FORCED_BYTES", 10)
    calls, failed = [], threading.Event()

    def fsync(*_):
        calls.append(1)
        failed.set()
        raise StorageError("fsync", "x", OSError(errno.EIO, "disk broke"))

    monkeypatch.setattr(syscalls, "fsync", fsync)
    before = open_descriptors()
    with pytest.raises(StorageError, match="disk broke"), AtomicFile(str(tmp_path / "x")) as file:
        file.write(bytes(20))
        assert failed.wait(60)
        if later == "write":
            while True:  # until the call is known to have returned
                file.write(bytes(20))
    assert len(calls) == 1, "the kernel may report the error only once"
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]
    assert open_descriptors() <= before


def test_a_discarded_file_stays_discarded(tmp_path):
    with AtomicFile(str(tmp_path / "x")) as file:
        file.write(b"1")
        file.discard()
        file.discard()
    assert names(tmp_path) == []


def test_a_link_at_the_final_name_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "x").symlink_to("theirs")
    write_atomically(str(tmp_path / "x"), b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert (tmp_path / "x").read_bytes() == b"ours"
    assert not (tmp_path / "x").is_symlink()


@pytest.mark.parametrize("target", ["theirs", "nothing"])
def test_creating_refuses_links_and_files(tmp_path, target):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "x").symlink_to(target)
    for path in ("x", "theirs"):
        with pytest.raises(StorageError, match="File exists"):
            syscalls.create(str(tmp_path / path))
    with pytest.raises(StorageError):
        syscalls.open_for_append(str(tmp_path / "x"))
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert names(tmp_path) == ["theirs", "x"]


def test_a_link_at_a_temporary_name_is_removed_and_not_followed(tmp_path, monkeypatch):
    (tmp_path / "theirs").write_bytes(b"theirs")
    monkeypatch.setattr("tokshard.storage.files.temporary_path", lambda path: f"{path}.link")
    (tmp_path / "x.link").symlink_to("theirs")
    write_atomically(str(tmp_path / "x"), b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert names(tmp_path) == ["theirs", "x"]


def test_only_regular_files_are_appended_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    before = open_descriptors()
    for name in ("pipe", "directory"):
        with pytest.raises(StorageError):
            AppendFile(str(tmp_path / name))
    assert open_descriptors() <= before


@settings(max_examples=40)
@given(first=st.binary(max_size=20), keep=st.integers(0, 20), second=st.binary(max_size=20))
def test_an_append_file_continues_from_a_known_size(tmp_path_factory, first, keep, second):
    path = tmp_path_factory.mktemp("append") / "x"
    path.write_bytes(first)
    if keep > len(first):
        with pytest.raises(
            IntegrityError, match=f"must have at least {keep} bytes .recorded as written., got {len(first)}"
        ):
            AppendFile(str(path), keep)
        assert path.read_bytes() == first
        return
    file = AppendFile(str(path), keep)
    file.write(second)
    file.sync()
    assert file.size_bytes == keep + len(second)
    file.close()
    file.close()
    assert path.read_bytes() == first[:keep] + second


def test_an_append_file_that_cannot_be_opened_keeps_no_descriptor(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"12345")
    before = open_descriptors()
    with pytest.raises(IntegrityError):
        AppendFile(str(tmp_path / "x"), 6)
    monkeypatch.setattr(os, "ftruncate", raising(errno.EIO))
    with pytest.raises(StorageError):
        AppendFile(str(tmp_path / "x"), 3)
    assert open_descriptors() <= before


def test_temporary_names_differ_and_are_recognised(tmp_path):
    made = [temporary_path("some/where/corpus.bin") for _ in range(100)]
    assert len(set(made)) == 100
    assert {os.path.dirname(path) for path in made} == {"some/where"}
    assert all(is_temporary(os.path.basename(path)) for path in made)
    assert is_temporary(os.path.basename(temporary_path("line\nbreak")))


def test_processes_of_one_number_on_two_hosts_make_different_names():
    code = "import os; os.getpid = lambda: 7; from tokshard.storage import files; print(files.{}('x'))"
    command = [sys.executable, "-c", code.format("temporary_path")]
    made = {subprocess.check_output(command, text=True) for _ in range(2)}
    assert len(made) == 2
    assert {name.rpartition("-0-")[0] for name in made} == {".x.7"}


@pytest.mark.parametrize(
    "name",
    [
        "corpus.tmp",
        ".corpus.bin.tokshard-tmp",
        "corpus.bin.4711-0.tokshard-tmp",
        ".corpus.bin.4711-0.tokshard-tmp~",
        ".corpus.bin.4711-0.tokshard-tmp\n",
        ".corpus.bin.4711.tokshard-tmp",
        ".corpus.bin.x-0.tokshard-tmp",
        ".corpus.bin.4711-0.TOKSHARD-TMP",
        "..4711-0.tokshard-tmp",
        ".4711-0.tokshard-tmp",
    ],
)
def test_names_of_others_are_not_taken_for_temporary_ones(name):
    assert not is_temporary(name)


def test_removing_a_tree_takes_links_as_links(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_bytes(b"1")
    ours = tmp_path / "ours"
    (ours / "a/b").mkdir(parents=True)
    (ours / "a/b/file").write_bytes(b"2")
    (ours / "link").symlink_to(theirs)
    (ours / "a/dangling").symlink_to("nothing")
    os.mkfifo(ours / "pipe")
    remove_tree(str(ours))
    assert names(tmp_path) == ["theirs"]
    assert names(theirs) == ["file"]


def test_removing_what_is_no_tree(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("theirs")
    (tmp_path / "file").write_bytes(b"1")
    for name in ("link", "file", "absent"):
        remove_tree(str(tmp_path / name))
    assert names(tmp_path) == ["theirs"]
    assert names(tmp_path / "theirs") == ["file"]


def test_new_directories_are_forced_to_the_disk_by_their_parents(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(syscalls, "fsync_directory", forced.append)
    syscalls.make_directory(str(tmp_path / "a/b"))
    syscalls.make_directory(str(tmp_path / "a/b/c") + "/")
    syscalls.make_directory(str(tmp_path / "a/b"))
    assert forced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")]
    monkeypatch.chdir(tmp_path)
    syscalls.make_directory("d/e")
    assert forced[3:] == ["", "d"]
    assert (tmp_path / "d/e").is_dir()


def test_a_directory_that_another_process_makes_and_removes_again_is_made(tmp_path, monkeypatch):
    path = tmp_path / "a"
    original, seen = os.mkdir, []

    def late(name):
        if not seen:
            seen.append(name)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        original(name)

    monkeypatch.setattr(os, "mkdir", late)
    syscalls.make_directory(str(path))
    assert (path.is_dir(), len(seen)) == (True, 1)


@pytest.mark.parametrize("kind", ["file", "dangling"])
def test_a_directory_is_not_made_over_something_else(tmp_path, kind):
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(StorageError, match="File exists"):
        syscalls.make_directory(str(tmp_path / kind))


@pytest.mark.parametrize(
    ("number", "fatal"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_only_file_systems_without_directory_fsync_are_forgiven(tmp_path, monkeypatch, number, fatal):
    monkeypatch.setattr(os, "fsync", raising(number))
    before = open_descriptors()
    if fatal:
        with pytest.raises(StorageError):
            syscalls.fsync_directory(str(tmp_path))
    else:
        syscalls.fsync_directory(str(tmp_path))
    assert open_descriptors() <= before
    with pytest.raises(StorageError):  # of a file's data there is no such excuse
        write_atomically(str(tmp_path / "x"), b"1")
    assert names(tmp_path) == []


def test_errors_name_the_call_the_path_and_the_reason(tmp_path):
    with pytest.raises(StorageError) as caught:
        write_atomically(str(tmp_path / "absent/x"), b"1")
    assert str(caught.value).startswith("cannot create ")
    assert str(caught.value).endswith("No such file or directory")
    assert isinstance(caught.value, OSError)
    assert (caught.value.errno, caught.value.exit_code) == (errno.ENOENT, 7)


def test_a_directory_is_made_though_others_remove_what_it_lies_in(tmp_path):
    """Tasks that end remove the directories that they have emptied."""
    path = tmp_path / "a" / "b" / "c"

    def others():
        for directory in (path, path.parent, path.parent.parent):
            if directory.is_dir():
                directory.rmdir()

    def made():
        syscalls.make_directory(str(path))
        return path.is_dir()

    found = [*interleaved(made, others, inside=("storage/syscalls.py",), prepare=others)]
    assert len(found) > 30
    assert found.count(False) < 3, "it was removed only when it had been made"


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path / "file", tmp_path / "file" / "a", tmp_path / "link", "/proc/tokshard/a/b/c"):
        with pytest.raises(StorageError, match="cannot create directory"):
            syscalls.make_directory(str(path))
