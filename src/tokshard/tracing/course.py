"""When and where a plan reads a sample: in every epoch, again as padding, and in the plans before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.history import history_of
from tokshard.sharding.layouts import repeats
from tokshard.sharding.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf

    Integers = NDArray[np.int64]

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan, or one that it goes on from, as far as it was followed.

    Attributes:
        plan_id: The plan.
        assignment: What it reads.
        steps: How many of its steps were or will be taken.
    """

    plan_id: str
    assignment: Assignment
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """Where samples are read: int64 arrays of one shape, with an entry for each time that one is read.

    Attributes:
        which: The place of the sample among those that were asked for.
        stage: The number of the stage.
        epoch: The epoch.
        step: The step of that plan.
        rank: The data-parallel rank.
        slot: The place within the rank's samples of the step.
        again: Bool: whether it is read as padding, after it was read in the same epoch.
        consumed: The samples that all ranks have consumed after the step.
    """

    which: Integers
    stage: Integers
    epoch: Integers
    step: Integers
    rank: Integers
    slot: Integers
    again: NDArray[np.bool_]
    consumed: Integers


def stages_of(plan: Plan, stream: str, path: str) -> tuple[tuple[Stage, ...], int]:
    """Return the plans that read the ids of a stream, oldest first, the plan itself last.

    Returns:
        The stages, and how many plans before them read another mixture, in which ids mean other samples.

    Raises:
        IntegrityError: The history of the plan is damaged.
    """
    stages: list[Stage] = []
    before = 0
    for one in history_of(plan, path):
        if stream in one.streams:
            stopped = one.streams[stream]
            stages.append(Stage(one.plan_id, stopped.assignment, stopped.step))
            if stopped.reweighting is not None:
                before += len(stages)
                stages = []
    last = plan.streams[stream].assignment
    return (*stages, Stage(plan.plan_id, last, last.steps)), before


def visits(stages: tuple[Stage, ...], ids: Integers, key_of: KeyOf | None) -> Visits:
    """Return every time that samples are read.

    Args:
        stages: The plans that read them.
        ids: Numbers of samples of the stream: int64, ascending, each once.
        key_of: The sort keys of samples; needed where they are sorted by length.
    """
    found = [
        np.stack(
            [
                which,
                np.full(which.shape, number, np.int64),
                np.full(which.shape, epoch, np.int64),
                *_placed(stage.assignment, ranks, local),
                np.full(which.shape, again, np.int64),
            ]
        )
        for number, stage in enumerate(stages)
        for epoch, again, which, ranks, local in _locals(stage.assignment, ids, key_of)
    ]
    table = np.concatenate(found, axis=1) if found else np.empty((8, 0), np.int64)
    limits = np.array([stage.steps for stage in stages], np.int64)
    which, stage, epoch, step, rank, slot, consumed, again = table[:, table[3] < limits[table[1]]]
    return Visits(which, stage, epoch, step, rank, slot, again.astype(np.bool_), consumed)


def _locals(
    assignment: Assignment, ids: Integers, key_of: KeyOf | None
) -> Iterator[tuple[int, bool, Integers, Integers, Integers]]:
    """Yield (epoch, whether again, which ids, their ranks, their local indices) of what is read."""
    base = -assignment.skipped
    for one in assignment.passes:
        reached = min(one.per_rank, assignment.samples_per_rank - base)
        for number in range(-(-reached // one.per_epoch)):
            start = base + number * one.per_epoch
            if start + one.per_epoch <= 0:
                continue
            epoch = one.first_epoch + number
            positions = one.order.positions(ids, epoch, key_of)
            ranks, within = one.layout.locate(np.maximum(positions, 0))
            local = start + within
            read = (positions >= 0) & (ranks >= 0) & (local >= 0) & (local < assignment.samples_per_rank)
            yield epoch, False, np.flatnonzero(read), ranks[read], local[read]
            for rank, first, count in repeats(one.layout):
                for begin in range(start + first, start + first + count, _BLOCK):
                    stop = min(begin + _BLOCK, start + first + count, assignment.samples_per_rank)
                    again = np.arange(max(begin, 0), stop, dtype=np.int64)
                    dealt = np.full(again.shape, rank, np.int64)
                    which, here = _members(assignment.at(dealt, again, key_of), ids)
                    yield epoch, True, which, dealt[here], again[here]
        base += one.per_rank


def _members(found: Integers, ids: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return which of the ids are found, and where."""
    if not ids.size:
        return np.empty(0, np.int64), np.zeros(found.shape, np.bool_)
    which = np.minimum(np.searchsorted(ids, found), ids.size - 1)
    here = ids[which] == found
    return which[here], here


def _placed(
    assignment: Assignment, ranks: Integers, local: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return (step, rank, slot, consumed samples after the step) of local indices."""
    timeline, before = assignment.timeline, assignment.consumed_samples
    steps = timeline.step_of(local * assignment.ranks + before)
    firsts = (timeline.consumed(steps) - before) // assignment.ranks
    return steps, ranks, local - firsts, timeline.consumed(steps + 1)
