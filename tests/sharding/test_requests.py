"""Requests: ``plan.json`` records them whole, and numbers that it cannot hold are refused."""

import pytest

from tokshard.core.codec import decode, encode
from tokshard.errors import UsageError
from tokshard.sharding.requests import PlanRequest, ReplanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.topology import Topology

SCHEDULE = BatchSchedule(((0, 4), (8, 8)), round_down=True)


@pytest.mark.parametrize(
    "request_",
    [
        PlanRequest(train=StreamRequest()),
        PlanRequest(
            train=StreamRequest(
                shuffle="blocks", schedule=SCHEDULE, steps=3, bucket_buffer=8, sort_key="pieces"
            ),
            eval_micro_batch_size=2,
            consumed_valid_samples=(8, 4),
        ),
        PlanRequest(train=StreamRequest(shuffle="windows", block=9, window=7)),
        ReplanRequest(consumed_samples=0),
        ReplanRequest(
            consumed_samples=40,
            consumed_valid_samples=(1,),
            topology=Topology(8, tensor=2),
            schedule=SCHEDULE,
            mode="chunked",
            sharded=False,
            blend="0.2 web 0.8 code",
            seed=7,
        ),
    ],
)
def test_a_request_is_read_as_it_was_recorded(request_):
    assert decode(type(request_), encode(request_), "plan.json") == request_


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda number: StreamRequest(block=number), "block"),
        (lambda number: PlanRequest(train=StreamRequest(), eval_micro_batch_size=number), "eval micro batch"),
        (lambda number: ReplanRequest(consumed_samples=8, steps=number), "steps"),
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
            ReplanRequest(**wrong)
    with pytest.raises(UsageError, match="consumed valid samples must be at least 0, got -2"):
        ReplanRequest(consumed_samples=0, consumed_valid_samples=(3, -2))
