"""P43: reads and writes may transfer fewer bytes than requested: no end of a file, and no damage.

All commands are run with calls that transfer one byte (or a few, of large buffers), half of the bytes or a
random number of them: each makes the files, and says what it says, when nothing disturbs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KINDS = ["one", "half", "random"] if os.environ.get("TOKSHARD_CAMPAIGN_STEP") == "1" else ["one"]
EVENTS = "events.jsonl"  # with times


@pytest.fixture(scope="module")
def every_command(tmp_path_factory):
    """Run all commands, always in a directory of the same name; return what they say and the files."""
    base = tmp_path_factory.mktemp("runs")

    def run(kind, *words):
        directory = base / "here"
        paths = os.pathsep.join([str(HERE / "short_counts"), str(HERE.parent)])
        done = subprocess.run(
            [sys.executable, str(HERE / "every_command.py"), str(directory), *words],
            env={**os.environ, "PYTHONPATH": paths, "TOKSHARD_SHORT": kind},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        files = {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file() and path.name != EVENTS
        }
        directory.rename(base / f"done-{len(list(base.iterdir()))}")
        return json.loads(done.stdout), files

    return run


@pytest.fixture(scope="module")
def undisturbed(every_command):
    said, files = every_command("")
    codes = [code for _, code, _ in said["commands"]]
    assert codes == [3, *[0] * (len(codes) - 2), 1]  # of the run with a bad record, and of doctor
    assert len(files) > 50
    return said, files


@pytest.mark.parametrize("kind", KINDS)
def test_short_counts_change_nothing(every_command, undisturbed, kind):
    said, files = every_command(kind)
    assert said["commands"] == undisturbed[0]["commands"]
    assert said["batches"] == undisturbed[0]["batches"]
    assert [name for name in files | undisturbed[1] if files.get(name) != undisturbed[1].get(name)] == []


def test_a_naive_reader_is_caught(every_command, undisturbed):
    said, _ = every_command("half", "naive")
    assert said["commands"][0] != undisturbed[0]["commands"][0]
    assert "is not a complete part" in said["commands"][0][2]
