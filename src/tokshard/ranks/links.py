"""Links: index transforms that lead from consumption order to sample ids.

A chain of links is read from the ranks to the data: the mode, the order in which an earlier world was going
to read, bucketing, the shuffle. ``forward`` leads from the position that the ranks consume towards sample
ids, ``inverse`` back. Both are formulas over arrays, so any element can be computed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.core.keyed_orders import derive_key, hashes, sorted_order, subkeys
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    KeyOf = Callable[[Integers], NDArray[Any]]


class Link(Record):
    """Base class of links.

    A link takes positions 0 to ``samples - 1`` to positions 0 to ``of - 1``. Arrays are int64 of shape
    ``(n,)``.
    """

    __slots__ = ()
    samples: Any

    @property
    def of(self) -> int:
        """The number of positions towards the ids."""
        return int(self.samples)

    @property
    def words(self) -> str:
        """The link for people."""
        raise NotImplementedError

    def forward(self, positions: Integers, epoch: int) -> Integers:
        """Return the position towards the ids for each position towards the ranks."""
        return self._move(positions, epoch, inverse=False)

    def inverse(self, positions: Integers, epoch: int) -> Integers:
        """Return the position towards the ranks for each position towards the ids; -1 if there is none."""
        return self._move(positions, epoch, inverse=True)

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Skip(Link):
    """The link ``skip``, which leaves out the first positions: those consumed before a stop.

    Attributes:
        samples: Number of positions that remain.
        first: Number of positions that are left out.
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "skip")

    samples: Positive
    first: Count

    @property
    def of(self) -> int:
        """The number of positions, those left out included."""
        return self.samples + self.first

    @property
    def words(self) -> str:
        """The link for people."""
        return f"the remaining {self.samples:,} of {self.of:,} samples"

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:  # noqa: ARG002
        if inverse:
            return np.where(positions >= self.first, positions - self.first, -1)
        return positions + self.first


