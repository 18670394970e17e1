"""Which part of the datasets a rank reads, as far as formulas tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.layouts import Blocked
from tokshard.sharding.links import ShardShuffle
from tokshard.sharding.passes import Pass
from tokshard.sharding.sources.references import DatasetReference
from tokshard.sharding.sources.samples import SampleSource


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Neighbouring samples of a dataset.

    Attributes:
        dataset: The number of the dataset.
        first: The first sample.
        stop: One past the last sample.
    """

    dataset: int
    first: int
    stop: int


def positions_of(one: Pass, rank: int) -> dict[str, Any]:
    """Return the positions of an epoch that a data-parallel rank reads, as a formula.

    The ``i``-th of them, from 0 to ``count - 1``, is ``start + i // run * stride + i % run``; after these the
    rank reads ``repeated`` samples again, which others or itself have read.

    Example:
        >>> from tokshard.sharding.layouts import Striped
        >>> from tokshard.sharding.order import SampleOrder
        >>> whole = Pass(SampleOrder(100), Striped(100, ranks=2, width=4, samples_per_rank=48))
        >>> positions_of(whole, 1)["start"], positions_of(whole, 1)["stride"]
        (4, 8)
    """
    layout = one.layout
    run = layout.run if isinstance(layout, Blocked) else layout.width
    owned = layout.owned(rank)
    return {
        "first_epoch": one.first_epoch,
        "epochs": one.epochs,
        "start": rank * run,
        "run": run,
        "stride": run * layout.ranks,
        "count": owned,
        "repeated": one.per_epoch - owned,
    }


def ranges_of(assignment: Assignment, source: SampleSource, rank: int) -> tuple[SampleRange, ...] | None:
    """Return the samples that a data-parallel rank reads, where they are runs of neighbours.

    Returns:
        Ranges in the order in which they are read; None where what the rank reads is spread over all
        datasets: in a blend, in a random order of samples, and where the ranks read in turn.
    """
    one = assignment.passes[0]
    shards = _shard_order(one)
    spread = len(assignment.passes) > 1 or one.epochs != 1 or shards is None
    if spread or source.order is not None or not isinstance(one.layout, Blocked):
        return None
    if not assignment.samples_per_rank:
        return ()
    ends = (assignment.skipped, assignment.skipped + assignment.samples_per_rank - 1)
    first, last = (int(one.layout.positions(rank, end, 1)[0]) for end in ends)
    return _ranges(source, shards or tuple(range(len(source.datasets))), first, last + 1)


def _shard_order(one: Pass) -> tuple[int, ...] | None:
    """Return the shards in the order of a pass; empty for their own order, None where samples are mixed."""
    if not one.order.links:
        return ()
    if len(one.order.links) == 1 and isinstance(one.order.links[0], ShardShuffle):
        return tuple(one.order.links[0].order(one.first_epoch).tolist())
    return None


def _ranges(source: SampleSource, shards: tuple[int, ...], first: int, stop: int) -> tuple[SampleRange, ...]:
    found, begin = [], 0
    for number in shards:
        reference = source.datasets[number]
        low, high = max(first, begin), min(stop, begin + reference.samples)
        if low < high:
            shift = reference.first - begin
            found.append(SampleRange(number, low + shift, high + shift))
        begin += reference.samples
    return tuple(found)


def bytes_of(reference: DatasetReference) -> Callable[[int, int], tuple[int, int]]:
    """Return the function from a range of samples to the bytes of ``.bin`` that hold them.

    Samples of an index lie anywhere in it, so theirs are all bytes. For documents the index file is opened.

    Raises:
        MissingFileError, IntegrityError: The dataset is not there, or has changed.
    """
    if reference.index is not None:
        return lambda _first, _stop: (0, reference.bin.size_bytes)
    table = reference.open_dataset().index
    itemsize = table.dtype.itemsize

    def found(first: int, stop: int) -> tuple[int, int]:
        edges = (int(table.document_indices[first]), int(table.document_indices[stop]))
        return table.first_token(edges[0]) * itemsize, table.first_token(edges[1]) * itemsize

    return found
