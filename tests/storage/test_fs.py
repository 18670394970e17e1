"""Whether files exist: an error of the file system is not taken for the absence of a file."""

import errno
import os

import pytest

from support.file_faults import raising
from tokshard.errors import StorageError
from tokshard.storage import fs

QUERIES = (fs.exists, fs.lexists, fs.isfile)


def test_what_exists(tmp_path):
    file, link, broken, loop = (tmp_path / name for name in ("file", "link", "broken", "loop"))
    file.write_bytes(b"")
    link.symlink_to(file)
    broken.symlink_to(tmp_path / "nothing")
    loop.symlink_to(loop)
    answers = {
        str(file): (True, True, True),
        str(link): (True, True, True),
        str(broken): (False, True, False),
        str(loop): (False, True, False),
        str(tmp_path): (True, True, False),
        str(tmp_path / "nothing"): (False, False, False),
        str(file / "inside"): (False, False, False),
        "a" * 5000: (False, False, False),
        "a\0b": (False, False, False),
    }
    for path, answer in answers.items():
        assert tuple(query(path) for query in QUERIES) == answer, path
        assert answer == (os.path.exists(path), os.path.lexists(path), os.path.isfile(path))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM])
@pytest.mark.parametrize("query", QUERIES)
def test_an_error_is_not_taken_for_absence(query, number, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "stat", raising(number))
    with pytest.raises(StorageError, match="cannot read") as caught:
        query(str(tmp_path / "file"))
    assert caught.value.errno == number
