"""Shuffles: links that are bijections of the positions of an epoch.

A new shuffle is a name in :mod:`tokshard.ranks.choices`, a class here that :data:`ShuffleLink` contains, and
a case of :func:`shuffle_links`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tokshard.core.algorithms import FEISTEL_ALGORITHM, SORTED_ALGORITHM
from tokshard.core.codec import Count, Positive
from tokshard.core.keyed_orders import Bijection, derive_key, sorted_order, subkeys
from tokshard.errors import UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.links import Link, seed_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def shuffle_links(
    shuffling: Shuffling,
    samples: int,
    seed: int,
    *,
    dataset_sizes: Sequence[int] = (),
    per_epoch: bool = True,
) -> tuple[ShuffleLink, ...]:
    """Return the links of a shuffle.

    Args:
        shuffling: The value of ``--shuffle``.
        samples: Number of samples.
        seed: Seed.
        dataset_sizes: Number of samples of each dataset.
        per_epoch: Whether each epoch has its own order.
    """
    match shuffling.name:
        case "samples":
            return (Shuffle(samples, samples, seed, per_epoch),)
        case "windows":
            block = min(shuffling.block, samples)
            window = min(shuffling.block * shuffling.window, samples)
            return (Shuffle(samples, window, seed, per_epoch), BlockShuffle(samples, block, seed, per_epoch))
        case "datasets":
            return (DatasetShuffle(tuple(dataset_sizes), seed, per_epoch),)
    return ()


@dataclass(frozen=True, slots=True)
class TorchPermutation(Link):
    """The link ``torch-permutation``, Megatron's cyclic order: a random permutation of each block.

    It holds the permutation of an epoch (4 bytes per element, below 2**31 elements) once it is requested.

    Attributes:
        samples: Number of positions. Positions after the last block are unchanged.
        length: Positions of a block.
        blocks: Number of blocks: the data-parallel size with data sharding, otherwise 1.
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "torch-permutation")
    ALGORITHM: ClassVar[str] = "torch.randperm/1"

    samples: Positive
    length: Positive
    blocks: Positive

    def _validate(self) -> None:
        if self.length * self.blocks > self.samples:
            raise UsageError(
                f"blocks x length must fit in {self.samples} samples, got {self.blocks} x {self.length}"
            )

    @property
    def words(self) -> str:
        """The link for people."""
        part = "all" if self.blocks == 1 else f"each of {self.blocks:,} blocks of"
        return f"{part} {self.length:,} permuted by {self.ALGORITHM}, seeded by the epoch"

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        table = (_torch_places if inverse else _torch_order)(self.length, epoch)
        block, place = np.divmod(positions, self.length)
        # Places of positions after the last block are in the table as well, and are not used.
        return np.where(block < self.blocks, block * self.length + table[place], positions)


