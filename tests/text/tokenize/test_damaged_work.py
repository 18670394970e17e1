"""Unfinished work that is damaged: the next run does it again, and its output is that of a clean run."""

import shutil
from pathlib import Path

import pytest

from support.array_corpora import content
from support.command_line import SAMPLE, installed, tokshard

COMMAND = ("tokenize", "corpus.jsonl", "--tokenizer", str(SAMPLE / "tokenizer.json"), "--workers", "1")
RUN = (*COMMAND, "-o", "out", "--unit-size", "512", "--on-error", "skip")
WORK = Path("out.tokshard/work")
JOURNAL = "journal.jsonl"
STREAMS = ("0.lengths", "0.sequences", "0.provenance.bin", "0.rejected.jsonl", "0.units.jsonl")


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def swapped(content):
    # Two numbers of eight bytes: two offsets, or two pairs of lengths.
    return content[8:16] + content[:8] + content[16:]


DAMAGES = {
    "flipped": flipped,
    "swapped": swapped,
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """Return a directory with the work of a run that stopped after a checkpoint, and a clean output."""
    directory = tmp_path_factory.mktemp("unfinished")
    lines = (SAMPLE / "stories.jsonl").read_bytes().splitlines(keepends=True)[:400]
    lines[:2] = b'{"text": ["a", "b"]}\n', b'{"text": 7}\n'
    (directory / "corpus.jsonl").write_bytes(b"".join(lines) + b"[]\n")
    clean = (*COMMAND, "-o", "clean", "--unit-size", "512", "--on-error", "skip")
    assert tokshard(*clean, cwd=directory).returncode == 0
    assert tokshard(*RUN, "--max-errors", "1", cwd=directory).returncode == 3
    assert (directory / WORK / JOURNAL).read_bytes().count(b'"sizes"') >= 1
    return directory


@pytest.fixture
def place(unfinished, tmp_path, monkeypatch):
    shutil.copytree(unfinished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_output():
    assert content("out") == content("clean")
    assert tokshard("verify", "out", "--level", "deep").returncode == 0


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*STREAMS, JOURNAL])
def test_damaged_stream_is_written_again(place, name, damage):
    path = WORK / name
    before = path.read_bytes()
    path.write_bytes(DAMAGES[damage](before))
    assert path.read_bytes() != before
    done = tokshard(*RUN)
    assert done.returncode == 0, done.stderr
    if name in STREAMS:
        assert "unfinished work is damaged: its units are encoded again" in done.stderr
    check_output()


@pytest.mark.parametrize("name", ["0.bin", *STREAMS, JOURNAL, "run.json"])
def test_missing_stream_is_written_again(place, name):
    (WORK / name).unlink()
    done = tokshard(*RUN)
    assert done.returncode == 0, done.stderr
    check_output()


@pytest.mark.parametrize("name", ["0.sequences", "0.provenance.bin", "0.bin"])
def test_installed_command_does_damaged_work_again(place, name):
    path = WORK / name
    damage = "truncated" if name == "0.bin" else "swapped" if name == "0.provenance.bin" else "flipped"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    done = installed(*RUN)
    assert done.returncode == 0, done.stderr
    assert "unfinished work is damaged: its units are encoded again" in done.stderr
    check_output()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_part_is_encoded_again(place, damage):
    parts = sorted((WORK / "parts").glob("*.part"))
    path = parts[len(parts) // 2]
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert tokshard(*RUN).returncode == 0
    check_output()


def test_undamaged_work_is_reused(place):
    done = tokshard(*RUN)
    assert done.returncode == 0
    assert "reusing" in done.stderr
    assert "damaged" not in done.stderr
    check_output()