@dataclass(frozen=True, slots=True)
class Interleave(Link):
    """The link ``interleave``, which lets each rank read its own part of the positions.

    Position ``c`` in consumption order is local index ``l = c // (b * R) * b + c % b`` of rank
    ``r = c % (b * R) // b``, where ``b`` is the micro-batch size and ``R`` the number of ranks. With ``run``
    the rank reads position ``r * run + l``, with ``run`` 0 every R-th one, ``l * R + r``. A rank that has
    fewer positions than the others repeats its last one (the last of all with ``run`` 0), or starts over with
    its first. The positions that no rank reads follow after ``read``, in ascending order.

    Example:
        >>> contiguous = Interleave(12, ranks=3, micro_batch_size=2, run=4, read=12, padding="last")
        >>> contiguous.forward(np.arange(6), epoch=0)
        array([0, 1, 4, 5, 8, 9])

    Attributes:
        total: Number of positions to distribute.
        ranks: Data-parallel size.
        micro_batch_size: Samples of a micro-batch of one rank.
        run: Number of consecutive positions that each rank owns. 0 if they read round-robin.
        read: Samples that all ranks read, those that are repeated included.
        padding: Position that a rank repeats after its own ones: its ``last``, or starting at its ``first``.
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "interleave")

    total: Positive
    ranks: Positive
    micro_batch_size: Positive
    run: Count
    read: Count
    padding: Literal["last", "first"]

    def _validate(self) -> None:
        if self.read % (self.ranks * self.micro_batch_size):
            raise UsageError(
                f"read must be divisible by ranks x micro_batch_size = "
                f"{self.ranks} x {self.micro_batch_size}, got {self.read}"
            )

    @property
    def of(self) -> int:
        """The number of positions to distribute."""
        return self.total

    @property
    def distinct(self) -> int:
        """The number of different positions among those that all ranks read."""
        per_rank = self.read // self.ranks
        if not self.run:
            return min(self.read, self.total)
        # Ranks own whole runs, then one of them a shorter one, then none.
        full, short = divmod(min(self.total, self.ranks * self.run), self.run)
        return full * min(self.run, per_rank) + min(short, per_rank)

    @property
    def first_repeated(self) -> int:
        """A position in consumption order before which no rank repeats one of its own."""
        last_run = min(max(self.total - (self.ranks - 1) * self.run, 0), self.run)
        least = last_run if self.run else self.total // self.ranks
        return least // self.micro_batch_size * self.ranks * self.micro_batch_size

    @property
    def samples(self) -> int:
        """The number of positions in consumption order: what all ranks read, and then the other positions."""
        return self.read + self.total - self.distinct

    @property
    def words(self) -> str:
        """The link for people."""
        from tokshard.core.formatting import counted  # the loader needs no words

        how = f"runs of {counted(self.run, 'sample')}" if self.run else "single samples"
        return f"{how} for each of {counted(self.ranks, 'data-parallel rank')}"

    def _move(self, positions: Integers, epoch: int, *, inverse: bool) -> Integers:  # noqa: ARG002
        return self._consumed(positions) if inverse else self._owned(positions)

    def _owned(self, consumed: Integers) -> Integers:
        group = self.ranks * self.micro_batch_size
        micro_batch, within = np.divmod(consumed, group)
        rank = within // self.micro_batch_size
        local = micro_batch * self.micro_batch_size + within % self.micro_batch_size
        if self.run:
            # A rank repeats its last position, and a rank without positions the last one of all.
            positions = np.minimum(rank * self.run + np.minimum(local, self.run - 1), self.total - 1)
        else:
            positions = local * self.ranks + rank
            repeated = rank % self.total if self.padding == "first" else self.total - 1
            positions = np.where(positions < self.total, positions, repeated)
        late = consumed - self.read
        return np.where(late < 0, positions, self._unread(np.maximum(late, 0)))

    def _unread(self, numbers: Integers) -> Integers:
        """Return the positions that no rank reads, by their numbers in ascending order."""
        if not self.run:
            return numbers + self.distinct
        per_rank = min(self.read // self.ranks, self.run)
        remaining = self.run - per_rank
        rank, within = np.divmod(numbers, max(remaining, 1))
        behind_ranks = numbers >= remaining * self.ranks
        return np.where(
            behind_ranks,
            numbers - remaining * self.ranks + self.run * self.ranks,
            rank * self.run + per_rank + within,
        )

    def _consumed(self, positions: Integers) -> Integers:
        per_rank = self.read // self.ranks
        if self.run:
            rank, local = np.divmod(positions, self.run)
            own = min(per_rank, self.run)
            remaining = self.run - own
            late = (rank >= self.ranks) | (local >= own)
            unread = np.where(
                rank >= self.ranks,
                positions - self.run * self.ranks + remaining * self.ranks,
                rank * remaining + local - own,
            )
        else:
            local, rank = np.divmod(positions, self.ranks)
            late = positions >= self.read
            unread = positions - self.distinct
        micro_batch, within = np.divmod(local, self.micro_batch_size)
        group = self.ranks * self.micro_batch_size
        consumed = micro_batch * group + rank * self.micro_batch_size + within
        return np.where(late, self.read + unread, consumed)


@dataclass(frozen=True, slots=True)
class Bucketing(Link):
    """The link ``bucketing``, which places samples with similar keys next to each other.

    Positions are cut into windows of ``buffer``. A window is sorted by key, with ties in random order. The
    sorted window is cut into packs of ``pack``; packs come in random order, and so do the members of each. A
    short last pack stays last, so that packs stay aligned with micro-batches. Everything is a function of
    (seed, epoch, window) and the window's keys.

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
        >>> order = bucketing.by_keys(np.arange(8), 0, lengths.__getitem__)
        >>> sorted(tuple(sorted(pair)) for pair in lengths[order].reshape(4, 2).tolist())
        [(1, 2), (3, 4), (6, 7), (8, 9)]
    """

    TAG: ClassVar[tuple[str, str]] = ("link", "bucketing")
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

    @property
    def words(self) -> str:
        """The link for people."""
        windows = f"windows of {self.buffer:,} samples in packs of {self.pack:,}"
        return f"{windows} by {self.ALGORITHM}, {seed_words(self.seed, per_epoch=self.per_epoch)}"

    def by_keys(self, positions: Integers, epoch: int, key_of: KeyOf, *, inverse: bool = False) -> Integers:
        """Return the positions on the other side of this link; see :meth:`Link.forward`.

        Args:
            positions: int64 of shape ``(n,)``.
            epoch: The epoch.
            key_of: Returns the sort keys (numbers) of an array of positions towards the ids. It is called
                for whole windows.
            inverse: Whether to lead back to the ranks.
        """
        result = np.empty(positions.shape, dtype=np.int64)
        windows = positions // self.buffer
        for window in np.unique(windows):
            start = int(window) * self.buffer
            stop = min(start + self.buffer, self.samples)
            keys = np.asarray(key_of(np.arange(start, stop, dtype=np.int64)))
            order = self._window_order(keys, epoch, int(window))
            if inverse:
                order = np.argsort(order)
            in_window = windows == window
            result[in_window] = start + order[positions[in_window] - start]
        return result

    def _window_order(self, keys: NDArray[Any], epoch: int, window: int) -> Integers:
        """Return the place towards the ids for each place of one window, from the window's keys."""
        base = derive_key(self.ALGORITHM, self.seed, epoch if self.per_epoch else 0)
        key = subkeys(base, np.array([window], dtype=np.int64))
        ties, packs, members = (hashes(key, np.array([part], dtype=np.int64)) for part in range(3))
        places = np.arange(keys.size, dtype=np.int64)
        by_key = np.lexsort((hashes(ties, places), keys))
        full_packs = keys.size // self.pack
        pack_order = np.append(sorted_order(full_packs, int(packs[0])), full_packs)
        pack_of_place = np.argsort(pack_order)[places // self.pack]
        return by_key[np.lexsort((hashes(members, places), pack_of_place))]


def seed_words(seed: int, *, per_epoch: bool) -> str:
    """Return the seed of an order for people."""
    return f"seed {seed}, {'different' if per_epoch else 'the same'} in each epoch"
