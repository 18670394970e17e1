"""The compiled loops of an index: the ordered shuffle and the rows of the sample index.

Plain functions for :func:`tokshard.gpt_index.compilation.compiled`, which call nothing but numpy. What
they do is limited by memory that answers slowly, not by arithmetic; so each works in blocks, and asks
for all places of a block at once before it uses the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATE_WORDS = 624
SHIFT_WORDS = 397

BLOCK = 1024
"""Places asked for at once. Fewer leave memory idle; of many more the first have left the cache again
when they are used."""


def shuffle_steps(
    array: NDArray[Any],
    first: int,
    last: int,
    key: NDArray[np.uint32],
    position: int,
    chosen: NDArray[np.int64],
) -> int:
    """Do some steps of ``RandomState.shuffle``: entry i changes places with a random one of 0 to i.

    Args:
        array: The array, of fewer than 2**32 entries.
        first: The entry of the first step.
        last: The entry of the last step, at least 1 and at most ``first``: steps go downwards.
        key: The 624 words of the Mersenne Twister, changed in place.
        position: Its next word; 624 when all are used.
        chosen: Room for ``BLOCK + 2`` numbers: the partners of a block, one drawn in vain, and a sum
            that keeps the reading ahead from being removed as useless.

    Returns:
        The new position.
    """
    ready = False
    words = np.empty(STATE_WORDS, np.uint32)
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
            if position == STATE_WORDS:
                for k in range(STATE_WORDS - SHIFT_WORDS):
                    y = (key[k] & np.uint32(0x80000000)) | (key[k + 1] & np.uint32(0x7FFFFFFF))
                    y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                    key[k] = key[k + SHIFT_WORDS] ^ y
                for k in range(STATE_WORDS - SHIFT_WORDS, STATE_WORDS - 1):
                    y = (key[k] & np.uint32(0x80000000)) | (key[k + 1] & np.uint32(0x7FFFFFFF))
                    y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                    key[k] = key[k + SHIFT_WORDS - STATE_WORDS] ^ y
                y = (key[STATE_WORDS - 1] & np.uint32(0x80000000)) | (key[0] & np.uint32(0x7FFFFFFF))
                y = (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1)))
                key[STATE_WORDS - 1] = key[SHIFT_WORDS - 1] ^ y
                position = 0
                ready = False
            if not ready:
                for k in range(position, STATE_WORDS):
                    y = key[k]
                    y ^= y >> np.uint32(11)
                    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
                    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
                    words[k] = y ^ (y >> np.uint32(18))
                ready = True
            while position < STATE_WORDS and drawn < steps:
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


def sample_rows(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    position: int,
    token: int,
    rows: NDArray[Any],
    row: int,
    sequence_length: int,
    extra: int,
) -> tuple[int, int]:
    """Write the rows of the sample index that fall on a piece of the document index.

    Args:
        lengths: The tokens of each sequence of the dataset.
        documents: The piece; all its entries are numbers of sequences.
        position: Where the piece begins in the document index.
        token: How many tokens lie before the piece.
        rows: The sample index, of shape (samples + 1, 2).
        row: The first row that is not written yet.
        sequence_length: The tokens of a sample.
        extra: 1 where a sample has one more token, else 0.

    Returns:
        The first row that is not written now, and how many tokens lie before the end of the piece.
    """
    ahead = np.empty(BLOCK, np.int64)
    wanted = row * sequence_length + extra - 1
    for begin in range(0, len(documents), BLOCK):
        count = min(BLOCK, len(documents) - begin)
        for k in range(count):
            ahead[k] = lengths[documents[begin + k]]
        for k in range(count):
            end = token + int(ahead[k])
            while wanted < end and row < len(rows):
                rows[row, 0] = position + begin + k
                rows[row, 1] = row * sequence_length - token
                row += 1
                wanted += sequence_length
            token = end
    return row, token
