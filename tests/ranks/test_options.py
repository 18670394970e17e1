"""Options of planning and replanning: numbers that ``plan.json`` cannot hold are refused."""

import pytest

from support.assignments import options_of
from tokshard.errors import UsageError
from tokshard.ranks.options import ReplanOptions


def replan_options(**options):
    return ReplanOptions(plan="a", output="b", **options)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (
            lambda number: options_of(data_parallel=1, shuffle="windows", shuffle_block=number),
            "shuffle-block",
        ),
        (lambda number: options_of(data_parallel=1, eval_micro_batch_size=number), "eval-micro-batch-size"),
        (lambda number: replan_options(consumed_samples=8, steps=number), "steps"),
    ],
)
def test_numbers_that_no_plan_can_hold_are_refused(make, option):
    make(2**63 - 1)
    with pytest.raises(UsageError, match=rf"--{option} must be at least 1, got 0"):
        make(0)
    with pytest.raises(UsageError, match=rf"--{option} must be at most {2**63 - 1}, got {2**63}"):
        make(2**63)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consumed_samples": -1}, "--consumed-samples must be at least 0, got -1"),
        ({"seed": -1, "blend": "mix"}, "--seed must be at least 0, got -1"),
        ({"consumed_valid_samples": (3, -2)}, "--consumed-valid-samples must be at least 0, got -2"),
        ({"seed": 7}, "--seed requires --blend"),
    ],
)
def test_replan_options_that_are_invalid_are_refused(options, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        replan_options(**{"consumed_samples": 0} | options)
