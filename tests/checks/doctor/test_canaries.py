"""Reading a launch script executes nothing: no program runs and no file appears."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from support.canary_scripts import LINES, traces, write_programs
from support.command_line import installed
from tokshard.checks.doctor.launch.text import read_launches

JOB = "python pretrain_gpt.py --data-path web --seq-length 16 --train-iters 5 --global-batch-size 8\n"


@pytest.fixture
def work(tmp_path, monkeypatch):
    write_programs(tmp_path)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_reading_executes_no_line(work, line):
    text = f"#!/bin/bash\n{line}\n{JOB}"
    (work / "work/launch.sh").write_text(text)
    (launch,) = read_launches(text, path="launch.sh")
    assert launch.arguments.seq_length == 16
    assert traces(work) == []


def test_the_command_executes_no_line_of_a_script_with_all(work):
    blocks = "".join(f'if [ "$CHOICE" = {number} ]; then\n{line}\nfi\n' for number, line in enumerate(LINES))
    (work / "work/launch.sh").write_text(f"#!/bin/bash\n{blocks}{JOB}")
    done = installed("doctor", "launch.sh", cwd=work / "work")
    assert done.returncode in (0, 1), done
    assert traces(work) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "X=$(touch canary)", "--set", "Y=`touch canary`", "launch.sh"),
        ("launch.sh", "$(touch canary)", "`touch canary`"),
        (
            "--",
            "python",
            "pretrain_gpt.py",
            "--data-path",
            "$(touch canary)",
            "--seq-length",
            "`touch canary`",
        ),
        ("python pretrain_gpt.py --data-path $(touch canary) > canary",),
    ],
)
def test_the_command_executes_no_word_of_its_own_command_line(work, words):
    (work / "work/launch.sh").write_text(f'#!/bin/bash\neval "A=$X$Y$1$2"\n{JOB.replace("web", "$X$1")}')
    done = installed("doctor", *words, cwd=work / "work")
    assert done.returncode in (0, 1, 2), done
    assert traces(work) == []


def test_bash_would_execute_the_lines(tmp_path):
    silent = []
    for number, line in enumerate(LINES):
        directory = tmp_path / str(number)
        directory.mkdir()
        write_programs(directory)
        subprocess.run(
            [shutil.which("bash"), "--norc", "-c", line],
            cwd=directory / "work",
            env={"PATH": str(directory / "bin")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        if not traces(directory):
            silent.append(line)
    # An older bash knows fewer of them.
    assert len(silent) <= len(LINES) // 10, silent
