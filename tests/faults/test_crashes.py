"""P1, P2, P3, P6, P7, P8, P39, P43, P69: the table of commands and faults at storage calls, and controls."""

from __future__ import annotations

import os

import pytest

from faults.processes import campaign
from faults.scenarios import SCENARIOS

# Tests draw the same points each time; TOKSHARD_CAMPAIGN_STEP=1 tries all.
FACTOR = "0" if os.environ.get("TOKSHARD_CAMPAIGN_STEP") == "1" else "1"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disturbed_command_leaves_nothing_or_all_and_succeeds_when_repeated(world, name):
    cells = campaign("--world", world, "--json", "--factor", FACTOR, name)[name]
    assert {kind: cell["failures"] for kind, cell in cells.items() if cell["failures"]} == {}
    assert sum(cell["points"] for cell in cells.values()) > 0


def test_random_attempts_end_as_a_clean_run_of_the_last(world):
    """P39: other options, edited inputs and kills in any order."""
    ends = campaign(
        "--world", world, "--json", "--rounds", "attempts", "--factor", 400 if FACTOR == "0" else 8
    )
    assert ends["killed"] > 3


# What each control is caught by: the row, the kind of fault, a part of the reason, and which calls.
CONTROLS = {
    "marker_before_data": [
        ("tokenize", "kill", "the marker is there"),
        ("merge", "kill", "the marker is there"),
        ("export --to olmo", "kill", "the marker is there"),
        ("build-indices", "kill", "the marker is there"),
        ("shard-plan", "kill", "the marker is there"),
    ],
    "old_index_stays": [("tokenize --force", "cut", ".bin and .idx do not belong together", "replace")],
    "old_files_stay": [
        ("merge --force", "kill", "the marker is there"),
        ("shard-plan --force", "kill", "the marker is there"),
        ("export --force", "kill", "the marker is there"),
    ],
    "ignore_failed_fsync": [("tokenize", "EIO", "the error is lost"), ("merge", "EIO", "the error is lost")],
    "never_fsync": [("tokenize", "power", "power failure"), ("shard-plan", "power", "power failure")],
    "never_fsync_directories": [
        ("tokenize", "power", "power failure"),
        ("build-indices", "power", "power failure"),
    ],
    "copy_instead_of_rename": [("merge", "cut", "is neither the old nor the new file")],
    "keep_what_was_appended": [("tokenize", "kill", "again: ")],
    "forget_finished_work": [("tokenize again", "kill", "encoded again")],
    "ignore_short_writes": [("tokenize", "short", "unexpected exit code 6")],
    "ignore_failed_writes": [("tokenize", "limit", "unexpected exit code 6")],
    "sweep_by_name": [("tokenize", "kill", "again: other files")],
}


@pytest.mark.parametrize(
    ("control", "row", "kind", "reason", "calls"),
    [(name, *case, "")[:5] for name, cases in CONTROLS.items() for case in cases],
)
def test_broken_storage_calls_are_noticed(world, control, row, kind, reason, calls):
    words = ("--kinds", kind, "--factor", 0, "--until", reason, "--calls", calls)
    broken = ("--control", f"controls.broken_calls:{control}", *words)
    failures = campaign("--world", world, "--json", *broken, row)[row][kind]["failures"]
    assert any(reason in text for text in failures.values()), failures
