"""Files are read to the requested length, and only regular ones; a pipe is read only where it was passed."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from support.file_faults import open_descriptors
from tokshard.errors import InputError
from tokshard.storage import reading


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        os.symlink("/dev/zero", "zero")
        os.symlink("/dev/full", "full")
        os.mkdir("directory")
        yield


@pytest.mark.parametrize(
    ("name", "kind"),
    [("pipe", "a named pipe"), ("socket", "a socket"), ("zero", "a device"), ("full", "a device")],
)
def test_special_files_are_refused_without_waiting(place, name, kind):
    before = open_descriptors()
    for read in (reading.open_descriptor, reading.open_file):
        with pytest.raises(InputError) as caught:
            read(name)
        assert str(caught.value) == f"cannot read {name}: it is {kind}, not a regular file"
    assert open_descriptors() <= before


def test_other_errors_are_those_of_the_system(place):
    for read in (reading.open_descriptor, reading.open_file):
        with pytest.raises(IsADirectoryError) as caught:
            read("directory")
        assert caught.value.filename == "directory"
        with pytest.raises(FileNotFoundError):
            read("absent")
    os.symlink("absent", "link")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        reading.open_descriptor("link", os.O_NOFOLLOW)


def test_a_pipe_that_was_passed_is_read(place):
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(b"text"))
    writer.start()
    with reading.open_passed("pipe") as file:
        assert file.read() == b"text"
    writer.join()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    with reading.open_passed(descriptor) as file:
        assert file.read() == b""
    os.close(descriptor)  # it stayed open


@pytest.mark.parametrize("most", [1, 3, 100])
def test_short_reads_are_continued(tmp_path, monkeypatch, most):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(50)))
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, count, offset: pread(file, min(count, most), offset))
    monkeypatch.setattr(os, "preadv", lambda file, into, offset: preadv(file, [into[0][:most]], offset))
    descriptor = reading.open_descriptor(str(path))
    for count, offset in [(0, 0), (7, 0), (50, 0), (10, 45), (5, 50), (5, 90)]:
        wanted = path.read_bytes()[offset : offset + count]
        target = bytearray(count)
        assert reading.read_at(descriptor, count, offset) == wanted
        assert reading.read_into(descriptor, memoryview(target), offset) == len(wanted)
        assert target[: len(wanted)] == wanted
    os.close(descriptor)
