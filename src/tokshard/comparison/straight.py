"""Streams that read an order straight through, as most do: formulas compare them, whatever their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tokshard.sharding.intervals import Intervals
from tokshard.sharding.layouts import Striped
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.order import SampleOrder, Selection
from tokshard.sharding.replan.proof import count_datasets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.sharding.plan import Stream


@dataclass(frozen=True, slots=True)
class Straight:
    """What a stream reads, as one run of the positions of an order.

    Attributes:
        source: The identity of the samples.
        order: The order.
        epoch: Its epoch.
        shift: What is added to a number of consumed samples to get a position.
    """

    source: str
    order: SampleOrder
    epoch: int
    shift: int

    @classmethod
    def of(cls, stream: Stream) -> Self | None:
        """Return the run of a stream; None where ranks read in blocks, again, or several epochs."""
        one = stream.assignment
        first = one.passes[0]
        once = len(one.passes) == 1 and first.epochs == 1 and isinstance(first.layout, Striped)
        if not once or first.per_epoch * one.ranks > first.order.samples:
            return None
        order, offset = first.order, 0
        if order.links and isinstance(order.links[0], Selection):
            kept = order.links[0].kept
            if kept.starts.size > 1:
                return None
            order, offset = SampleOrder(order.total, order.links[1:]), int(kept.starts[0])
        shift = offset + one.skipped * one.ranks - one.consumed_samples
        return cls(stream.source.id, order, first.first_epoch, shift)

    def count(self, stream: Stream, start: int, stop: int) -> NDArray[np.int64]:
        """Count the samples of each dataset between two numbers of consumed samples."""
        key_of = None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)
        run = Intervals.of([(start + self.shift, max(start, stop) + self.shift)])
        return count_datasets(Locator(stream.source), self.order, run, self.epoch, key_of)
