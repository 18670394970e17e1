"""The picture of a plan against what its ranks read at each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.inspection.products import build
from tokshard.inspection.plans import read_grid
from tokshard.sharding.plan import read_plan


@pytest.fixture
def plans(tmp_path):
    paths = build(tmp_path)
    return {kind: read_plan(paths[kind]) for kind in ("plan", "runs")}


@pytest.mark.parametrize(("ranks", "steps"), [(100, 1000), (2, 3)])
def test_it_shows_what_ranks_begin_with(plans, ranks, steps):
    for plan in plans.values():
        for stream in plan.streams.values():
            grid, assignment = read_grid(stream, ranks=ranks, steps=steps), stream.assignment
            assert (grid.ranks[0], grid.ranks[-1]) == (0, assignment.ranks - 1)
            assert (grid.steps[0], grid.steps[-1]) == (0, assignment.steps - 1)
            assert len(grid.ranks) <= ranks
            assert len(grid.steps) <= steps
            for row, rank in enumerate(grid.ranks):
                twin = [int(assignment.step_ids(rank, step)[0, 0]) for step in grid.steps]
                assert list(grid.samples[row]) == twin
                if stream.source.order is not None:
                    numbers = np.load(stream.source.order.path("dataset_index"))
                else:
                    numbers = np.repeat(range(2), [one.samples for one in stream.source.datasets])
                assert list(grid.datasets[row]) == numbers[twin].tolist()
            assert grid.unknown is None


def test_without_the_data_it_says_so(plans):
    stream = plans["plan"].streams["train"]
    Path(stream.source.order.path("dataset_index")).unlink()
    grid = read_grid(stream, ranks=32, steps=80)
    assert grid.datasets is None
    assert "dataset_index.npy" in grid.unknown
    assert grid.samples[0][0] == 0
