"""Journals: what a checkpoint covers while it is made in the background, and what it does not."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from tokshard.storage.journal import Journal, JournalLine, read_checkpoints

from support.interleaving import interleaved
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.files import AppendFile

GOLDEN = Path(__file__).parents[1] / "golden/formats/journal-2.jsonl"


@pytest.fixture
def gate(monkeypatch):
    """Hold back the forcing of files to the disk until it is opened."""
    gate = threading.Event()
    original = syscalls.fsync

    def waiting(descriptor, path):
        assert gate.wait(240)
        original(descriptor, path)

    monkeypatch.setattr(syscalls, "fsync", waiting)
    return gate


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "journal"), {"data": AppendFile(str(tmp_path / "data"), 0)}


def checkpoints(path):
    return [
        ([entry["n"] for entry in checkpoint.entries], checkpoint.sizes, checkpoint.journal_bytes)
        for checkpoint in read_checkpoints(path)
    ]


def test_a_checkpoint_in_the_background_covers_what_came_before_it(place, gate):
    path, files = place
    journal = Journal(path, 0)
    files["data"].write(b"one")
    journal.append({"n": 1})
    journal.begin_checkpoint(files)
    files["data"].write(b"more")
    journal.append({"n": 2})
    assert not journal.is_settled
    assert checkpoints(path) == []
    gate.set()
    journal.settle()
    ((entries, sizes, end),) = checkpoints(path)
    assert (entries, sizes) == ([1], {"data": 3})
    assert end < os.path.getsize(path), "the second entry follows the checkpoint that does not cover it"
    journal.checkpoint(files)
    assert [checkpoint[:2] for checkpoint in checkpoints(path)] == [([1], {"data": 3}), ([2], {"data": 7})]
    journal.close()


def test_what_follows_a_checkpoint_that_was_never_settled_is_lost(place, gate):
    path, files = place
    journal = Journal(path, 0)
    journal.append({"n": 1})
    journal.begin_checkpoint(files)
    journal.append({"n": 2})
    gate.set()
    journal.close()
    assert [checkpoint[0] for checkpoint in checkpoints(path)] == [[1]]
    assert b'"n":2' not in Path(path).read_bytes()


def test_the_next_checkpoint_waits_for_the_one_under_way(place, gate):
    path, files = place
    journal = Journal(path, 0)
    for n in range(4):
        journal.append({"n": n})
        threading.Timer(0.02, gate.set).start()
        journal.begin_checkpoint(files)
    journal.settle()
    assert [checkpoint[0] for checkpoint in checkpoints(path)] == [[0], [1], [2], [3]]
    journal.close()


def test_a_failure_in_the_background_is_raised_when_it_is_settled(place, monkeypatch):
    path, files = place
    journal = Journal(path, 0)
    journal.append({"n": 1})

    def failing(descriptor, name):
        raise StorageError("write", name, OSError(28, "No space left on device"))

    monkeypatch.setattr(syscalls, "fsync", failing)
    journal.begin_checkpoint(files)
    with pytest.raises(StorageError, match="No space left"):
        journal.settle()
    journal.close()
    assert checkpoints(path) == []


def test_a_file_that_was_cut_is_found_before_the_checkpoint_begins(place):
    path, files = place
    journal = Journal(path, 0)
    files["data"].write(b"something")
    os.truncate(files["data"].path, 3)
    with pytest.raises(IntegrityError):
        journal.begin_checkpoint(files)
    assert journal.is_settled
    journal.close()
    assert checkpoints(path) == []


def test_a_journal_that_goes_while_it_is_read_is_whole_or_absent(place):
    path, files = place
    journal = Journal(path, 0)
    journal.append({"n": 1})
    journal.checkpoint(files)
    journal.close()
    content = Path(path).read_bytes()
    found = interleaved(
        lambda: checkpoints(path),
        lambda: os.unlink(path),
        inside=("storage/journal.py",),
        prepare=lambda: Path(path).write_bytes(content),
    )
    assert {len(result) for result in found} == {0, 1}


def test_a_journal_is_read_and_written_as_its_golden_file(tmp_path):
    path = str(tmp_path / "journal")
    shutil.copy(GOLDEN, path)
    (first, second) = read_checkpoints(path)
    assert (first.entries, first.sizes) == ([{"input": 0}, {"input": 1}], {"tokens": 3, "lengths": 8})
    assert (second.entries, second.sizes, second.journal_bytes) == ([], {"tokens": 3}, os.path.getsize(path))
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    assert [JournalLine.from_bytes(line).to_bytes() for line in lines] == lines


@pytest.mark.parametrize(
    "line",
    [
        JournalLine({"n": 1}).to_bytes()[:-1],
        JournalLine({"n": 1}).to_bytes().replace(b'"n":1', b'"n":2'),
        b'{"entry":{"n":1}}\n',
        b'{"entry":{"n":1},"xxh3_128":null}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\n",
        b"7\n",
        JournalLine({"n": "x" * (4 << 20)}).to_bytes(),
    ],
    ids=range(8),
)
def test_a_cut_or_damaged_line_ends_the_journal(place, line):
    path, files = place
    journal = Journal(path, 0)
    journal.append({"n": 0})
    journal.checkpoint(files)
    journal.close()
    with open(path, "ab") as file:
        file.write(line + JournalLine(checkpoint={}).to_bytes())
    assert [checkpoint[0] for checkpoint in checkpoints(path)] == [[0]]
