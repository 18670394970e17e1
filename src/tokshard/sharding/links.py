"""The links of a sample order: bijections and selections of positions, each a formula with an inverse.

A link answers ``forward(positions, epoch)``, from the positions that ranks read towards sample ids, and
``inverse(positions, epoch)``, back again, with -1 for what it leaves out. None holds a list, apart from the
sizes of shards and the intervals of a selection.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.keyed import (
    FEISTEL_ALGORITHM,
    SORTED_ALGORITHM,
    Bijection,
    derive_key,
    sorted_order,
    subkeys,
)
from tokshard.sharding.layouts import Layout
from tokshard.sharding.permutation import ALGORITHM as TORCH_ALGORITHM
from tokshard.sharding.permutation import torch_randperm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Torch:
    """Megatron's cyclic order: blocks of positions, all permuted by ``torch.randperm`` seeded by the epoch.

    It holds the permutation of an epoch (4 bytes an element below 2**31 of them) once it is asked for.

    Attributes:
        samples: The number of positions; those after the last block stay where they are.
        length: The positions of a block.
        blocks: The number of blocks: the data-parallel size with data sharding, 1 without.
        algorithm: The frozen name of this order.
    """

    samples: int
    length: int
    blocks: int
    algorithm: str = TORCH_ALGORITHM

    def __post_init__(self) -> None:
        if min(self.length, self.blocks) < 1 or self.length * self.blocks > self.samples:
            raise UsageError(f"{self.blocks} blocks of {self.length} do not fit {self.samples} samples")

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this link of each position after it."""
        return self._apply(positions, _torch_order(self.length, epoch))

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this link of each position before it."""
        return self._apply(positions, _torch_places(self.length, epoch))

    def _apply(self, positions: Integers, table: NDArray[Any]) -> Integers:
        block, place = np.divmod(positions, self.length)
        return np.where(block < self.blocks, block * self.length + table[place], positions)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Positions shuffled within windows; one window for all of them is a full shuffle.

    Attributes:
        samples: The number of positions.
        window: The positions of a window.
        seed: The seed.
        per_epoch: Whether each epoch has its own order.
        algorithm: The frozen name of this order.
    """

    samples: int
    window: int
    seed: int
    per_epoch: bool = True
    algorithm: str = FEISTEL_ALGORITHM

    def __post_init__(self) -> None:
        if self.samples < 1 or self.window < 1:
            raise UsageError(f"cannot shuffle {self.samples} samples in windows of {self.window}")

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this link of each position after it."""
        return self._apply(positions, epoch, inverse=False)

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this link of each position before it."""
        return self._apply(positions, epoch, inverse=True)

    def _apply(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        base = derive_key(f"{FEISTEL_ALGORITHM}:samples", self.seed, epoch if self.per_epoch else 0)
        whole = self.samples // self.window
        windows, places = np.divmod(positions, self.window)
        result = np.empty(positions.shape, dtype=np.int64)
        short = windows >= whole
        for which, length in ((~short, self.window), (short, self.samples - whole * self.window)):
            if which.any():
                bijection = Bijection(length)
                move = bijection.inverse if inverse else bijection.forward
                result[which] = move(places[which], subkeys(base, windows[which]))
        return windows * self.window + result


@dataclass(frozen=True, slots=True)
class ShardShuffle:
    """Shards in random order, the samples of each in their own.

    Attributes:
        sizes: The number of samples of each shard, in key order.
        seed: The seed.
        per_epoch: Whether each epoch has its own order.
        algorithm: The frozen name of this order.
    """

    sizes: tuple[int, ...]
    seed: int
    per_epoch: bool = True
    algorithm: str = SORTED_ALGORITHM

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 0 or not sum(self.sizes):
            raise UsageError("shards have sizes of 0 or more, and there is a sample in them")

    @property
    def samples(self) -> int:
        """The number of positions."""
        return sum(self.sizes)

    def order(self, epoch: int) -> Integers:
        """Return the numbers of the shards in the order of an epoch."""
        return _shard_tables(self, epoch if self.per_epoch else 0)[0]

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this link of each position after it."""
        order, starts, places = _shard_tables(self, epoch if self.per_epoch else 0)
        which = np.searchsorted(places, positions, side="right") - 1
        return starts[order[which]] + (positions - places[which])

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this link of each position before it."""
        order, starts, places = _shard_tables(self, epoch if self.per_epoch else 0)
        shard = np.searchsorted(starts, positions, side="right") - 1
        return places[np.argsort(order)[shard]] + (positions - starts[shard])


@dataclass(frozen=True, slots=True)
class Selection:
    """Only some positions, in ascending order: the unread rest of an order.

    Attributes:
        of: The number of positions to select from.
        kept: Those that are selected.
    """

    of: int
    kept: Intervals

    def __post_init__(self) -> None:
        if not self.kept.count or int(self.kept.stops[-1]) > self.of:
            raise UsageError(f"a selection of {self.of} positions keeps none, or more than there are")

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.kept.count

    def forward(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other links
        """Return the position before this link of each position after it."""
        return self.kept.nth(positions)

    def inverse(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other links
        """Return the position after this link of each position before it, or -1."""
        return self.kept.index(positions)


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Positions in the order in which all ranks of a layout read them, and then those that it drops.

    With it another world goes on in exactly the order of this one, whatever its layout: micro-batch by
    micro-batch, and within each rank by rank.

    Attributes:
        layout: The layout, without repeated samples.
        micro_batch_size: The samples of a micro-batch of one rank.
    """

    layout: Layout
    micro_batch_size: int

    def __post_init__(self) -> None:
        per_rank = self.layout.samples_per_rank
        if per_rank is None or per_rank % self.micro_batch_size:
            raise UsageError(f"micro-batches of {self.micro_batch_size} do not divide {per_rank} samples")
        if any(self.layout.owned(rank) != per_rank for rank in range(self.layout.ranks)):
            raise UsageError(
                "a layout that repeats samples has no order of reading that another world could take over",
                hint="continue in mode contiguous or chunked, which deals out what is unread",
            )

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.layout.samples

    @property
    def _read(self) -> int:
        return (self.layout.samples_per_rank or 0) * self.layout.ranks

    def forward(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other links
        """Return the position before this link of each position after it."""
        size = self.micro_batch_size
        micro_batch, place = np.divmod(np.minimum(positions, self._read - 1), size * self.layout.ranks)
        result = self.layout.at(place // size, micro_batch * size + place % size)
        late = positions >= self._read
        if late.any():
            result[late] = self.layout.dropped().nth(positions[late] - self._read)
        return result

    def inverse(self, positions: Integers, epoch: int) -> Integers:  # noqa: ARG002 - as the other links
        """Return the position after this link of each position before it."""
        size = self.micro_batch_size
        ranks, local = self.layout.locate(positions)
        micro_batch, slot = np.divmod(local, size)
        result = micro_batch * size * self.layout.ranks + ranks * size + slot
        late = ranks < 0
        if late.any():
            result[late] = self._read + self.layout.dropped().index(positions[late])
        return result


# Two epochs are asked for in turn where a batch lies across their boundary.
@functools.lru_cache(maxsize=2)
def _torch_order(length: int, seed: int) -> NDArray[Any]:
    order: NDArray[Any] = torch_randperm(length, seed)
    return order.astype(np.int32) if length < 2**31 else order


@functools.lru_cache(maxsize=2)
def _torch_places(length: int, seed: int) -> NDArray[Any]:
    order = _torch_order(length, seed)
    places = np.empty_like(order)
    places[order] = np.arange(length, dtype=order.dtype)
    return places


@functools.lru_cache(maxsize=8)
def _shard_tables(link: ShardShuffle, epoch: int) -> tuple[Integers, Integers, Integers]:
    """Return (shard at each place, first position of each shard, first position of each place)."""
    sizes = np.array(link.sizes, dtype=np.int64)
    order = sorted_order(sizes.size, derive_key(f"{SORTED_ALGORITHM}:shards", link.seed, epoch))
    return order, np.cumsum(sizes) - sizes, np.cumsum(sizes[order]) - sizes[order]
