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

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import numpy as np

from tokshard.core.codec import Key
from tokshard.errors import UsageError
from tokshard.sharding.feistel import (
    FEISTEL_ALGORITHM,
    SORTED_ALGORITHM,
    Bijection,
    derive_key,
    hashes,
    sorted_order,
    subkeys,
)
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.layouts import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    KeyOf = Callable[[Integers], NDArray[Any]]


TORCH_ALGORITHM: Final = "torch.randperm/1"
BUCKETING_ALGORITHM: Final = "tokshard.bucketing/1"


@dataclass(frozen=True, slots=True)
class TorchPermutation:
    """Megatron's cyclic order: blocks of positions, all permuted by ``torch.randperm`` seeded by the epoch.

    It holds the permutation of an epoch (4 bytes per element, below 2**31 elements) once it is requested.

    Attributes:
        samples: The number of positions; those after the last block stay where they are.
        length: The positions of a block.
        blocks: The number of blocks: the data-parallel size with data sharding, 1 without.
        algorithm: The frozen name of this order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "torch-permutation")

    samples: Annotated[int, Key("samples", "Positions that it orders.", minimum=1)]
    length: Annotated[int, Key("block_length", "Positions of a block.", minimum=1)]
    blocks: Annotated[int, Key("blocks", "Number of blocks.", minimum=1)]
    algorithm: Annotated[Literal["torch.randperm/1"], Key("algorithm", "Name of the frozen algorithm.")] = (
        TORCH_ALGORITHM
    )

    def __post_init__(self) -> None:
        if min(self.length, self.blocks) < 1 or self.length * self.blocks > self.samples:
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
class Shuffle:
    """Positions shuffled within windows; one window for all of them is a full shuffle.

    Attributes:
        samples: The number of positions.
        window: The positions of a window.
        seed: The seed.
        per_epoch: Whether each epoch has its own order.
        algorithm: The frozen name of this order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "shuffle")

    samples: Annotated[int, Key("samples", "Positions that it orders.", minimum=1)]
    window: Annotated[
        int, Key("window", "Positions of a window, within which positions are shuffled.", minimum=1)
    ]
    seed: Annotated[int, Key("seed", "Seed.", minimum=0)]
    per_epoch: Annotated[bool, Key("per_epoch", "Whether each epoch has its own order.")] = True
    algorithm: Annotated[Literal["tokshard.feistel/1"], Key("algorithm", "Name of the frozen algorithm.")] = (
        FEISTEL_ALGORITHM
    )

    def __post_init__(self) -> None:
        if self.samples < 1 or self.window < 1:
            raise UsageError(f"window must be from 1 to the {self.samples} samples, got {self.window}")

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
class ShardShuffle:
    """Shards in random order, the samples of each in their own.

    Attributes:
        sizes: The number of samples of each shard, in key order.
        seed: The seed.
        per_epoch: Whether each epoch has its own order.
        algorithm: The frozen name of this order.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "shard-shuffle")

    sizes: Annotated[tuple[int, ...], Key("shard_samples", "Samples of each shard.", minimum=0)]
    seed: Annotated[int, Key("seed", "Seed.", minimum=0)]
    per_epoch: Annotated[bool, Key("per_epoch", "Whether each epoch has its own order.")] = True
    algorithm: Annotated[Literal["tokshard.sorted/1"], Key("algorithm", "Name of the frozen algorithm.")] = (
        SORTED_ALGORITHM
    )

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 0 or not sum(self.sizes):
            raise UsageError("shard sizes must be at least 0, with at least 1 sample in total")

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
class Selection:
    """Only some positions, in ascending order: the unread rest of an order.

    Attributes:
        of: The number of positions to select from.
        kept: Those that are selected.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "selection")

    of: Annotated[int, Key("selected_from", "Number of positions to select from.", minimum=1)]
    kept: Annotated[Intervals, Key("selected", "Positions that are selected.")]

    def __post_init__(self) -> None:
        if not self.kept.count or int(self.kept.stops[-1]) > self.of:
            raise UsageError(f"a selection must keep from 1 to {self.of} positions")

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
class ConsumptionOrder:
    """Positions in the order in which all ranks of a layout read them, and then those that it drops.

    With it another world continues exactly in the order of this one, whatever its layout: micro-batch by
    micro-batch, and within each rank by rank.

    Attributes:
        layout: The layout, without repeated samples.
        micro_batch_size: The samples of a micro-batch of one rank.
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "consumption-order")

    layout: Annotated[Layout, Key("layout", "Layout whose ranks consume the positions.")]
    micro_batch_size: Annotated[
        int, Key("micro_batch_size", "Samples of a micro-batch of one rank.", minimum=1)
    ]

    def __post_init__(self) -> None:
        per_rank = self.layout.samples_per_rank
        if per_rank is None or per_rank % self.micro_batch_size:
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
        return (self.layout.samples_per_rank or 0) * self.layout.ranks

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


# Two epochs are requested alternately if a batch spans their boundary.
@functools.lru_cache(maxsize=2)
def _torch_order(length: int, seed: int) -> NDArray[Any]:
    from tokshard.sharding.permutation import torch_randperm  # most plans do without

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


@dataclass(frozen=True, slots=True)
class Bucketing:
    """A bijection of positions that brings similar keys together.

    Attributes:
        samples: The number of positions.
        buffer: The positions of a window, a multiple of the pack: memory and reading ahead grow with it.
        pack: How many similar samples come together: micro batch size times data-parallel size, so that
            all ranks have similar work at the same time.
        seed: The seed.
        per_epoch: Whether each epoch has its own order.
        algorithm: The frozen name of this order.

    Raises:
        UsageError: The buffer is not a multiple of the pack.

    Example:
        >>> lengths = np.array([9, 1, 8, 2, 7, 3, 6, 4])
        >>> bucketing = Bucketing(8, buffer=8, pack=2, seed=1)
        >>> order = bucketing.forward(np.arange(8), 0, lengths.__getitem__)
        >>> sorted(tuple(sorted(pair)) for pair in lengths[order].reshape(4, 2).tolist())
        [(1, 2), (3, 4), (6, 7), (8, 9)]
    """

    TAG: ClassVar[tuple[str, str]] = ("transform", "bucketing")

    samples: Annotated[int, Key("samples", "Positions that it orders.", minimum=1)]
    buffer: Annotated[int, Key("buffer", "Positions of a window that is sorted.", minimum=1)]
    pack: Annotated[int, Key("pack", "Similar samples that stay together.", minimum=1)]
    seed: Annotated[int, Key("seed", "Seed.", minimum=0)]
    per_epoch: Annotated[bool, Key("per_epoch", "Whether each epoch has its own order.")] = True
    algorithm: Annotated[
        Literal["tokshard.bucketing/1"], Key("algorithm", "Name of the frozen algorithm.")
    ] = BUCKETING_ALGORITHM

    def __post_init__(self) -> None:
        if self.samples < 1 or self.pack < 1 or self.buffer < 1 or self.buffer % self.pack:
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
        base = derive_key(BUCKETING_ALGORITHM, self.seed, epoch if self.per_epoch else 0)
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


Transform = Bucketing | TorchPermutation | Shuffle | ShardShuffle | Selection | ConsumptionOrder

# A chain grows by a selection or two with each replan that changes the mode.
MAX_TRANSFORMS = 1000


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """An order of (some of) the ids 0 to ``total - 1``.

    Attributes:
        total: The number of ids of the data.
        transforms: From the reading end to the data; none for the order of the ids.

    Raises:
        UsageError: Two transforms that follow each other do not fit.

    Example:
        >>> order = SampleOrder(10, (Selection(10, Intervals.of([(2, 4), (8, 10)])),))
        >>> order.samples, order.ids(np.arange(4), epoch=0).tolist()
        (4, [2, 3, 8, 9])
        >>> order.positions(np.array([8, 0]), epoch=0).tolist()
        [2, -1]
    """

    total: Annotated[int, Key("samples", "Number of sample ids.", minimum=1)]
    transforms: Annotated[
        tuple[Transform, ...],
        Key("transforms", "Index transforms, from the positions that ranks read to the ids."),
    ] = ()

    def __post_init__(self) -> None:
        if self.total < 1:
            raise UsageError(f"an order must have at least 1 sample, got {self.total}")
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
            kept = first.kept.select(unread)
            return SampleOrder(self.total, (Selection(first.of, kept), *self.transforms[1:]))
        return SampleOrder(self.total, (Selection(self.samples, unread), *self.transforms))

    def before(self, transform: Transform) -> SampleOrder:
        """Return this order with one more transform at the reading end."""
        return SampleOrder(self.total, (transform, *self.transforms))

    def _keys_behind(self, number: int, epoch: int, key_of: KeyOf | None) -> KeyOf:
        if key_of is None:
            raise UsageError("an order with bucketing requires the sort keys of the samples")
        behind = SampleOrder(self.total, self.transforms[number + 1 :])
        return lambda positions: key_of(behind.ids(positions, epoch, key_of))
