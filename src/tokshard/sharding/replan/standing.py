"""Where the sources of a stream stand when it is stopped: which samples of their indexes are unread.

It looks at every id of the stream once, in blocks; memory is a byte for each id and for each sample of
the indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.sharding.assignment import Assignment, Remainder
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator
from tokshard.sharding.replan.counting import BLOCK, blocks_of
from tokshard.sharding.replan.laps import LapTable, OpenLap, Standing
from tokshard.sharding.replan.reweighting import by_source
from tokshard.sharding.sources import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf

    Integers = NDArray[np.int64]
    Seen = dict[tuple[int, int], NDArray[np.bool_]]


def standings_after(
    stopped: Assignment,
    step: int,
    locator: Locator,
    start: tuple[Sequence[Standing], LapTable] | None = None,
    key_of: KeyOf | None = None,
) -> tuple[Standing, ...]:
    """Return where each dataset stands after some steps.

    Args:
        stopped: What was being read; where it is the rest of an epoch, all else of the epoch counts as read.
        step: How many of its steps were taken.
        locator: What the ids mean.
        start: Of a blend that was weighted anew: where its sources stood before its first sample, and the
            laps of its samples. None where the epochs of the plan are the laps.
        key_of: The sort keys, with bucketing.

    Raises:
        UsageError: The samples are documents, which have no index.
    """
    source = locator.source
    remainder = Remainder.after(stopped, step, keep_order=False)
    unread = np.zeros(source.total, dtype=np.bool_)
    if remainder.order is not None:
        for block in blocks_of(Intervals.of([(0, remainder.order.samples)])):
            unread[remainder.order.ids(block, remainder.epoch, key_of)] = True
    before: Sequence[Standing]
    before, table = start if start is not None else (epoch_standings(source, remainder.epoch), None)
    seen = {
        (number, one.lap): _members(one.unread, standing.samples)
        for number, standing in enumerate(before)
        for one in standing.laps
    }
    for ids in blocks_of(Intervals.of([(0, source.total)]), BLOCK):
        _mark(seen, ids[~unread[ids]], locator, table, before, remainder.epoch)
    return tuple(_standing(seen, number, one) for number, one in enumerate(before))


def epoch_standings(source: SampleSource, epoch: int) -> tuple[Standing, ...]:
    """Return where the datasets of a stream stand at the start of an epoch.

    Raises:
        UsageError: The samples are documents, which have no index.
    """
    return tuple(
        Standing(samples, (OpenLap(epoch, Intervals.of([(0, samples)])),), epoch + 1)
        for samples in index_samples(source)
    )


def index_samples(source: SampleSource) -> tuple[int, ...]:
    """Return the samples of the frozen index of each dataset, also those that a plan does not read.

    Raises:
        UsageError: The samples are documents, which have no index.
    """
    found = []
    for one in source.datasets:
        if one.index is None:
            raise UsageError(f"the samples of {one.prefix} are its documents, which cannot be weighted anew")
        found.append(one.index.epochs.samples)
    return tuple(found)


def standing_rows(standings: Sequence[Standing]) -> Integers:
    """Return the unread samples of all sources as rows of source, lap, first sample and one past the last."""
    rows = [
        np.stack(
            (
                np.full(one.unread.starts.size, number, dtype=np.int64),
                np.full(one.unread.starts.size, one.lap, dtype=np.int64),
                one.unread.starts,
                one.unread.stops,
            ),
            axis=1,
        )
        for number, standing in enumerate(standings)
        for one in standing.laps
    ]
    return np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])


def standings_of_rows(
    rows: Integers, samples: Sequence[int], next_laps: Sequence[int], path: str
) -> tuple[Standing, ...]:
    """Return the standings that :func:`standing_rows` gave.

    Raises:
        IntegrityError: The rows are not in order, or out of range.
    """
    problem = IntegrityError(f"{path}: the unread samples are not in order, or out of range", path=path)
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64 or len(samples) != len(next_laps):
        raise problem
    if rows.size and (rows.min() < 0 or rows[:, 0].max() >= len(samples)):
        raise problem
    _, firsts = np.unique(rows[:, :2], axis=0, return_index=True)
    if np.any(np.diff(firsts) < 0):
        raise problem
    laps: list[list[OpenLap]] = [[] for _ in samples]
    for part in np.split(np.asarray(rows), np.sort(firsts)[1:]) if rows.size else ():
        number, lap = int(part[0, 0]), int(part[0, 1])
        try:
            unread = Intervals.of_bounds(part[:, 2], part[:, 3])
        except UsageError:
            raise problem from None
        whole = bool(np.all(part[:, :2] == part[0, :2])) and unread.starts.size == len(part)
        if not whole or lap >= next_laps[number] or int(unread.stops[-1]) > samples[number]:
            raise problem
        laps[number].append(OpenLap(lap, unread))
    return tuple(Standing(*row) for row in zip(samples, map(tuple, laps), next_laps, strict=True))


def _mark(
    seen: Seen,
    ids: Integers,
    locator: Locator,
    table: LapTable | None,
    before: Sequence[Standing],
    epoch: int,
) -> None:
    """Mark what the ids are as seen, each in its lap."""
    datasets, samples = locator.locate(ids)
    laps = np.full(ids.shape, epoch, dtype=np.int64) if table is None else table.of(ids, datasets)
    for number, places in by_source(datasets):
        theirs = laps[places]
        for lap in np.unique(theirs).tolist():
            marks = seen.setdefault((number, lap), np.zeros(before[number].samples, dtype=np.bool_))
            marks[samples[places[theirs == lap]]] = True


def _members(unread: Intervals, samples: int) -> NDArray[np.bool_]:
    """Return which samples are not in a set: bool of shape (samples,)."""
    marks = np.ones(samples, dtype=np.bool_)
    for block in blocks_of(unread):
        marks[block] = False
    return marks


def _standing(seen: Seen, number: int, before: Standing) -> Standing:
    laps = sorted(lap for source, lap in seen if source == number)
    unread = [(lap, _unmarked(seen[number, lap])) for lap in laps]
    still_open = tuple(OpenLap(lap, rest) for lap, rest in unread if rest.count)
    return Standing(before.samples, still_open, max([before.next_lap, *(lap + 1 for lap in laps)]))


def _unmarked(marks: NDArray[np.bool_]) -> Intervals:
    edges = np.flatnonzero(np.diff(np.concatenate(([True], marks, [True]))))
    return Intervals(edges[::2].astype(np.int64), edges[1::2].astype(np.int64))
