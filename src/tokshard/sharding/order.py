"""The order of an epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError, UsageError
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
from tokshard.sharding.layouts import Layout, layout_from_json
from tokshard.sharding.permutation import ALGORITHM as TORCH_ALGORITHM
from tokshard.sharding.permutation import torch_randperm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    KeyOf = Callable[[Integers], NDArray[Any]]


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


BUCKETING_ALGORITHM = "tokshard.bucketing/1"


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

    samples: int
    buffer: int
    pack: int
    seed: int
    per_epoch: bool = True
    algorithm: str = BUCKETING_ALGORITHM

    def __post_init__(self) -> None:
        if self.samples < 1 or self.pack < 1 or self.buffer < 1 or self.buffer % self.pack:
            raise UsageError(
                f"the bucketing buffer of {self.buffer} samples is not a positive multiple of the pack of "
                f"{self.pack}"
            )

    def forward(self, positions: Integers, epoch: int, key_of: KeyOf) -> Integers:
        """Return the position before bucketing of each position after it.

        Args:
            positions: int64 of shape ``(n,)``.
            epoch: The epoch.
            key_of: Returns the sort keys (numbers) of an array of positions before bucketing. It is asked
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
    """Return one of several keys that belong to one window."""
    return hashes(key, np.array([number], dtype=np.int64))


Link = Bucketing | Torch | Shuffle | ShardShuffle | Selection | ReadOrder

_KINDS: dict[str, type[Link]] = {
    "bucketing": Bucketing,
    "torch": Torch,
    "shuffle": Shuffle,
    "shards": ShardShuffle,
    "selection": Selection,
    "read-order": ReadOrder,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ALGORITHMS = {name: kind.__dataclass_fields__.get("algorithm") for name, kind in _KINDS.items()}

# A chain grows by a selection or two with each replan that changes the mode.
MAX_LINKS = 1000


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """An order of (some of) the ids 0 to ``total - 1``.

    Attributes:
        total: The number of ids of the data.
        links: From the reading end to the data; none for the order of the ids.

    Raises:
        UsageError: Two links that follow each other do not fit.

    Example:
        >>> order = SampleOrder(10, (Selection(10, Intervals.of([(2, 4), (8, 10)])),))
        >>> order.samples, order.ids(np.arange(4), epoch=0).tolist()
        (4, [2, 3, 8, 9])
        >>> order.positions(np.array([8, 0]), epoch=0).tolist()
        [2, -1]
    """

    total: int
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if self.total < 1:
            raise UsageError(f"there are {self.total} samples to put in order")
        if len(self.links) > MAX_LINKS:
            raise UsageError(f"an order of {len(self.links)} links is longer than {MAX_LINKS}")
        behind = self.total
        for link in reversed(self.links):
            before = link.of if isinstance(link, Selection) else link.samples
            if before != behind:
                raise UsageError(f"a {_NAMES[type(link)]} of {before} samples is put before {behind} samples")
            behind = link.samples

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.links[0].samples if self.links else self.total

    def ids(self, positions: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the sample id at each position.

        Args:
            positions: int64 of shape ``(n,)``, each 0 to ``samples - 1`` (trusted).
            epoch: The epoch.
            key_of: Returns the sort keys of an array of ids; needed with bucketing.

        Raises:
            UsageError: Bucketing without ``key_of``.
        """
        for number, link in enumerate(self.links):
            if isinstance(link, Bucketing):
                positions = link.forward(positions, epoch, self._keys_behind(number, epoch, key_of))
            else:
                positions = link.forward(positions, epoch)
        return positions

    def positions(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the position of each id, or -1 where the order leaves it out; see :meth:`ids`."""
        for number in range(len(self.links) - 1, -1, -1):
            link = self.links[number]
            known = ids >= 0
            if isinstance(link, Bucketing):
                found = link.inverse(ids[known], epoch, self._keys_behind(number, epoch, key_of))
            else:
                found = link.inverse(ids[known], epoch)
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
        if self.links and isinstance(self.links[0], Selection):
            first = self.links[0]
            kept = first.kept.select(unread)
            return SampleOrder(self.total, (Selection(first.of, kept), *self.links[1:]))
        return SampleOrder(self.total, (Selection(self.samples, unread), *self.links))

    def before(self, link: Link) -> SampleOrder:
        """Return this order with one more link at the reading end."""
        return SampleOrder(self.total, (link, *self.links))

    def _keys_behind(self, number: int, epoch: int, key_of: KeyOf | None) -> KeyOf:
        if key_of is None:
            raise UsageError("an order with bucketing needs the sort keys of the samples")
        behind = SampleOrder(self.total, self.links[number + 1 :])
        return lambda positions: key_of(behind.ids(positions, epoch, key_of))

    def to_json(self) -> dict[str, Any]:
        """Return the order as JSON values."""
        return {"total": self.total, "links": [_link_to_json(link) for link in self.links]}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the order that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or a newer tokshard's.
        """
        if not isinstance(value, dict) or set(value) != {"total", "links"} or type(value["total"]) is not int:
            raise IntegrityError(f"{path}: an order is not made of total and links", path=path)
        if not isinstance(value["links"], list):
            raise IntegrityError(f"{path}: the links of an order are not a list", path=path)
        try:
            return cls(value["total"], tuple(_link_from_json(link, path) for link in value["links"]))
        except UsageError as error:
            raise IntegrityError(f"{path}: {error}", path=path) from error


def _link_to_json(link: Link) -> dict[str, Any]:
    fields = {name: getattr(link, name) for name in link.__slots__}
    if isinstance(link, Selection):
        fields["kept"] = link.kept.to_json()
    if isinstance(link, ReadOrder):
        fields["layout"] = link.layout.to_json()
    if isinstance(link, ShardShuffle):
        fields["sizes"] = list(link.sizes)
    return {"link": _NAMES[type(link)], **fields}


def _link_from_json(value: Any, path: str) -> Link:
    name = str(value.get("link")) if isinstance(value, dict) else ""
    kind = _KINDS.get(name)
    if kind is None or set(value) != {"link", *kind.__slots__}:
        raise IntegrityError(f"{path}: a link of an order has an unknown kind or other fields", path=path)
    fields: dict[str, Any] = {field: value[field] for field in kind.__slots__}
    algorithm = _ALGORITHMS[name]
    if algorithm is not None and fields["algorithm"] != algorithm.default:
        raise IntegrityError(
            f"{path}: the algorithm of a {name} is {fields['algorithm']!r}, not {algorithm.default!r}",
            path=path,
            field="algorithm",
            hint="the plan was written by another version of tokshard: use that one",
        )
    if kind is Selection:
        fields["kept"] = Intervals.from_json(fields["kept"], path)
    if kind is ReadOrder:
        fields["layout"] = layout_from_json(fields["layout"], path)
    if kind is ShardShuffle and isinstance(fields["sizes"], list):
        fields["sizes"] = tuple(fields["sizes"])
    for field, found in fields.items():
        _check_field(field, found, path)
    try:
        return kind(**fields)
    except UsageError as error:
        raise IntegrityError(f"{path}: {error}", path=path) from error


def _check_field(name: str, value: Any, path: str) -> None:
    if name in {"kept", "layout", "algorithm"}:
        return
    if name == "per_epoch":
        good = type(value) is bool
    elif name == "sizes":
        good = isinstance(value, tuple) and all(type(size) is int for size in value)
    else:
        good = type(value) is int
    if not good:
        raise IntegrityError(f"{path}: {name} of a link of an order is {value!r}", path=path, field=name)
