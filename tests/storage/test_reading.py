"""Files are read to the requested length, and only regular ones; a pipe is read only where it was passed.

Errors of small files are sentences that name the kind of file.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from pathlib import Path

import pytest

from support.file_faults import open_descriptors
from tokshard.core import json_text
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError
from tokshard.storage import reading
from tokshard.storage.reading import read_json_object, read_small_file, read_text


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
    for read in (reading.open_regular, reading.open_file):
        with pytest.raises(InputError) as caught:
            read(name)
        assert str(caught.value) == f"cannot read {name}: it is {kind}, not a regular file"
    assert open_descriptors() <= before


def test_other_errors_are_those_of_the_system(place):
    for read in (reading.open_regular, reading.open_file):
        with pytest.raises(IsADirectoryError) as caught:
            read("directory")
        assert caught.value.filename == "directory"
        with pytest.raises(FileNotFoundError):
            read("absent")
    os.symlink("absent", "link")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        reading.open_regular("link", os.O_NOFOLLOW)


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
    descriptor = reading.open_regular(str(path))
    for count, offset in [(0, 0), (7, 0), (50, 0), (10, 45), (5, 50), (5, 90)]:
        wanted = path.read_bytes()[offset : offset + count]
        target = bytearray(count)
        assert reading.read_at(descriptor, count, offset) == wanted
        assert reading.read_into(descriptor, memoryview(target), offset) == len(wanted)
        assert target[: len(wanted)] == wanted
    os.close(descriptor)


def test_the_bytes_and_the_text_are_those_of_the_file(tmp_path):
    path = tmp_path / "words"
    path.write_bytes("0.7 dätä/web\r\n".encode())
    assert read_small_file(str(path)) == path.read_bytes()
    assert read_text(str(path)) == "0.7 dätä/web\r\n"


def test_what_is_wrong_is_told(tmp_path, monkeypatch):
    missing, broken = str(tmp_path / "nothing"), tmp_path / "broken"
    with pytest.raises(MissingFileError, match=re.escape(f"recipe not found: {missing}")) as caught:
        read_small_file(missing, "recipe", hint="write one")
    assert (caught.value.filename, caught.value.hint) == (missing, "write one")
    with pytest.raises(InputError, match=r"cannot read recipe .*: it is a directory"):
        read_text(str(tmp_path), "recipe")
    broken.write_bytes(b"abc\xff")
    with pytest.raises(InputError, match="must be UTF-8: invalid start byte at byte 3"):
        read_text(str(broken))
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 3)
    with pytest.raises(InputError, match="must have at most 3 bytes"):
        read_small_file(str(broken))
    with pytest.raises(StorageError, match="cannot read"):
        read_small_file(f"{broken}/inside")


def test_the_size_is_limited(tmp_path, monkeypatch):
    for module in (reading, json_text):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", 100)
    for size, fits in ((100, True), (101, False), (100_000, False)):
        (tmp_path / "x").write_bytes(b"{}" + b" " * (size - 2))
        if fits:
            assert read_json_object(str(tmp_path / "x")) == {}
        else:
            with pytest.raises(IntegrityError, match="must have at most 100 bytes, got more"):
                read_json_object(str(tmp_path / "x"))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json_object(str(tmp_path / "absent"))
    (tmp_path / "file").write_bytes(b"{}")
    with pytest.raises(NotADirectoryError):
        read_json_object(str(tmp_path / "file/x"))
    with pytest.raises(StorageError, match="cannot read"):
        read_json_object(str(tmp_path))
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(StorageError, match="cannot read"):
        read_json_object(str(tmp_path / "circle"))
