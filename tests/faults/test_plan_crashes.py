"""P1, P2, P6, P7, P8 for plans: killed, failed and starved at every storage call, and controls."""

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
    "replacing": ({"replacing": True}, 2),
    "in another world": ({"kind": "replan", "replacing": True}, 3),
    "with other weights": ({"kind": "reweighted"}, 3),
    "killed in the middle of a write": ({"mode": "half", "only": ["write"], "kind": "reweighted"}, 2),
    "disk full": (
        {"mode": "enospc", "only": ["write", "create", "make_directory"], "kind": "reweighted"},
        2,
    ),
    "fsync fails": ({"mode": "eio", "only": ["fsync", "fsync_directory"], "replacing": True}, 2),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_crash_leaves_no_plan_that_looks_whole_and_is_not(name, workdir):
    changes, step = CAMPAIGNS[name]
    result = run("plan_campaign.py", {"workdir": workdir, **changes, "step": STEP or step})
    assert result["points"] >= 4
    assert not result["failures"], first_failures(result)


CONTROLS = {
    "plan_first": {},
    "no_withdrawal": {"replacing": True},
    "no_sweep": {"kind": "reweighted", "mode": "half", "only": ["write"]},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_the_campaign_notices_a_broken_writer(control, workdir):
    description = {"workdir": workdir, "control": f"controls.plan_writers:{control}", **CONTROLS[control]}
    result = run("plan_campaign.py", {**description, "stop_at_failure": True})
    assert result["failures"]
