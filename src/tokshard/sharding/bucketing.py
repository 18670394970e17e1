"""Samples of similar length together: an order that depends on the samples' sort keys.

Positions are cut into windows of ``buffer``. A window is sorted by key, with ties in random order; the
sorted window is cut into packs of ``pack``; packs come in random order, and so do the members of each. A
last pack that is short stays last, so that packs stay aligned with micro-batches. Everything is a function
of (seed, epoch, window) and the window's keys, so any position can be asked for at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.keyed import derive_key, hashes, sorted_order, subkeys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    KeyOf = Callable[[Integers], NDArray[Any]]

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
