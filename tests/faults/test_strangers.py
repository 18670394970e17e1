"""P8, P21: what others put among our files and directories stays as it is, and links are not followed.

That files of others survive every fault of every command is in the table of ``test_crashes.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from faults.processes import output
from support.tokenize_runs import run_tokenize
from tokshard.errors import InputError, OutputExistsError, StorageError

SIDECARS = "out/x.tokshard"
WORK = f"{SIDECARS}/work"
BAD = b'{"text": 7}\n'


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A corpus whose last record is bad, and files of others."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"document {i}" * (i % 5), "title": f"{i}"}) for i in range(40)]
    Path("corpus.jsonl").write_bytes("\n".join(lines).encode() + b"\n" + BAD)
    for name in ("run.json", "work/run.json", "parts/a.part", "raw/b.jsonl", ".x.1-1.tokshard-tmp"):
        (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / name).write_bytes(b"{}")
    return tmp_path


def tokenize(prefix="out/x", **options):
    return run_tokenize("corpus.jsonl", prefix, unit_size=300, **options)


def leave_unfinished(prefix="out/x"):
    with pytest.raises(InputError):
        tokenize(prefix)


def mend():
    content = Path("corpus.jsonl").read_bytes().replace(BAD, b"")
    Path("corpus.jsonl").write_bytes(content)
    os.utime("corpus.jsonl", (1, 1))  # it stands in the manifest


def state_of(directory):
    return {path: (os.lstat(path).st_mtime_ns, os.lstat(path).st_ino) for path in directory.rglob("*")}


@pytest.mark.parametrize("link", [SIDECARS, WORK])
@pytest.mark.parametrize("options", [{}, {"resume": False}, {"force": True}])
def test_links_in_the_place_of_our_directories_are_refused(directory, link, options):
    mend()
    before = state_of(directory / "theirs")
    Path(link).parent.mkdir(parents=True)
    Path(link).symlink_to(directory / "theirs")
    with pytest.raises(OutputExistsError, match="is a symbolic link") as caught:
        tokenize(**options)
    assert link in str(caught.value)
    assert state_of(directory / "theirs") == before
    assert Path(link).is_symlink()


def test_a_link_in_the_place_of_a_second_output_is_refused(directory):
    mend()
    before = state_of(directory / "theirs")
    Path("out").mkdir()
    Path("out/x_title_document.tokshard").symlink_to(directory / "theirs")
    both = {"fields": ("text", "title")}
    with pytest.raises(OutputExistsError, match="is a symbolic link"):
        tokenize(**both)
    assert state_of(directory / "theirs") == before
    Path("out/x_title_document.tokshard").unlink()
    assert tokenize(**both).outputs[1].path_prefix == "out/x_title_document"


@pytest.mark.parametrize("name", ["parts", "raw"])
def test_links_in_the_work_directory_go_and_are_not_followed(directory, name):
    leave_unfinished()
    before = state_of(directory / "theirs")
    os.rename(f"{WORK}/{name}", "away")
    Path(WORK, name).symlink_to(directory / "theirs")
    mend()
    tokenize()
    tokenize("clean/x")
    assert output("out/x") == output("clean/x")
    assert state_of(directory / "theirs") == before


def test_whatever_lies_in_the_work_directory_goes_with_it(directory):
    leave_unfinished()
    before = state_of(directory / "theirs")
    for folder in (Path(WORK), Path(WORK, "parts")):
        (folder / "notes.txt").write_bytes(b"half")
        (folder / "b.part").write_bytes(b"half")
        (folder / "0000000000000000-000000007.part").symlink_to(directory / "theirs/parts/a.part")
        (folder / ".a.4711-0.tokshard-tmp").symlink_to(directory / "theirs")
        (folder / ".b.4711-0.tokshard-tmp/c").mkdir(parents=True)
        (folder / "d.part/e").mkdir(parents=True)
        (folder / "f.part").symlink_to(directory / "theirs")
        os.mkfifo(folder / "g.part")
    mend()
    tokenize()
    tokenize("clean/x")
    assert output("out/x") == output("clean/x")
    assert state_of(directory / "theirs") == before
    assert not os.path.lexists(WORK)


@pytest.mark.parametrize("name", ["lock", "manifest.json"])
def test_a_directory_in_the_place_of_a_file_of_ours_is_an_error_of_the_storage(directory, name):
    Path(SIDECARS, name, "theirs").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        tokenize()
    assert os.listdir(f"{SIDECARS}/{name}") == ["theirs"]


def test_the_directory_of_a_failed_run_is_removed_unless_it_has_files_of_others(directory):
    Path("corpus.jsonl").write_bytes(BAD)
    leave_unfinished()
    assert not Path("out").exists() or os.listdir("out") == []
    Path(SIDECARS).mkdir(parents=True)
    Path(SIDECARS, "note").touch()
    leave_unfinished()
    assert os.listdir(SIDECARS) == ["note"]


@pytest.mark.parametrize(
    "prefix", ["o[x]*?", os.fsdecode(b"o\xff"), "new/deep/x", "./a/../x", "a b\nc", "-x"]
)
def test_odd_prefixes_are_resumed_and_published(directory, prefix):
    Path("a").mkdir()
    leave_unfinished(prefix)
    mend()
    tokenize(prefix)
    assert tokenize(prefix).action == "found"
    assert os.path.isfile(f"{prefix}.bin")
    assert os.path.isfile(f"{prefix}.idx")
