"""Small files that users write: what is wrong with one is told in a sentence of its own kind."""

from __future__ import annotations

import re

import pytest

from tokshard.errors import InputError, MissingFileError, StorageError
from tokshard.storage import textfile
from tokshard.storage.textfile import read_small_file, read_text


def test_the_bytes_and_the_text_are_those_of_the_file(tmp_path):
    path = tmp_path / "words"
    path.write_bytes("0.7 dätä/web\r\n".encode())
    assert read_small_file(str(path)) == path.read_bytes()
    assert read_text(str(path)) == "0.7 dätä/web\r\n"


def test_what_is_wrong_is_told(tmp_path, monkeypatch):
    missing, broken = str(tmp_path / "nothing"), tmp_path / "broken"
    with pytest.raises(MissingFileError, match=re.escape(f"there is no recipe {missing}")) as caught:
        read_small_file(missing, "recipe", hint="write one")
    assert (caught.value.filename, caught.value.hint) == (missing, "write one")
    with pytest.raises(InputError, match="is a directory, and no recipe"):
        read_text(str(tmp_path), "recipe")
    broken.write_bytes(b"abc\xff")
    with pytest.raises(InputError, match="is not UTF-8: invalid start byte at byte 3"):
        read_text(str(broken))
    monkeypatch.setattr(textfile, "MAX_TEXT_BYTES", 3)
    with pytest.raises(InputError, match="is larger than 3 bytes"):
        read_small_file(str(broken))
    with pytest.raises(StorageError, match="cannot read"):
        read_small_file(f"{broken}/inside")
