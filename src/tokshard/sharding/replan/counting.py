"""How many samples of each dataset a set of positions holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator
from tokshard.sharding.order import SampleOrder, Selection
from tokshard.sharding.sources import SampleSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf

    Integers = NDArray[np.int64]

BLOCK = 1 << 20
"""How many samples are looked at together: some tens of megabytes."""


def blocks_of(members: Intervals, block: int = BLOCK) -> Iterator[Integers]:
    """Return the members of a set in ascending order, in arrays of up to ``block``."""
    for begin in range(0, members.count, block):
        yield members.nth(np.arange(begin, min(begin + block, members.count), dtype=np.int64))


def count_datasets(
    locator: Locator, order: SampleOrder, positions: Intervals, epoch: int, key_of: KeyOf | None = None
) -> Integers:
    """Count the samples of each dataset at some positions of an order.

    Where the order is that of the ids it is arithmetic with intervals, or for a blend a count over runs of
    its dataset index; otherwise the samples are looked up block by block.

    Returns:
        int64 of shape (datasets,).
    """
    source = locator.source
    ids = ids_in_order(order, positions)
    if ids is not None and source.order is None:
        return np.diff(below(ids, source.bounds))
    counts = np.zeros(len(source.datasets), dtype=np.int64)
    if ids is not None and source.order is not None:
        dataset_index = source.order.open()["dataset_index"]
        for start, stop in zip(ids.starts.tolist(), ids.stops.tolist(), strict=True):
            for begin in range(start, stop, BLOCK):
                counts += _bincount(dataset_index[begin : min(begin + BLOCK, stop)], counts.size, source)
        return counts
    for block in blocks_of(positions):
        datasets, _ = locator.locate(order.ids(block, epoch, key_of))
        counts += np.bincount(datasets, minlength=counts.size)
    return counts


def _bincount(datasets: NDArray[Any], count: int, source: SampleSource) -> Integers:
    """Count the datasets of a part of a blend.

    Raises:
        IntegrityError: The blend names one that it does not have.
    """
    if datasets.size and (datasets.min() < 0 or datasets.max() >= count):
        path = source.order.path("dataset_index") if source.order else ""
        raise IntegrityError(f"{path} names a dataset that the blend does not have", path=path)
    return np.bincount(datasets, minlength=count).astype(np.int64)


def ids_in_order(order: SampleOrder, positions: Intervals) -> Intervals | None:
    """Return the ids at some positions as intervals; None where the order shuffles them."""
    for link in order.links:
        if not isinstance(link, Selection):
            return None
        positions = link.kept.select(positions)
    return positions


def below(members: Intervals, limits: Integers) -> Integers:
    """Return how many members are below each limit.

    Example:
        >>> below(Intervals.of([(0, 3), (10, 12)]), np.array([0, 2, 11, 99])).tolist()
        [0, 2, 4, 5]
    """
    ends = np.concatenate(([0], np.cumsum(members.stops - members.starts, dtype=np.int64)))
    which = np.searchsorted(members.starts, limits, side="right")
    over = np.maximum(np.append(0, members.stops)[which] - limits, 0)
    return ends[which] - over


def is_partition(parts: list[Intervals], length: int) -> bool:
    """Tell whether sets are disjoint and together the numbers 0 to ``length - 1``.

    Example:
        >>> odd, rest = Intervals.of([(1, 2), (3, 4)]), Intervals.of([(0, 1), (2, 3), (4, 5)])
        >>> is_partition([odd, rest], 5), is_partition([odd, odd], 5)
        (True, False)
    """
    starts = np.concatenate([one.starts for one in parts])
    stops = np.concatenate([one.stops for one in parts])
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    # Side by side without a gap or an overlap, from the first number to the last.
    return bool(np.array_equal(np.append(0, stops), np.append(starts, length)))
