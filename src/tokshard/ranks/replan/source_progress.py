"""Progress of each source of a blend: which samples of its index are unread, and what each further draw is.

The index of a source is frozen: its samples keep their numbers, because another size would shuffle them
differently. The first draws after a stop are the samples that are unread in the source epoch under way, in
ascending order; when these are used up, new source epochs begin, each a keyed order of all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.core.keyed_orders import Bijection, derive_key, subkeys
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.history import Reweighting
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.replan.remainder import Remainder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.assignment import Assignment
    from tokshard.ranks.locator import Locator
    from tokshard.ranks.order import KeyOf
    from tokshard.ranks.sources import SampleSource

    Integers = NDArray[np.int64]
    ReadMarks = dict[tuple[int, int], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """A source epoch that was begun.

    Attributes:
        epoch: Its number; the first of a source is 0.
        unread: The samples of the source that are still unread in it, one or more.
    """

    epoch: int
    unread: Intervals


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of one source.

    Attributes:
        samples: The samples of its index.
        open_epochs: The source epochs that are begun and not complete, ascending. Ranks that read different
            parts of a plan can begin one before another is complete.
        next_epoch: The number of the first source epoch that was not begun.

    Example:
        >>> unread = Intervals.of([(1, 2), (3, 4)])
        >>> progress = SourceProgress(4, (OpenEpoch(0, unread),), next_epoch=1)
        >>> samples = progress.samples_of(np.arange(10), seed=7, source=0)
        >>> samples[:2].tolist(), sorted(samples[2:6].tolist()), sorted(samples[6:].tolist())
        ([1, 3], [0, 1, 2, 3], [0, 1, 2, 3])
    """

    samples: int
    open_epochs: tuple[OpenEpoch, ...]
    next_epoch: int

    @classmethod
    def at_start(cls, samples: int) -> Self:
        """Return the progress of a source that is unread: its first epoch is that of its index."""
        return cls(samples, (OpenEpoch(0, Intervals.of([(0, samples)])),) if samples else (), 1)

    def samples_of(self, draws: Integers, seed: int, source: int) -> Integers:
        """Return the sample of each draw.

        ``draws`` is int64 of shape ``(n,)``. The number of the source makes its epochs differ from those of
        others.
        """
        result = np.empty(draws.shape, dtype=np.int64)
        begin = 0
        for open_epoch in self.open_epochs:
            here = (draws >= begin) & (draws < begin + open_epoch.unread.count)
            result[here] = open_epoch.unread.nth(draws[here] - begin)
            begin += open_epoch.unread.count
        late = draws >= begin
        epochs, places = np.divmod(draws[late] - begin, self.samples)
        found = np.empty(places.shape, dtype=np.int64)
        for epoch in np.unique(epochs):
            key = subkeys(
                derive_key(Reweighting.ALGORITHM, seed, self.next_epoch + int(epoch)),
                np.array([source], dtype=np.int64),
            )
            of_epoch = epochs == epoch
            found[of_epoch] = Bijection(self.samples).forward(places[of_epoch], key)
        result[late] = found
        return result

    def epoch_starts(self, draws: int) -> list[tuple[int, int]]:
        """Return pairs (source epoch, first draw) of all source epochs that the first draws touch."""
        pairs, first = [], 0
        for open_epoch in self.open_epochs:
            pairs.append((open_epoch.epoch, first))
            first += open_epoch.unread.count
        later = range(first, draws, self.samples)
        pairs += [(self.next_epoch + number, first) for number, first in enumerate(later)]
        return [(epoch, first) for epoch, first in pairs if first < draws]


@dataclass(frozen=True, slots=True, eq=False)
class SourceEpochTable:
    """Source epochs of the samples of a plan.

    Attributes:
        rows: int64 of shape ``(k, 3)``: source, source epoch, and the first sample of the plan in it; sorted
            by source and first sample. Each source that is drawn has a row.
    """

    rows: Integers
    total: int

    @classmethod
    def checked(cls, rows: Integers, total: int, path: str) -> Self:
        """Return the table of rows that were read from a file.

        Raises:
            IntegrityError: They are not sorted, or out of range.
        """
        good = rows.ndim == 2 and rows.shape[1] == 3 and rows.dtype == np.int64
        if good and rows.size:
            good = bool(rows.min() >= 0 and rows[:, 2].max() < total)
            sources, epochs, firsts = np.diff(rows, axis=0).T
            good = good and bool(np.all((sources > 0) | ((sources == 0) & (epochs > 0) & (firsts > 0))))
        if not good:
            raise IntegrityError(f"{path}: the source epochs are not in order, or out of range", path=path)
        return cls(rows, total)

    def of(self, ids: Integers, sources: NDArray[np.integer]) -> Integers:
        """Return the source epoch of each sample, given its number in the plan and its source."""
        keys = self.rows[:, 0] * self.total + self.rows[:, 2]
        wanted = sources.astype(np.int64) * self.total + ids
        epochs: Integers = self.rows[:, 1][np.searchsorted(keys, wanted, side="right") - 1]
        return epochs


