"""A working directory that was deleted: absolute paths work, and errors about relative ones say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from faults.every_command import COMMANDS, make_inputs
from support.command_line import tokshard

TESTS = Path(__file__).parents[1]
_PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from faults.every_command import invoke
commands = json.loads(sys.argv[2])
os.mkdir("gone")
os.chdir("gone")
os.rmdir(os.getcwd())
print(json.dumps([invoke(words) for words in commands]))
"""
_PATHS = ["web", "code", "mix", "plan", "cache", "tok", "in/b.jsonl.gz"]
_SKIPPED = {"in/a.jsonl", "in/table.parquet", "both", "pooled", "packed", "next", "recipe.toml", "."}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("deleted")
    here = Path.cwd()
    os.chdir(place)
    make_inputs()
    os.chdir(here)
    for words in BUILDING:
        done = tokshard(*words, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


MIX = ["--split", "1,0,0", "--seq-length", "32", "--num-samples", "100"]
BUILDING = [
    ["tokenize", "in/b.jsonl.gz", "-o", "web", "--tokenizer", "tok", "--workers", "1"],
    ["merge", "web", "-o", "code"],
    ["build-indices", "web", *MIX, "--cache-dir", "cache"],
    ["blend", "0.6", "web", "0.4", "code", *MIX, "-o", "mix"],
    ["shard-plan", "mix", "--data-parallel", "2", "-o", "plan"],
]
READING = [words for words in COMMANDS if not _SKIPPED & set(words) and "-o" not in words]


def run_deleted(directory, commands):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(TESTS), json.dumps(commands)],
        cwd=directory,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_errors_about_relative_paths_name_the_directory(directory):
    for words, (code, shown) in zip(
        [*BUILDING, *READING], run_deleted(directory, [*BUILDING, *READING]), strict=True
    ):
        assert code in {3, 7}, words
        assert "(the working directory was deleted)\nhint: change to an existing directory, or" in shown


def test_absolute_paths_work(directory):
    def absolute(words):
        outputs = [
            f"new-{word}" if before in {"-o", "--cache-dir"} else word for before, word in pairwise(words)
        ]
        paths = {*_PATHS, *(word for word in outputs if word.startswith("new-"))}
        return [words[0], *(str(directory / word) if word in paths else word for word in outputs)]

    # A launch script and a dataset name inputs by relative paths.
    with_paths = [
        words for words in [*BUILDING, *READING] if words[0] != "doctor" and "in/b.jsonl.gz:3" not in words
    ]
    commands = [absolute(words) for words in with_paths]
    assert len(commands) > 9
    for words, (code, shown) in zip(commands, run_deleted(directory, commands), strict=True):
        assert code == 0, (words, shown)
        assert "was deleted" not in shown


def test_the_help_works(directory):
    ((code, shown),) = run_deleted(directory, [["--help"]])
    assert code == 0
    assert "Usage: tokshard" in shown
