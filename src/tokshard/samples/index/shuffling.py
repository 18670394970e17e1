"""Shuffling, bit-identical to numpy's legacy generator and several times faster for large arrays.

The kernel is kept for its speed: ``scripts/bench indices`` measures it against Megatron.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.samples.index.seed import check_seed
from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STATE_WORDS = 624
_SHIFT_WORDS = 397

BLOCK = 1024
"""Partners drawn at once. Fewer leave memory idle; with many more, the first are evicted from the cache
before they are used."""

# From 2**32 entries on, numpy draws 64 bits for a step; such arrays are shuffled by numpy.
_MAX_COMPILED_ENTRIES = 2**32 - 1

# Steps of one call of the kernel, about a tenth of a second: signals are handled between calls.
_STEPS_OF_A_CALL = 1 << 22


class ShuffleStream:
    """A stream of random numbers that shuffles arrays one after the other.

    The results are those of ``numpy.random.RandomState(seed).shuffle`` over the same calls, which numpy
    guarantees to be stable. An array larger than the processor's caches is shuffled 3 to 5 times faster,
    because the partners of the next steps are drawn ahead and prefetched. It needs no memory besides the
    array.

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
            array: Any dtype; fast if contiguous with items of 4 or 8 bytes.
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
        chosen, words = np.empty(BLOCK + 2, np.int64), np.empty(_STATE_WORDS, np.uint32)
        for first in range(array.size - 1, 0, -_STEPS_OF_A_CALL):
            last = max(1, first - _STEPS_OF_A_CALL + 1)
            position = kernel(array, first, last, key, position, chosen, words)
        state["state"].update(key=key, pos=position)
        self._random.set_state(state)


def shuffle_steps(
    array: NDArray[Any],
    first: int,
    last: int,
    key: NDArray[np.uint32],
    position: int,
    chosen: NDArray[np.int64],
    words: NDArray[np.uint32],
) -> int:
    """Do some steps of ``RandomState.shuffle``: swap entry i with a random one of 0 to i.

    Args:
        array: The array, of fewer than 2**32 entries.
        first: The entry of the first step.
        last: The entry of the last step, at least 1 and at most ``first``: steps go downwards.
        key: The 624 words of the Mersenne Twister, changed in place.
        position: Its next word; 624 when all are used.
        chosen: Room for ``BLOCK + 2`` numbers: the partners of a block, one drawn in vain, and a sum
            that keeps the reading ahead from being removed as useless.
        words: Room for 624 words: those of the state as they are drawn.

    Returns:
        The new position.
    """
    ready = False
    i = first
    while i >= last:
        # A partner is a word cut to as many bits as i has, drawn again while it is larger than i. The
        # steps of a block share the mask.
        mask = 1
        while mask < i:
            mask = mask * 2 + 1
        steps = min(BLOCK, i - last + 1, i - (mask >> 1))
        drawn = 0
        while drawn < steps:
            if position == _STATE_WORDS:
                for k in range(_STATE_WORDS - _SHIFT_WORDS):
                    y = (key[k] & np.uint32(0x80000000)) | (key[k + 1] & np.uint32(0x7FFFFFFF))
                    y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                    key[k] = key[k + _SHIFT_WORDS] ^ y
                for k in range(_STATE_WORDS - _SHIFT_WORDS, _STATE_WORDS - 1):
                    y = (key[k] & np.uint32(0x80000000)) | (key[k + 1] & np.uint32(0x7FFFFFFF))
                    y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                    key[k] = key[k + _SHIFT_WORDS - _STATE_WORDS] ^ y
                y = (key[_STATE_WORDS - 1] & np.uint32(0x80000000)) | (key[0] & np.uint32(0x7FFFFFFF))
                y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                key[_STATE_WORDS - 1] = key[_SHIFT_WORDS - 1] ^ y
                position = 0
                ready = False
            if not ready:
                for k in range(position, _STATE_WORDS):
                    y = key[k]
                    y ^= y >> np.uint32(11)
                    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
                    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
                    words[k] = y ^ (y >> np.uint32(18))
                ready = True
            while position < _STATE_WORDS and drawn < steps:
                partner = int(words[position]) & mask
                position += 1
                chosen[drawn] = partner
                # Counted without a branch, which would be guessed wrong for every second or third word.
                drawn += partner <= i - drawn
        ahead = 0
        for k in range(steps):
            ahead ^= int(array[chosen[k]])
        chosen[BLOCK + 1] = ahead
        for k in range(steps):
            value = array[chosen[k]]
            array[chosen[k]] = array[i - k]
            array[i - k] = value
        i -= steps
    return position
