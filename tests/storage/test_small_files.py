"""Small files read whole: what is wrong with one is told in a sentence of its own kind."""

from __future__ import annotations

import re

import pytest

from tokshard.core import json_text
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError
from tokshard.storage import small_files
from tokshard.storage.small_files import read_json_object, read_small_file, read_text


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
    monkeypatch.setattr(small_files, "MAX_TEXT_BYTES", 3)
    with pytest.raises(InputError, match="must have at most 3 bytes"):
        read_small_file(str(broken))
    with pytest.raises(StorageError, match="cannot read"):
        read_small_file(f"{broken}/inside")


def test_the_size_is_limited(tmp_path, monkeypatch):
    for module in (small_files, json_text):
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
