"""Requests: numbers that ``plan.json`` cannot hold are refused."""

import pytest

from tokshard.errors import UsageError
from tokshard.ranks.replan.options import ReplanOptions
from tokshard.ranks.requests import PlanRequest, StreamRequest


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda number: StreamRequest(block=number), "block"),
        (lambda number: PlanRequest(train=StreamRequest(), eval_micro_batch_size=number), "eval micro batch"),
        (lambda number: ReplanOptions(plan="a", output="b", consumed_samples=8, steps=number), "steps"),
    ],
)
def test_numbers_that_no_plan_can_hold_are_refused(make, message):
    make(2**63 - 1)
    with pytest.raises(UsageError, match=rf"{message}.* must be at least 1, got 0"):
        make(0)
    with pytest.raises(UsageError, match=rf"{message}.* must be less than 2\*\*63"):
        make(2**63)


def test_consumed_samples_and_seeds_are_not_negative():
    for wrong in ({"consumed_samples": -1}, {"consumed_samples": 0, "seed": -1}):
        with pytest.raises(UsageError, match="must be at least 0, got -1"):
            ReplanOptions(plan="a", output="b", **wrong)
    with pytest.raises(UsageError, match="consumed valid samples must be at least 0, got -2"):
        ReplanOptions(plan="a", output="b", consumed_samples=0, consumed_valid_samples=(3, -2))
