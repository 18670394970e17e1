"""P8: files of others stay as they are, whatever happens to a run; what our own runs leave behind goes.

What must hold: a run touches nothing outside of ``PREFIX.tokshard/work/`` but the files that it makes
under their own names. ``work/`` is ours altogether: everything in it goes with it, links as links. A link
in the place of one of our directories is refused.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from faults.campaign import outputs
from faults.processes import HERE
from support import forked_commands

TEXT = b"not yours"
FILES = [
    # temporary files of other programs, and backups of editors
    "out/x.tmp", "out/x.bin.tmp", "out/download.part", "out/x.bin~", "out/#x.idx#", "out/.x.bin.swp",
    # looking like ours
    "out/.x.bin.tokshard-tmp", "out/x.bin.4711-0.tokshard-tmp", "out/000000-000000000.part", "out/lock",
    "out/plan.json", "out/manifest.json", "out/units.jsonl", "out/0.bin", "out/work/0.bin",
    # of other prefixes, under way this moment
    "out/.y.bin.4711-0.tokshard-tmp", "out/.x2.bin.4711-0.tokshard-tmp", "out/.x.y.bin.4711-0.tokshard-tmp",
    "out/x2.tokshard/work/plan.json", "out/x2.tokshard/lock", "out/x2.bin", "out/x2.idx",
    # inside of our directory, but not in work/
    "out/x.tokshard/notes.txt", "out/x.tokshard/notes.tmp", "out/x.tokshard/000000-000000000.part",
    "out/x.tokshard/manifest.json~", "out/x.tokshard/.manifest.json.swp", "out/x.tokshard/work.bak/plan.json",
    "out/x.tokshard/.manifest.json.tokshard-tmp", "out/x.tokshard/lock.old", "out/x.tokshard/parts/x.part",
    "out/x.tokshard/raw/raw-0-0.jsonl", "elsewhere/theirs.part", "elsewhere/.x.4711-0.tokshard-tmp",
]  # fmt: skip
LINKS = ["out/link.part", "out/x.tokshard/link", "out/x.tokshard/link.tmp", "out/.x.idx.4711-1.tokshard-tmp"]
DIRECTORIES = ["out/empty.tmp", "out/x.tokshard/empty", "out/.x.bin.4711-2.tokshard-tmp"]
PIPES = ["out/pipe.part", "out/x.tokshard/pipe"]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_corpus()
    return tmp_path


def make_corpus():
    lines = [json.dumps({"text": f"document {i}"}) for i in range(40)]
    Path("corpus.jsonl").write_text("\n".join(lines) + "\n")
    os.utime("corpus.jsonl", (1, 1))  # it stands in the manifest


def place_strangers():
    for name in FILES:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(TEXT)
    for name in DIRECTORIES:
        Path(name).mkdir()
    for name in LINKS:
        Path(name).symlink_to(Path("elsewhere").absolute())
    for name in PIPES:
        os.mkfifo(name)


def state_of_strangers():
    """Return what they are, which they are and when they were changed; None for those that are gone."""
    found = {}
    for name in [*FILES, *LINKS, *DIRECTORIES, *PIPES]:
        if os.path.lexists(name):
            status = os.lstat(name)
            content = Path(name).read_bytes() if name in FILES else os.path.islink(name) and os.readlink(name)
            found[name] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
        else:
            found[name] = None
    return found


TOKENIZE = ["tokenize", "corpus.jsonl", "-o", "out/x", "--unit-size", "300", "--quiet"]
# The files that get their names, in order: the plan, 4 parts, 4 staged files, the seal, .bin, .idx, ...
KILLS = [["replace", 4], ["replace", 10], ["replace", 12], ["unlink", 9]]


def run(*more, kill=None, control=None):
    wanted = {"arguments": [*TOKENIZE, *more], "kill": kill, "control": control}
    done = forked_commands.run([json.dumps(wanted)], program=HERE / "killed.py")
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with pytest.MonkeyPatch.context() as context:
        context.chdir(tmp_path_factory.mktemp("expected"))
        make_corpus()
        run()
        return outputs(["out/x"])


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("more", [(), ("--no-resume", "--force")])
def test_strangers_survive_killed_and_resumed_runs(directory, expected, kill, more):
    place_strangers()
    before = state_of_strangers()
    run(kill=kill)
    assert state_of_strangers() == before
    run(*more)
    assert state_of_strangers() == before
    assert outputs(["out/x"]) == expected
    assert not os.path.lexists("out/x.tokshard/work")


def test_strangers_survive_replacement(directory, expected):
    place_strangers()
    before = state_of_strangers()
    for more in ((), ("--force", "--no-provenance"), ("--force",)):
        run(*more)
        assert state_of_strangers() == before
    assert outputs(["out/x"]) == expected


def test_a_greedy_sweeper_is_caught(directory):
    place_strangers()
    before = state_of_strangers()
    run(control="controls.greedy_sweeper:sweep_whatever_ends_with_tmp_or_part")
    assert state_of_strangers() != before


OURS = [
    "out/x.tokshard/work/.plan.json.4711-0.tokshard-tmp",
    "out/x.tokshard/work/.0.idx.4711-3.tokshard-tmp",
    "out/x.tokshard/work/parts/.000000-000000000.part.4711-0.tokshard-tmp",
    "out/x.tokshard/work/raw/raw-0-0.jsonl",
    "out/x.tokshard/work/raw/raw-0-5.jsonl",
]


def test_what_our_own_runs_left_goes_with_the_next_run_and_not_with_its_end(directory):
    run(kill=["replace", 4])
    for name in OURS:
        Path(name).write_bytes(b"half")
    run(kill=["replace", 2])
    assert [name for name in OURS if os.path.lexists(name)] == []
    assert Path("out/x.tokshard/work/plan.json").exists()
    run()
    assert sorted(os.listdir("out/x.tokshard")) == ["manifest.json", "provenance.bin", "units.jsonl"]


def test_whatever_lies_in_the_work_directory_goes_and_links_are_not_followed(directory):
    place_strangers()
    before = state_of_strangers()
    run(kill=["replace", 4])
    theirs = Path("elsewhere").absolute()
    for folder in (Path("out/x.tokshard/work"), Path("out/x.tokshard/work/parts")):
        (folder / "notes.txt").write_bytes(TEXT)
        (folder / "b.part").write_bytes(TEXT)
        (folder / "000000-000000007.part").symlink_to(theirs / "theirs.part")
        (folder / ".a.4711-0.tokshard-tmp").symlink_to(theirs)
        (folder / ".b.4711-0.tokshard-tmp/c").mkdir(parents=True)
        (folder / "d.part/e").mkdir(parents=True)
        (folder / "f.part").symlink_to(theirs)
        os.mkfifo(folder / "g.part")
    run()
    assert state_of_strangers() == before
    assert not os.path.lexists("out/x.tokshard/work")
