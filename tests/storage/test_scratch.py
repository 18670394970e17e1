"""Scratch directories: private, gone at the end, and those of dead processes removed by the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.file_faults import names
from tokshard.storage.scratch import scratch_directory

OLD = (1, 1)


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_it_is_private_and_goes_with_all_that_is_in_it(base):
    with scratch_directory() as first, scratch_directory() as second:
        assert first != second
        assert {Path(directory).parent for directory in (first, second)} == {base}
        assert {os.stat(directory).st_mode & 0o777 for directory in (first, second)} == {0o700}
        Path(first, "file").write_bytes(b"x")
        Path(first, "folder").mkdir()
    assert names(base) == []


def test_it_goes_after_an_exception_too(base):
    with pytest.raises(KeyError), scratch_directory():
        raise KeyError
    assert names(base) == []


HOLD = """
import sys, tempfile, time
from tokshard.storage.scratch import scratch_directory
tempfile.tempdir = sys.argv[1]
with scratch_directory() as directory:
    open(f"{directory}/raw", "w").close()
    print(directory, flush=True)
    time.sleep(600)
"""


def killed_with_one(base) -> str:
    """Return the directory that a killed process has left."""
    command = [sys.executable, "-c", HOLD, str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found = process.stdout.readline().strip()
        process.kill()
    return found


def test_what_killed_processes_leave_is_removed_and_what_others_use_is_not(base):
    left, recent = killed_with_one(base), killed_with_one(base)
    os.utime(left, OLD)
    with scratch_directory() as living:
        os.utime(living, OLD)
        assert not Path(left).exists()
        assert Path(recent).exists()  # it may be one whose owner has not locked it yet
        with scratch_directory():
            assert Path(living).exists()
    assert names(base) == [Path(recent).name]


def test_strangers_stay(base):
    beginning = f"tokshard-scratch-{os.getuid()}-"
    (base / "elsewhere").mkdir()
    (base / f"{beginning}link").symlink_to("elsewhere")
    (base / f"{beginning}file").write_bytes(b"theirs")
    (base / "tokshard-scratch-x").mkdir()
    for path in base.iterdir():
        os.utime(path, OLD, follow_symlinks=False)
    before = names(base)
    with scratch_directory():
        pass
    assert names(base) == before