@dataclass(frozen=True, slots=True)
class Shuffle(Link):
    """The link ``shuffle``, which permutes positions within windows. One window is a full shuffle.

    Attributes:
        samples: Number of positions.
        window: Positions of a window.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "shuffle")
    ALGORITHM: ClassVar[str] = FEISTEL_ALGORITHM

    samples: Positive
    window: Positive
    seed: Count
    per_epoch: bool

    @property
    def words(self) -> str:
        """The link for people."""
        part = "all" if self.window >= self.samples else f"windows of {self.window:,} samples"
        return f"{part} shuffled by {self.ALGORITHM}, {seed_words(self.seed, per_epoch=self.per_epoch)}"

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        base = derive_key(f"{FEISTEL_ALGORITHM}:samples", self.seed, epoch if self.per_epoch else 0)
        full_windows = self.samples // self.window
        windows, places = np.divmod(positions, self.window)
        result = np.empty(positions.shape, dtype=np.int64)
        is_short = windows >= full_windows
        last_length = self.samples - full_windows * self.window
        for chosen, length in ((~is_short, self.window), (is_short, last_length)):
            if chosen.any():
                bijection = Bijection(length)
                move = bijection.inverse if inverse else bijection.forward
                result[chosen] = move(places[chosen], subkeys(base, windows[chosen]))
        return windows * self.window + result


@dataclass(frozen=True, slots=True)
class DatasetShuffle(Link):
    """The link ``dataset-shuffle``, which permutes datasets and keeps the order within each.

    Attributes:
        sizes: Number of samples of each dataset.
        seed: Seed.
        per_epoch: Whether each epoch has its own order.
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "dataset-shuffle")
    ALGORITHM: ClassVar[str] = SORTED_ALGORITHM

    sizes: tuple[Count, ...]
    seed: Count
    per_epoch: bool

    def _validate(self) -> None:
        if not sum(self.sizes):
            raise UsageError("datasets must have at least 1 sample in total")

    @property
    def samples(self) -> int:
        """The number of positions."""
        return sum(self.sizes)

    @property
    def words(self) -> str:
        """The link for people."""
        from tokshard.core.formatting import counted  # the loader needs no words

        datasets = counted(len(self.sizes), "dataset")
        seed = seed_words(self.seed, per_epoch=self.per_epoch)
        return f"{datasets} in random order by {self.ALGORITHM}, {seed}"

    def order(self, epoch: int) -> Integers:
        """Return the numbers of the datasets in the order of an epoch."""
        return _dataset_tables(self, epoch if self.per_epoch else 0)[0]

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        order, starts, places = _dataset_tables(self, epoch if self.per_epoch else 0)
        if inverse:
            # An empty dataset starts where the next one does: the last one that starts there has the sample.
            dataset = np.searchsorted(starts, positions, side="right") - 1
            return places[np.argsort(order)[dataset]] + (positions - starts[dataset])
        place = np.searchsorted(places, positions, side="right") - 1
        return starts[order[place]] + (positions - places[place])


@dataclass(frozen=True, slots=True)
class BlockShuffle(Link):
    """The link ``block-shuffle``, which permutes blocks of positions and keeps the order within each.

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

    TAG: ClassVar[tuple[str, str]] = ("link", "block-shuffle")
    ALGORITHM: ClassVar[str] = FEISTEL_ALGORITHM

    samples: Positive
    block: Positive
    seed: Count
    per_epoch: bool

    @property
    def words(self) -> str:
        """The link for people."""
        from tokshard.core.formatting import counted  # the loader needs no words

        blocks = f"blocks of {counted(self.block, 'sample')} in random order"
        return f"{blocks} by {self.ALGORITHM}, {seed_words(self.seed, per_epoch=self.per_epoch)}"

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        base = derive_key(f"{FEISTEL_ALGORITHM}:blocks", self.seed, epoch if self.per_epoch else 0)
        key = np.full(1, base, dtype=np.uint64)
        blocks = -(-self.samples // self.block)
        bijection = Bijection(blocks)
        # With the positions that the short block lacks added, positions behind it are aligned to blocks.
        missing = blocks * self.block - self.samples
        short_place = int(bijection.inverse(np.array([blocks - 1], dtype=np.int64), key)[0])
        short_end = (short_place + 1) * self.block - missing
        if inverse:
            block, offset = np.divmod(positions, self.block)
            shuffled = bijection.inverse(block, key) * self.block + offset
            return shuffled - (shuffled >= short_end) * missing
        place, offset = np.divmod(positions + (positions >= short_end) * missing, self.block)
        return bijection.forward(place, key) * self.block + offset


ShuffleLink = TorchPermutation | Shuffle | DatasetShuffle | BlockShuffle


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
def _dataset_tables(link: DatasetShuffle, epoch: int) -> tuple[Integers, Integers, Integers]:
    """Return the dataset at each place, the first position of each dataset and of each place."""
    sizes = np.array(link.sizes, dtype=np.int64)
    order = sorted_order(sizes.size, derive_key(f"{SORTED_ALGORITHM}:shards", link.seed, epoch))
    return order, np.cumsum(sizes) - sizes, np.cumsum(sizes[order]) - sizes[order]
