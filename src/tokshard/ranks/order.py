"""The order of an epoch: from the positions that ranks read to sample ids, by a chain of index transforms.

A transform is a bijection or a selection of positions: a formula with an inverse, without lists apart from
the sizes of shards and the intervals of a selection. ``forward(positions, epoch)`` goes from the positions
that ranks read towards sample ids, ``inverse(positions, epoch)`` back, with -1 for what is left out.

The chain is read from the reading end to the data: bucketing, then the shuffle, then the ids of the blend
(whose samples are packed already). A replan puts a selection of the unread positions in front of the chain,
so that the rest of an epoch keeps the order that it was going to have.

Bucketing cuts positions into windows of ``buffer``. A window is sorted by key, with ties in random order; the
sorted window is cut into packs of ``pack``; packs come in random order, and so do the members of each. A
last pack that is short stays last, so that packs stay aligned with micro-batches. Everything is a function
of (seed, epoch, window) and the window's keys, so any position can be computed at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.core.keyed_orders import derive_key, hashes, sorted_order, subkeys
from tokshard.errors import UsageError
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Layout
from tokshard.ranks.shuffles import BlockShuffle, ShardShuffle, Shuffle, TorchPermutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    KeyOf = Callable[[Integers], NDArray[Any]]


@dataclass(frozen=True)
class Selection(Record):
    """The transform ``selection``, which keeps some positions, in ascending order.

    Attributes:
        of: Number of positions to select from.
        ranges: Selected positions: pairs of the first and one past the last, ascending, not empty and not
            adjacent.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "selection")

    of: Positive
    ranges: tuple[tuple[Count, Count], ...]

    def _validate(self) -> None:
        if self.kept.starts.size != len(self.ranges):
            raise UsageError("intervals must not be empty or adjacent")
        if not self.kept.count or int(self.kept.stops[-1]) > self.of:
            raise UsageError(f"a selection must keep from 1 to {self.of} positions")

    @cached_property
    def kept(self) -> Intervals:
        """The positions that are selected."""
        return Intervals.of(self.ranges)

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.kept.count

    def forward(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other transforms
        """Return the position before this transform of each position after it."""
        return self.kept.nth(positions)

    def inverse(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other transforms
        """Return the position after this transform of each position before it, or -1."""
        return self.kept.index(positions)


@dataclass(frozen=True, slots=True)
class ConsumptionOrder(Record):
    """The transform ``consumption-order``: positions as the ranks of a layout read them, then dropped ones.

    With it another world continues exactly in the order of this one, whatever its layout: micro-batch by
    micro-batch, and within each rank by rank.

    Attributes:
        layout: Layout whose ranks consume the positions.
        micro_batch_size: Samples of a micro-batch of one rank.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "consumption-order")

    layout: Layout
    micro_batch_size: Positive

    def _validate(self) -> None:
        per_rank = self.layout.samples_per_rank
        if per_rank % self.micro_batch_size:
            raise UsageError(
                f"samples per rank must be divisible by {self.micro_batch_size} (micro batch), got {per_rank}"
            )
        if any(self.layout.owned(rank) != per_rank for rank in range(self.layout.ranks)):
            raise UsageError(
                "a plan that repeats samples cannot be replanned",
                hint="pass --mode contiguous or --mode chunked, which distribute the unread samples",
            )

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.layout.samples

    @property
    def _read(self) -> int:
        return self.layout.samples_per_rank * self.layout.ranks

    def forward(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other transforms
        """Return the position before this transform of each position after it."""
        size = self.micro_batch_size
        micro_batch, place = np.divmod(np.minimum(positions, self._read - 1), size * self.layout.ranks)
        result = self.layout.at(place // size, micro_batch * size + place % size)
        late = positions >= self._read
        if late.any():
            result[late] = self.layout.dropped().nth(positions[late] - self._read)
        return result

    def inverse(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other transforms
        """Return the position after this transform of each position before it."""
        size = self.micro_batch_size
        ranks, local = self.layout.locate(positions)
        micro_batch, slot = np.divmod(local, size)
        result = micro_batch * size * self.layout.ranks + ranks * size + slot
        late = ranks < 0
        if late.any():
            result[late] = self._read + self.layout.dropped().index(positions[late])
        return result


@dataclass(frozen=True, slots=True)
class Bucketing(Record):
    """The transform ``bucketing``, which places similar keys next to each other.

    Raises:
        UsageError: The buffer is not a multiple of the pack.

    Attributes:
        samples: Number of positions.
        buffer: Positions of a window, a multiple of ``pack``. Memory and reading ahead grow with it.
        pack: Number of similar samples that are placed together: micro-batch size times data-parallel size.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.

    Example:
        >>> lengths = np.array([9, 1, 8, 2, 7, 3, 6, 4])
        >>> bucketing = Bucketing(8, buffer=8, pack=2, seed=1, per_epoch=True)
        >>> order = bucketing.forward(np.arange(8), 0, lengths.__getitem__)
        >>> sorted(tuple(sorted(pair)) for pair in lengths[order].reshape(4, 2).tolist())
        [(1, 2), (3, 4), (6, 7), (8, 9)]
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "bucketing")
    ALGORITHM: ClassVar[str] = "tokshard.bucketing/1"

    samples: Positive
    buffer: int
    pack: int
    seed: Count
    per_epoch: bool

    def _validate(self) -> None:
        if self.pack < 1 or self.buffer < 1 or self.buffer % self.pack:
            raise UsageError(
                f"the bucketing buffer must be a positive multiple of the pack, got a buffer of "
                f"{self.buffer} samples and a pack of {self.pack}",
                hint="pass another --bucket-buffer or --bucket-pack",
            )

    def forward(self, positions: Integers, epoch: int, key_of: KeyOf) -> Integers:
        """Return the position before bucketing of each position after it.

        Args:
            positions: int64 of shape ``(n,)``.
            epoch: The epoch.
            key_of: Returns the sort keys (numbers) of an array of positions before bucketing. It is called
                for whole windows.
        """
        return self._by_window(positions, epoch, key_of, inverse=False)

    def inverse(self, positions: Integers, epoch: int, key_of: KeyOf) -> Integers:
        """Return the position after bucketing of each position before it; see :meth:`forward`."""
        return self._by_window(positions, epoch, key_of, inverse=True)

    def window_order(self, keys: NDArray[Any], epoch: int, window: int) -> Integers:
        """Return the order of one window: place after bucketing to place before, from the window's keys."""
        base = derive_key(self.ALGORITHM, self.seed, epoch if self.per_epoch else 0)
        key = subkeys(base, np.array([window], dtype=np.int64))
        ties, packs, members = (_part_key(key, number) for number in range(3))
        places = np.arange(keys.size, dtype=np.int64)
        by_key = np.lexsort((hashes(ties, places), keys))
        whole = keys.size // self.pack
        pack_order = np.append(sorted_order(whole, int(packs[0])), whole)
        pack_place = np.argsort(pack_order)[places // self.pack]
        return by_key[np.lexsort((hashes(members, places), pack_place))]

    def _by_window(self, positions: Integers, epoch: int, key_of: KeyOf, *, inverse: bool) -> Integers:
        result = np.empty(positions.shape, dtype=np.int64)
        windows = positions // self.buffer
        for window in np.unique(windows):
            start = int(window) * self.buffer
            stop = min(start + self.buffer, self.samples)
            keys = np.asarray(key_of(np.arange(start, stop, dtype=np.int64)))
            order = self.window_order(keys, epoch, int(window))
            if inverse:
                order = np.argsort(order)
            here = windows == window
            result[here] = start + order[positions[here] - start]
        return result


def _part_key(key: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
    return hashes(key, np.array([number], dtype=np.int64))


Transform = (
    Bucketing | TorchPermutation | Shuffle | BlockShuffle | ShardShuffle | Selection | ConsumptionOrder
)

# A chain grows by a selection or two with each replan that changes the mode.
MAX_TRANSFORMS = 1000


@dataclass(frozen=True, slots=True)
class SampleOrder(Record):
    """An order of all or some sample ids.

    Raises:
        UsageError: Two transforms that follow each other do not fit.

    Attributes:
        total: Number of sample ids.
        transforms: Transforms from the positions that ranks read to sample ids, in this direction.

    Example:
        >>> order = SampleOrder(10, (Selection(10, ((2, 4), (8, 10))),))
        >>> order.samples, order.ids(np.arange(4), epoch=0).tolist()
        (4, [2, 3, 8, 9])
        >>> order.positions(np.array([8, 0]), epoch=0).tolist()
        [2, -1]
    """

    total: Positive
    transforms: tuple[Transform, ...]

    def _validate(self) -> None:
        if len(self.transforms) > MAX_TRANSFORMS:
            raise UsageError(
                f"an order must have at most {MAX_TRANSFORMS} transforms, got {len(self.transforms)}"
            )
        behind = self.total
        for transform in reversed(self.transforms):
            before = transform.of if isinstance(transform, Selection) else transform.samples
            if before != behind:
                raise UsageError(f"the transform {transform.TAG[1]} must have {behind} samples, got {before}")
            behind = transform.samples

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.transforms[0].samples if self.transforms else self.total

    def ids(self, positions: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the sample id at each position.

        Args:
            positions: int64 of shape ``(n,)``, each 0 to ``samples - 1`` (trusted).
            epoch: The epoch.
            key_of: Returns the sort keys of an array of ids; needed with bucketing.

        Raises:
            UsageError: Bucketing without ``key_of``.
        """
        for number, transform in enumerate(self.transforms):
            if isinstance(transform, Bucketing):
                positions = transform.forward(positions, epoch, self._keys_behind(number, epoch, key_of))
            else:
                positions = transform.forward(positions, epoch)
        return positions

    def positions(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the position of each id, or -1 where the order leaves it out; see :meth:`ids`."""
        for number in range(len(self.transforms) - 1, -1, -1):
            transform = self.transforms[number]
            known = ids >= 0
            if isinstance(transform, Bucketing):
                found = transform.inverse(ids[known], epoch, self._keys_behind(number, epoch, key_of))
            else:
                found = transform.inverse(ids[known], epoch)
            ids = np.full(ids.shape, -1, dtype=np.int64)
            ids[known] = found
        return ids

    def rest(self, unread: Intervals) -> SampleOrder:
        """Return the order of the positions that are unread, as they were going to come.

        Raises:
            UsageError: Nothing is unread.
        """
        if unread.count == self.samples:
            return self
        if self.transforms and isinstance(self.transforms[0], Selection):
            first = self.transforms[0]
            kept = first.kept.select(unread).pairs()
            return SampleOrder(self.total, (Selection(first.of, kept), *self.transforms[1:]))
        return SampleOrder(self.total, (Selection(self.samples, unread.pairs()), *self.transforms))

    def before(self, transform: Transform) -> SampleOrder:
        """Return this order with one more transform at the reading end."""
        return SampleOrder(self.total, (transform, *self.transforms))

    def _keys_behind(self, number: int, epoch: int, key_of: KeyOf | None) -> KeyOf:
        if key_of is None:
            raise UsageError("an order with bucketing requires the sort keys of the samples")
        behind = SampleOrder(self.total, self.transforms[number + 1 :])
        return lambda positions: key_of(behind.ids(positions, epoch, key_of))
