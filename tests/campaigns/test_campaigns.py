"""The program of the campaigns: each class for a moment, with its controls, and the page with its table."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from campaigns.__main__ import main
from campaigns.classes import CLASSES
from campaigns.table import table
from campaigns.tally import Tally

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/reliability.md"


def soak(*words):
    """Run the program in this process; it starts others, which do the work."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def own_soak(*words):
    tests = ROOT / "tests"
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    command = [sys.executable, "-m", "campaigns", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("name", CLASSES)
def test_some_cases_of_each_class_and_its_controls(name, tmp_path):
    counts = tmp_path / "counts.json"
    done = soak("--only", name, "--minutes", "0.001", "--workers", "1", "--seed", "2", "--json", str(counts))
    assert done.returncode == 0, done.stdout + done.stderr
    found = Tally.of_json(json.loads(counts.read_text())["classes"][name])
    if found.skipped:
        pytest.skip(found.skipped)
    assert found.outcomes.total() >= 3
    assert found.controls
    assert set(found.controls.values()) == {None}
    assert f"| {name} | {found.cases:,} {CLASSES[name].unit} |" in done.stdout


def test_a_failure_is_counted_and_names_the_command_that_repeats_it():
    done = own_soak("--only", "mutants", "--case", "nothing/cut")
    assert done.returncode == 1
    assert "FAILED: scripts/soak --only mutants --seed 1 --case nothing/cut\n" in done.stdout
    assert "| mutants | 1 indexes | the campaign failed: 1 | 1 |" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--only", "kill"], "--only must name classes"), (["--case", "x"], "--case requires --only")],
)
def test_wrong_options(words, message):
    done = soak(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_counts_of_an_earlier_run_are_added(tmp_path):
    tally = Tally(5, Counter(x=5), seconds=60.0, controls={"positive: x": "was not caught"})
    (tmp_path / "counts.json").write_text(json.dumps({"classes": {"plans": tally.to_json()}}))
    add = ["--add", str(tmp_path / "counts.json")]
    done = soak("--only", "mutants", "--minutes", "0.001", "--workers", "1", *add)
    assert done.returncode == 1  # a control of the earlier run
    assert "| plans | 5 chains of plans | x: 5 | 0 | 0 of 1 as expected | 1.0 min |" in done.stdout
    assert "| mutants | " in done.stdout


def test_a_control_that_was_not_caught_is_a_failure():
    caught, missed = Tally(controls={"positive: x": None}), Tally(controls={"positive: x": "was not caught"})
    assert not caught.failed
    assert missed.failed
    assert "0 of 1 as expected" in table({"plans": missed})


def test_the_page_shows_a_table_of_these_classes():
    page = PAGE.read_text()
    shown = re.findall(r"(?m)^\| (\w+) \| [\d,]+ ([a-z ]+) \|", page)
    assert dict(shown) == {name: each.unit for name, each in CLASSES.items()}
    assert re.findall(r"(?m)^\| `(\w+)` \|", page) == list(CLASSES)
