"""Memory of micro-batches that is reused once no array refers to it.

A micro-batch is close to a megabyte, which ``malloc`` gives back to the system as soon as it is free and
asks for again at the next one: hundreds of page faults, which can cost more than all other work. So the
arrays of a micro-batch lie in one block, and a block whose arrays are all gone is handed out again.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# A trainer holds a micro-batch or two while the next is made; what lies idle beyond that is freed.
_KEPT_BLOCKS = 3
_ALIGNMENT = 64


class Memory:
    """Allocator of memory blocks, which are reused once no array refers to them. Threads may share it.

    Example:
        >>> memory = Memory()
        >>> one = memory.arena(1000).new((5,), np.int64)
        >>> address, part = one.ctypes.data, one[1:3]
        >>> del one
        >>> two = memory.arena(1000).new((5,), np.int64)
        >>> two.ctypes.data == address
        False
        >>> del part
        >>> memory.arena(1000).new((5,), np.int64).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT_BLOCKS)
        self._lent: dict[weakref.ref[_Lease], NDArray[np.uint8]] = {}

    def arena(self, size_bytes: int) -> Arena:
        """Return the memory of one micro-batch.

        Args:
            size_bytes: The approximate size of all its arrays; arrays that do not fit are allocated
                separately.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(size_bytes, np.uint8)
        if len(block) < size_bytes:
            block = np.empty(size_bytes, np.uint8)
        lease = _Lease(block)
        free, lent = self._free, self._lent
        lent[weakref.ref(lease, lambda dead: free.append(lent.pop(dead)))] = block
        return Arena(np.asarray(lease))


class Arena:
    """A block from which uninitialized arrays are allocated one after the other."""

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        self._size_bytes = len(block)
        self._used = 0

    def new(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialized array from the block, or a separate one if the block is full."""
        first, last = self._used, self._used + math.prod(shape) * np.dtype(dtype).itemsize
        if last > self._size_bytes:
            return np.empty(shape, dtype)
        self._used = -(-last // _ALIGNMENT) * _ALIGNMENT
        return np.ndarray(shape, dtype, self._block.data, first)


class _Lease:
    # The arrays of a block refer to it, so that it lives as long as the longest-lived of them.
    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.block = block
        self.__array_interface__ = block.__array_interface__
