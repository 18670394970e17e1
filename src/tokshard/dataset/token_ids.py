"""Checks of token ids that do not read all tokens: their dtype, and a sample of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tokshard.dataset.index_file import read_header
from tokshard.dataset.layout import require_integers
from tokshard.dataset.reader import IndexedDataset, open_pair
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.errors import InputError

BLOCK_BYTES = 64 * 1024
"""Bytes of a block of the sample of token ids."""

BLOCKS = 64
"""Most blocks of a dataset."""

ALL_BLOCKS = 4096
"""Most blocks of all datasets together, if each has at least :data:`FEWEST_BLOCKS`."""

FEWEST_BLOCKS = 4

_ANY_ID = 2**63
_SEED = 1234


@dataclass(frozen=True, slots=True)
class TokenBeyond:
    """A token id that is not in a vocabulary.

    Attributes:
        sequence: The number of its sequence.
        offset: Its position in the sequence.
    """

    token_id: int
    sequence: int
    offset: int


def blocks_for(datasets: int) -> int:
    """Return the most blocks to read of each of some datasets."""
    return max(FEWEST_BLOCKS, min(BLOCKS, ALL_BLOCKS // max(1, datasets)))


def check_token_ids(tokenizers: Mapping[str, DatasetTokenizer]) -> None:
    """Check what can be checked of token ids without reading all of them, with or without a tokenizer.

    Negative ids are looked for in a sample of each dataset whose tokenizer is unknown: other programs may
    have written it. ``verify --level deep`` reads all tokens.

    Args:
        tokenizers: The tokenizers of the datasets by path prefix.

    Raises:
        InputError: Tokens are no integers, or negative.
    """
    unknown = [prefix for prefix, tokenizer in tokenizers.items() if tokenizer.identity is None]
    for prefix in unknown:
        dtype = read_header(open_pair(prefix)[1]).dtype
        require_integers(dtype, prefix)
        found = find_beyond(prefix, _ANY_ID, blocks=blocks_for(len(unknown)))
        if found is not None:
            raise InputError(
                f"the token ids of {prefix} must not be negative, got {found.token_id} (token "
                f"{found.offset} of sequence {found.sequence})",
                hint="tokenize the text again: an id such as -100 masks labels, and is no token",
            )


def find_beyond(path_prefix: str, vocabulary_size: int, *, blocks: int = BLOCKS) -> TokenBeyond | None:
    """Look for a token id that is negative or beyond a vocabulary in a sample of the tokens of a dataset.

    The sample has up to ``blocks`` blocks of :data:`BLOCK_BYTES`, spread over the file, the same in each run.
    Datasets that are not larger are read whole.
    """
    file, index = open_pair(path_prefix)
    header = read_header(index)
    dtype = header.dtype
    if dtype.kind == "u" and np.iinfo(dtype).max < vocabulary_size:
        return None
    tokens, count = file.size_bytes // dtype.itemsize, BLOCK_BYTES // dtype.itemsize
    for first in _block_starts(tokens, count, blocks):
        buffer = bytearray(min(count, tokens - first) * dtype.itemsize)
        file.read_into(memoryview(buffer), first * dtype.itemsize)
        block = np.frombuffer(buffer, dtype)
        wrong = np.flatnonzero((block >= vocabulary_size) | (block < 0))
        if len(wrong):
            position = first + int(wrong[0])
            # Another program may have written it: there may be no manifest that says so.
            is_multimodal = index.size_bytes == header.index_bytes(multimodal=True)
            dataset = IndexedDataset(path_prefix, is_multimodal)
            ends = np.cumsum(dataset.sequence_lengths, dtype=np.int64)
            sequence = int(np.searchsorted(ends, position, side="right"))
            offset = position - (int(ends[sequence - 1]) if sequence else 0)
            return TokenBeyond(int(block[wrong[0]]), sequence, offset)
    return None


def _block_starts(tokens: int, count: int, blocks: int) -> Iterator[int]:
    if tokens <= count * blocks:
        yield from range(0, tokens, count)
        return
    # One block in each of equal parts: an accident in a part of the file is not missed by chance.
    for number, fraction in enumerate(np.random.default_rng(_SEED).random(blocks).tolist()):
        begin, end = tokens * number // blocks, tokens * (number + 1) // blocks
        yield begin + int(fraction * (end - begin - count))
