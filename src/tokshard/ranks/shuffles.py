"""Shuffles: transforms that are bijections of all positions of an epoch.

They are links of the chain in :mod:`tokshard.ranks.order`. ``forward(positions, epoch)`` goes from the
positions that ranks read towards sample ids, ``inverse(positions, epoch)`` back; both take and return int64
arrays of shape ``(n,)``, and each element can be asked for alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tokshard.core.algorithms import FEISTEL_ALGORITHM, SORTED_ALGORITHM
from tokshard.core.codec import Count, Positive, Record
from tokshard.core.keyed_orders import (
    Bijection,
    derive_key,
    sorted_order,
    subkeys,
)
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TorchPermutation(Record):
    """The transform ``torch-permutation``, Megatron's cyclic order: a random permutation of each block.

    It holds the permutation of an epoch (4 bytes per element, below 2**31 elements) once it is requested.

    Attributes:
        samples: Number of positions. Positions after the last block are unchanged.
        length: Positions of a block.
        blocks: Number of blocks: the data-parallel size with data sharding, otherwise 1.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "torch-permutation")
    ALGORITHM: ClassVar[str] = "torch.randperm/1"

    samples: Positive
    length: Positive
    blocks: Positive

    def _validate(self) -> None:
        if self.length * self.blocks > self.samples:
            raise UsageError(
                f"blocks x block_length must fit in {self.samples} samples, got {self.blocks} x {self.length}"
            )

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this transform of each position after it."""
        return self._apply(positions, _torch_order(self.length, epoch))

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this transform of each position before it."""
        return self._apply(positions, _torch_places(self.length, epoch))

    def _apply(self, positions: Integers, table: NDArray[Any]) -> Integers:
        block, place = np.divmod(positions, self.length)
        return np.where(block < self.blocks, block * self.length + table[place], positions)


@dataclass(frozen=True, slots=True)
class Shuffle(Record):
    """The transform ``shuffle``, which permutes positions within windows. One window is a full shuffle.

    Attributes:
        samples: Number of positions.
        window: Positions of a window.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "shuffle")
    ALGORITHM: ClassVar[str] = FEISTEL_ALGORITHM

    samples: Positive
    window: Positive
    seed: Count
    per_epoch: bool

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this transform of each position after it."""
        return self._apply(positions, epoch, inverse=False)

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this transform of each position before it."""
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
class ShardShuffle(Record):
    """The transform ``shard-shuffle``, which permutes shards and keeps the order within each.

    Attributes:
        sizes: Number of samples of each shard, in key order.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "shard-shuffle")
    ALGORITHM: ClassVar[str] = SORTED_ALGORITHM

    sizes: tuple[Count, ...]
    seed: Count
    per_epoch: bool

    def _validate(self) -> None:
        if not sum(self.sizes):
            raise UsageError("shards must have at least 1 sample in total")

    @property
    def samples(self) -> int:
        """The number of positions."""
        return sum(self.sizes)

    def order(self, epoch: int) -> Integers:
        """Return the numbers of the shards in the order of an epoch."""
        return _shard_tables(self, epoch if self.per_epoch else 0)[0]

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this transform of each position after it."""
        order, starts, places = _shard_tables(self, epoch if self.per_epoch else 0)
        which = np.searchsorted(places, positions, side="right") - 1
        return starts[order[which]] + (positions - places[which])

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this transform of each position before it."""
        order, starts, places = _shard_tables(self, epoch if self.per_epoch else 0)
        shard = np.searchsorted(starts, positions, side="right") - 1
        return places[np.argsort(order)[shard]] + (positions - starts[shard])


@dataclass(frozen=True, slots=True)
class BlockShuffle(Record):
    """The transform ``block-shuffle``, which permutes blocks of positions and keeps the order within each.

    Followed by a :class:`Shuffle` within windows of several blocks, this is the windowed shuffle. The last
    block is short if the samples are no multiple of its size; it takes any place, as the others do.

    Example:
        >>> BlockShuffle(8, 3, seed=2, per_epoch=True).forward(np.arange(8), epoch=2).tolist()
        [6, 7, 3, 4, 5, 0, 1, 2]

    Attributes:
        samples: Number of positions.
        block: Positions of a block.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "block-shuffle")
    ALGORITHM: ClassVar[str] = FEISTEL_ALGORITHM

    samples: Positive
    block: Positive
    seed: Count
    per_epoch: bool

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position before this transform of each position after it."""
        bijection, key, gap, missing = self._of_epoch(epoch)
        places, offsets = np.divmod(positions + (positions >= gap) * missing, self.block)
        return bijection.forward(places, key) * self.block + offsets

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position after this transform of each position before it."""
        bijection, key, gap, missing = self._of_epoch(epoch)
        blocks, offsets = np.divmod(positions, self.block)
        shuffled = bijection.inverse(blocks, key) * self.block + offsets
        return shuffled - (shuffled >= gap) * missing

    def _of_epoch(self, epoch: int) -> tuple[Bijection, NDArray[np.uint64], int, int]:
        # Returns the bijection of the blocks and its key, where the short block ends, and how many positions
        # it has less than the others. With these added, positions from there on are aligned to blocks.
        base = derive_key(f"{FEISTEL_ALGORITHM}:blocks", self.seed, epoch if self.per_epoch else 0)
        key = np.full(1, base, dtype=np.uint64)
        count = -(-self.samples // self.block)
        bijection, missing = Bijection(count), count * self.block - self.samples
        place = int(bijection.inverse(np.array([count - 1], dtype=np.int64), key)[0])
        return bijection, key, (place + 1) * self.block - missing, missing


# Two epochs are requested alternately if a batch spans their boundary.
@functools.lru_cache(maxsize=2)
def _torch_order(length: int, seed: int) -> NDArray[Any]:
    from tokshard.ranks.permutation import torch_randperm  # most plans do without

    order: NDArray[Any] = torch_randperm(length, seed)
    return order.astype(np.int32) if length < 2**31 else order


@functools.lru_cache(maxsize=2)
def _torch_places(length: int, seed: int) -> NDArray[Any]:
    order = _torch_order(length, seed)
    places = np.empty_like(order)
    places[order] = np.arange(length, dtype=order.dtype)
    return places


@functools.lru_cache(maxsize=8)
def _shard_tables(transform: ShardShuffle, epoch: int) -> tuple[Integers, Integers, Integers]:
    # Returns (shard at each place, first position of each shard, first position of each place).
    sizes = np.array(transform.sizes, dtype=np.int64)
    order = sorted_order(sizes.size, derive_key(f"{SORTED_ALGORITHM}:shards", transform.seed, epoch))
    return order, np.cumsum(sizes) - sizes, np.cumsum(sizes[order]) - sizes[order]
