"""Shuffling with numpy's legacy generator, bit by bit, several times as fast where arrays are large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.gpt_index.compilation import WORTH_COMPILING, compiled, has_numba
from tokshard.gpt_index.kernels import BLOCK, shuffle_steps
from tokshard.gpt_index.seed import check_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

# From 2**32 entries on, numpy draws 64 bits for a step; such arrays are left to it.
_MAX_COMPILED_ENTRIES = 2**32 - 1

# Steps of one call of the kernel, about a tenth of a second: signals are handled between calls.
_STEPS_OF_A_CALL = 1 << 22


class ShuffleStream:
    """A stream of random numbers that shuffles arrays one after the other.

    The results are those of ``numpy.random.RandomState(seed).shuffle`` over the same calls, which numpy
    keeps the same for ever. An array that is larger than the processor's caches is shuffled some 3 to 5
    times as fast, because the partners of the next steps are drawn ahead and memory is asked for all of
    them at once. It needs no memory besides the array.

    Args:
        seed: From 0 to 2**32 - 1.

    Raises:
        UsageError: The seed is out of range.

    Example:
        >>> numbers = np.arange(8, dtype=np.int32)
        >>> ShuffleStream(1234).shuffle(numbers)
        >>> numbers
        array([2, 1, 6, 0, 4, 5, 3, 7], dtype=int32)
    """

    def __init__(self, seed: int) -> None:
        check_seed(seed)
        self._random = np.random.RandomState(seed)

    def shuffle(self, array: NDArray[Any]) -> None:
        """Shuffle an array of one dimension in place.

        Args:
            array: Of any dtype; fast where it is contiguous and its items have 4 or 8 bytes.
        """
        fits = array.flags.c_contiguous and array.flags.aligned and array.dtype.kind in "iu"
        worth = WORTH_COMPILING <= array.size <= _MAX_COMPILED_ENTRIES
        if worth and fits and array.itemsize in {4, 8} and has_numba():
            # Seen as unsigned integers, so that there is one compiled kernel for each width.
            self._shuffle_compiled(array.view(f"u{array.itemsize}"))
        else:
            self._random.shuffle(array)

    def _shuffle_compiled(self, array: NDArray[Any]) -> None:
        kernel = compiled(shuffle_steps)
        state = self._random.get_state(legacy=False)
        key, position = state["state"]["key"], state["state"]["pos"]
        chosen = np.empty(BLOCK + 2, np.int64)
        for first in range(array.size - 1, 0, -_STEPS_OF_A_CALL):
            last = max(1, first - _STEPS_OF_A_CALL + 1)
            position = kernel(array, first, last, key, position, chosen)
        state["state"].update(key=key, pos=position)
        self._random.set_state(state)