def source_progress_after(
    stopped: Assignment,
    step: int,
    locator: Locator,
    start: tuple[Sequence[SourceProgress], SourceEpochTable] | None = None,
    key_of: KeyOf | None = None,
) -> tuple[SourceProgress, ...]:
    """Return the progress of each dataset after some steps.

    Looks at every id of the stream once, in blocks; memory is a byte for each id and for each sample of the
    indexes.

    Where ``stopped`` is the rest of an epoch, all else of the epoch counts as read. ``start`` is for a
    re-weighted blend: the progress of its sources before its first sample, and the source epochs of its
    samples; None where the epochs of the plan are those of its sources.

    Raises:
        UsageError: The samples are documents, which have no index.
    """
    source = locator.source
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch = remainder.epoch
    unread = np.zeros(source.total, dtype=np.bool_)
    if remainder.order is not None:
        for block in Intervals.of([(0, remainder.order.samples)]).blocks():
            unread[remainder.order.ids(block, epoch, key_of)] = True
    before: Sequence[SourceProgress]
    before, table = start if start is not None else (_at_start_of_epoch(source, epoch), None)
    marks = {
        (number, open_epoch.epoch): _marked_but(open_epoch.unread, progress.samples)
        for number, progress in enumerate(before)
        for open_epoch in progress.open_epochs
    }
    for block in Intervals.of([(0, source.total)]).blocks():
        ids = block[~unread[block]]
        datasets, samples = locator.locate(ids)
        epochs = np.full(ids.shape, epoch, dtype=np.int64) if table is None else table.of(ids, datasets)
        for number, source_epoch, places in by_source_epoch(datasets, epochs):
            read = marks.setdefault((number, source_epoch), np.zeros(before[number].samples, dtype=np.bool_))
            read[samples[places]] = True
    return tuple(_progress(marks, number, of_source) for number, of_source in enumerate(before))


def _at_start_of_epoch(source: SampleSource, epoch: int) -> tuple[SourceProgress, ...]:
    return tuple(
        SourceProgress(samples, (OpenEpoch(epoch, Intervals.of([(0, samples)])),), epoch + 1)
        for samples in index_samples(source)
    )


def _marked_but(unread: Intervals, samples: int) -> NDArray[np.bool_]:
    marks = np.ones(samples, dtype=np.bool_)
    for block in unread.blocks():
        marks[block] = False
    return marks


def _progress(marks: ReadMarks, number: int, before: SourceProgress) -> SourceProgress:
    epochs = sorted(epoch for source, epoch in marks if source == number)
    unread = [(epoch, _unmarked(marks[number, epoch])) for epoch in epochs]
    still_open = tuple(OpenEpoch(epoch, rest) for epoch, rest in unread if rest.count)
    return SourceProgress(
        before.samples, still_open, max([before.next_epoch, *(epoch + 1 for epoch in epochs)])
    )


def _unmarked(marks: NDArray[np.bool_]) -> Intervals:
    edges = np.flatnonzero(np.diff(np.concatenate(([True], marks, [True]))))
    return Intervals(edges[::2].astype(np.int64), edges[1::2].astype(np.int64))


def index_samples(source: SampleSource) -> tuple[int, ...]:
    """Return the samples of the frozen index of each dataset, also those that a plan does not read.

    Raises:
        UsageError: The samples are documents, which have no index.
    """
    found = []
    for reference in source.datasets:
        if reference.index is None:
            raise UsageError(f"cannot re-weight {reference.path_prefix}: its samples are documents")
        found.append(reference.index.epochs.samples)
    return tuple(found)


def by_source(sources: NDArray[np.int16]) -> list[tuple[int, Integers]]:
    """Return pairs (source, places where it is drawn), for each source that is."""
    if not sources.size:
        return []
    order = np.argsort(sources, kind="stable")
    present, firsts = np.unique(sources[order], return_index=True)
    return list(zip(present.tolist(), np.split(order, firsts[1:]), strict=True))


def by_source_epoch(sources: NDArray[np.int16], epochs: Integers) -> list[tuple[int, int, Integers]]:
    """Return triples (source, source epoch, places where it is drawn), for each that is."""
    return [
        (source, epoch, places[epochs[places] == epoch])
        for source, places in by_source(sources)
        for epoch in np.unique(epochs[places]).tolist()
    ]


def progress_rows(progress: Sequence[SourceProgress]) -> Integers:
    """Return the unread samples of all sources as rows: source, source epoch, first, one past the last."""
    rows = [
        np.stack(
            (
                np.full(open_epoch.unread.starts.size, number, dtype=np.int64),
                np.full(open_epoch.unread.starts.size, open_epoch.epoch, dtype=np.int64),
                open_epoch.unread.starts,
                open_epoch.unread.stops,
            ),
            axis=1,
        )
        for number, of_source in enumerate(progress)
        for open_epoch in of_source.open_epochs
    ]
    return np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])


def progress_of_rows(
    rows: Integers, samples: Sequence[int], next_epochs: Sequence[int], path: str
) -> tuple[SourceProgress, ...]:
    """Return the progress that :func:`progress_rows` wrote.

    Raises:
        IntegrityError: The rows are not in order, or out of range.
    """
    problem = IntegrityError(f"{path}: the unread samples are not in order, or out of range", path=path)
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64 or len(samples) != len(next_epochs):
        raise problem
    if rows.size and (rows.min() < 0 or rows[:, 0].max() >= len(samples)):
        raise problem
    _, firsts = np.unique(rows[:, :2], axis=0, return_index=True)
    if np.any(np.diff(firsts) < 0):
        raise problem
    epochs: list[list[OpenEpoch]] = [[] for _ in samples]
    for part in np.split(np.asarray(rows), np.sort(firsts)[1:]) if rows.size else ():
        number, epoch = int(part[0, 0]), int(part[0, 1])
        try:
            unread = Intervals.of_bounds(part[:, 2], part[:, 3])
        except UsageError:
            raise problem from None
        whole = bool(np.all(part[:, :2] == part[0, :2])) and unread.starts.size == len(part)
        if not whole or epoch >= next_epochs[number] or int(unread.stops[-1]) > samples[number]:
            raise problem
        epochs[number].append(OpenEpoch(epoch, unread))
    return tuple(SourceProgress(*row) for row in zip(samples, map(tuple, epochs), next_epochs, strict=True))
