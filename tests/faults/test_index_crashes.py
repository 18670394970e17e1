"""P1, P2, P6, P7, P13 for index caches: killed, failed and starved at every storage call, and controls."""

from __future__ import annotations

import pytest

from faults.processes import scratch_directory
from faults.test_crashes import STEP, first_failures, run


@pytest.fixture
def workdir(tmp_path):
    with scratch_directory(tmp_path) as scratch:
        yield str(scratch / "work")


CAMPAIGNS = {
    "new": ({}, 2),
    "replacing": ({"replacing": True}, 3),
    "killed in the middle of a write": ({"mode": "half", "only": ["write"]}, 1),
    "disk full": ({"mode": "enospc", "only": ["write", "create", "open_for_append", "make_directory"]}, 2),
    "input/output error": ({"mode": "eio", "replacing": True}, 7),
    "fsync fails": ({"mode": "eio", "only": ["fsync", "fsync_directory"]}, 2),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_crash_leaves_no_cache_that_looks_whole_and_is_not(name, workdir):
    changes, step = CAMPAIGNS[name]
    result = run("index_campaign.py", {"workdir": workdir, **changes, "step": STEP or step})
    assert result["points"] >= 4
    assert not result["failures"], first_failures(result)


CONTROLS = {
    "description_first": {"replacing": True},
    "no_withdrawal": {"replacing": True},
    "in_place": {"mode": "half", "only": ["write"]},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_the_campaign_notices_a_broken_writer(control, workdir):
    description = {"workdir": workdir, "control": f"controls.index_writers:{control}", **CONTROLS[control]}
    result = run("index_campaign.py", {**description, "stop_at_failure": True})
    assert result["failures"]
