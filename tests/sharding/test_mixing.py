"""The design effect of steps: its definition, and 1 as its mean over all orders."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.sharding.mixing import design_effect

samples = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


def slow_chi_squared(steps, groups):
    total = 0
    for step in set(steps):
        for group in set(groups):
            expected = steps.count(step) * groups.count(group) / len(steps)
            observed = sum(pair == (step, group) for pair in zip(steps, groups, strict=True))
            total += (observed - expected) ** 2 / expected
    return total


@given(samples)
def test_the_design_effect_is_pearsons_chi_squared_over_its_mean(pairs):
    steps, groups = ([pair[side] for pair in pairs] for side in (0, 1))
    found = design_effect(np.array(steps) * 7 - 3, np.array(groups) * 10**12)
    rows, columns, count = len(set(steps)), len(set(groups)), len(pairs)
    if min(rows, columns) < 2:
        assert found is None
        return
    mean = (rows - 1) * (columns - 1) * count / (count - 1)
    assert found == pytest.approx(slow_chi_squared(steps, groups) / mean)


@pytest.mark.parametrize(
    ("steps", "groups"),
    [([0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1, 2]), ([0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5])],
)
def test_its_mean_over_all_orders_is_1(steps, groups):
    found = [design_effect(np.array(steps), np.array(order)) for order in permutations(groups)]
    assert np.mean(found) == pytest.approx(1, abs=1e-12)


def test_steps_of_one_group_have_nearly_the_samples_of_a_step():
    steps = np.arange(6400) // 64
    assert design_effect(steps, steps % 4) == pytest.approx(6399 / 99)
    assert design_effect(steps, np.arange(6400) % 4) == 0
