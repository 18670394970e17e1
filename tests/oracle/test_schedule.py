"""Batch sizes over time against Megatron's calculators.

Megatron had the ramp-up up to 0.17 and has the schedule in steps from 0.18 on: each version has one of them,
and the other is skipped.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass

import numpy as np
import pytest

from oracle.support import megatron_or_skip
from tokshard.errors import UsageError
from tokshard.ranks.schedule import BatchSchedule

pytestmark = pytest.mark.oracle

STEPS = 60


def calculator(name):
    """Return a class of Megatron's; skip where its version has none of this name."""
    megatron_or_skip()
    module = importlib.import_module("megatron.core.num_microbatches_calculator")
    if not hasattr(module, name):
        pytest.skip(f"this megatron-core has no {name}")
    return getattr(module, name)


@dataclass(frozen=True)
class World:
    micro_batch_size: int
    ranks: int

    @property
    def group(self):
        return self.micro_batch_size * self.ranks


def random_world(generator):
    return World(generator.choice([1, 2, 3]), generator.choice([1, 2, 4]))


def made(function, *arguments, **options):
    """Return what Megatron or tokshard makes of these numbers, or None where it refuses them."""
    try:
        return function(*arguments, **options)
    except (AssertionError, ValueError, ZeroDivisionError, UsageError):
        return None


def counts_around(generator, schedule, limit):
    """Return numbers of consumed samples: random ones, and all around the thresholds."""
    edges = {max(0, threshold + shift) for threshold, _ in schedule.segments for shift in (-1, 0, 1)}
    return sorted(edges | {generator.randrange(limit) for _ in range(20)})


def steps_of(theirs, start):
    """Return (consumed samples, batch size, micro-batches) of a run's first steps, up to one that fails."""
    steps, consumed = [], start
    for _ in range(STEPS):
        try:
            theirs.update(consumed, consistency_check=True)
        except AssertionError:
            break
        # Rounded down to nothing: Megatron would stay where it is for ever.
        if theirs.get() == 0:
            break
        steps.append((consumed, theirs.current_running_global_batch_size, theirs.get()))
        consumed += steps[-1][1]
    return steps


def follows(schedule, theirs, world, start=0):
    """Compare a run's steps. Return whether there are all of them; if not, the next one is refused."""
    steps = steps_of(theirs, start)
    if steps:
        timeline = schedule.timeline(world.group, start, steps=len(steps))
        counts = [consumed for consumed, _, _ in steps]
        assert timeline.consumed(np.arange(len(steps))).tolist() == counts
        assert timeline.step_of(np.array(counts)).tolist() == list(range(len(steps)))
        sizes = [
            (timeline.batch_size(step), timeline.batch_size(step) // timeline.group)
            for step in range(len(steps))
        ]
        assert sizes == [step[1:] for step in steps]
    if len(steps) < STEPS:
        with pytest.raises(UsageError, match="must be divisible"):
            schedule.timeline(world.group, start, steps=len(steps) + 1)
    return len(steps) == STEPS


def test_a_constant_size_is_megatrons():
    make, generator = calculator("ConstantNumMicroBatchesCalculator"), random.Random(31)
    walked = refused = 0
    for _ in range(500):
        world, size = random_world(generator), generator.randint(1, 40)
        round_down = generator.random() < 0.5
        arguments = (size, world.micro_batch_size, world.ranks, round_down, 1)
        theirs = made(make, *arguments)
        schedule = BatchSchedule.constant(size, round_down=round_down)
        if theirs is None:
            with pytest.raises(UsageError):
                schedule.timeline(world.group)
            refused += 1
        else:
            assert (
                schedule.timeline(world.group).batch_size(0) == theirs.get_current_running_global_batch_size()
            )
            assert schedule.timeline(world.group).batch_size(7) == theirs.get() * world.group
            walked += 1
    assert min(walked, refused) > 50


def test_the_ramp_up_is_megatrons():
    make, generator = calculator("RampupBatchsizeNumMicroBatchesCalculator"), random.Random(32)
    compared = refused = walked = stopped = 0
    for _ in range(1500):
        world, round_down = random_world(generator), generator.random() < 0.4
        unit = generator.choice([1, 2, 3, 5]) if generator.random() < 0.4 else world.group
        start, increment = unit * generator.randint(1, 8), unit * generator.randint(1, 4)
        size = start + increment * generator.randrange(40) - generator.choice([0] * 9 + [1])
        samples = generator.randrange(generator.choice([60, 5_000, 10**9]))
        arguments = (size, world.micro_batch_size, world.ranks, round_down, 1, start, increment, samples)
        theirs = made(make, *arguments)
        schedule = made(BatchSchedule.rampup, start, increment, samples, size, round_down=round_down)
        assert (schedule is None) == (theirs is None)
        if schedule is None:
            refused += 1
            continue
        for consumed in [*counts_around(generator, schedule, 2 * samples + 2), samples, samples + 1]:
            theirs.update(consumed, consistency_check=False)
            assert schedule.size_at(consumed) == theirs.current_global_batch_size
        compared += 1
        if follows(schedule, theirs, world):
            walked += 1
        else:
            stopped += 1
    assert min(compared, walked) > 300
    assert min(refused, stopped) > 50


def random_schedule(generator):
    """Return a schedule's text, seldom one that is none."""
    entries = []
    for number in range(generator.randint(1, 4)):
        threshold = generator.choice([generator.randrange(1, 10**6), generator.random() * 100])
        suffix = generator.choice(["", "K", "M", "k", "b"])
        size = generator.choice([8, 16, 24, "1K", "0.5k", 64])
        entries.append(f"{threshold}{suffix}:{size}" if number else f"0:{size}")
    if generator.random() < 0.2:
        generator.shuffle(entries)
    if generator.random() < 0.05:
        entries[-1] = generator.choice(["5", "x:8", "0:8", "7:0", "3:"])
    return generator.choice([" ", ",", ", "]).join(entries)


def test_the_schedule_in_steps_is_megatrons():
    make, generator = calculator("StepBatchsizeNumMicroBatchesCalculator"), random.Random(33)
    compared = refused = walked = stopped = 0
    for _ in range(1500):
        text, length = random_schedule(generator), generator.choice([None, 1, 64, 4096])
        world = random_world(generator)
        arguments = (world.micro_batch_size, world.ranks, False, 1, text, length)
        theirs = made(make, *arguments)
        schedule = made(BatchSchedule.parse, text, length)
        assert (schedule is None) == (theirs is None), text
        if schedule is None:
            refused += 1
            continue
        assert list(schedule.segments) == theirs.schedule
        for consumed in counts_around(generator, schedule, 10**7):
            theirs.update(consumed, consistency_check=False)
            assert schedule.size_at(consumed) == theirs.current_global_batch_size
        compared += 1
        start = generator.choice(schedule.segments)[0] // world.group * world.group
        if follows(schedule, theirs, world, start):
            walked += 1
        else:
            stopped += 1
    assert min(compared, walked) > 300
    assert min(refused, stopped) > 50
