"""Memory of micro-batches that is reused once no array refers to it.

A micro-batch is close to a megabyte, which ``malloc`` gives back to the system as soon as it is free and
asks for again at the next one: hundreds of page faults, which can cost more than all other work. So the
arrays of a micro-batch lie in one block, and a block whose arrays are all gone is handed out again.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import accumulate
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Layout = tuple[tuple[tuple[int, ...], DTypeLike], ...]
    """The shapes and dtypes of some arrays."""

# A trainer holds a micro-batch or two while the next is made. Blocks beyond these belong to their arrays.
_KEPT_BLOCKS = 4
_ALIGNMENT = 64
# Rows are often a multiple of 4,096 bytes long. Without a gap, the addresses of tokens and labels are equal
# modulo 4,096, and copying one to the other is several times slower (`scripts/bench loader`).
_STAGGER = 1024


class Memory:
    """Allocator of groups of arrays whose memory is reused once none of them is left. Threads may share it.

    Each array, part of one and buffer over one holds a reference to its block, so the number of these
    references tells whether a block is in use.

    Example:
        >>> memory, layout = Memory(), (((5,), np.int64), ((3,), np.float32))
        >>> one, other = memory.arrays(layout)
        >>> address, part = one.ctypes.data, one[1:3]
        >>> del one, other
        >>> two, _ = memory.arrays(layout)
        >>> two.ctypes.data == address
        False
        >>> del part
        >>> memory.arrays(layout)[0].ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque(maxlen=_KEPT_BLOCKS)

    def arrays(self, layout: Layout) -> list[NDArray[Any]]:
        """Return uninitialized arrays of the shapes and dtypes of ``layout``."""
        block = self._unused(layout) or _Block(layout)
        arrays = [array[...] for array in block.arrays]
        self._blocks.append(block)
        return arrays

    def _unused(self, layout: Layout) -> _Block | None:
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()  # from here on, other threads do not see it
            except IndexError:
                return None
            if block.count() != block.references:
                self._blocks.append(block)
            elif block.layout == layout or block.arrange(layout):
                return block
        return None


class _Block:
    def __init__(self, layout: Layout) -> None:
        self.content = np.empty(_offsets(layout)[-1], np.uint8)
        self.arrange(layout)

    def arrange(self, layout: Layout) -> bool:
        """Divide the block, to which nothing else may refer, into arrays; return False if it is too small."""
        offsets = _offsets(layout)
        if offsets[-1] > len(self.content):
            return False
        self.layout = layout
        self.arrays: list[NDArray[Any]] = []
        self.arrays = [
            np.ndarray(shape, dtype, self.content, offset)
            for (shape, dtype), offset in zip(layout, offsets, strict=False)
        ]
        # Measured, because the number while nothing else refers to the block depends on the interpreter.
        self.references = self.count()
        return True

    def count(self) -> int:
        """Return the number of references to the block."""
        return getrefcount(self.content)


def _offsets(layout: Layout) -> list[int]:
    sizes = (math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout)
    return [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT + _STAGGER for size in sizes)]
