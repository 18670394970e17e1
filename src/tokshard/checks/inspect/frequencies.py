"""Token frequencies of a dataset: the most and the least frequent tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.encoders import token_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTED_TOKENS = 500_000_000
"""Of larger datasets a regular sample of about so many tokens is counted, in some seconds."""

COUNTED_IDS = 1 << 22
"""Larger ids are counted together: the counters take 32 MB at most, whatever a damaged file holds."""

_BLOCK_TOKENS = 1 << 20
_ENDS = 20
_CURVE_POINTS = 128


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Number of occurrences of a token.

    Attributes:
        id: The token.
        count: Its occurrences among the counted tokens.
        text: Its text when decoded alone; None without a tokenizer.
    """

    id: int
    count: int
    text: str | None


@dataclass(frozen=True, slots=True)
class TokenFrequencies:
    """Token frequencies of a dataset.

    Attributes:
        tokens: The tokens of the dataset.
        counted: The number of them that were counted.
        distinct: The number of different tokens among these.
        vocabulary: The vocabulary size of the tokenizer, if known.
        outside: Counted tokens that are below 0 or not below :data:`COUNTED_IDS`, which are in no other
            figure.
        head: The most frequent tokens, most frequent first.
        tail: The least frequent ones that occur, least frequent first.
        curve: Pairs (rank from 1, count) at growing distances: the counts from the most to the least
            frequent token.
    """

    tokens: int
    counted: int
    distinct: int
    vocabulary: int | None
    outside: int
    head: tuple[TokenCount, ...]
    tail: tuple[TokenCount, ...]
    curve: tuple[tuple[int, int], ...]

    @property
    def share(self) -> float:
        """The share of the tokens that was counted; 1 for an empty dataset."""
        return self.counted / self.tokens if self.tokens else 1.0


def count_tokens(
    dataset: IndexedDataset,
    *,
    limit: int = COUNTED_TOKENS,
    tokenizer: Tokenizer | None = None,
    vocabulary: int | None = None,
) -> TokenFrequencies | None:
    """Count the tokens of a dataset, in memory that does not depend on its size.

    Args:
        dataset: The dataset.
        limit: Of more tokens than this every n-th block of a million is counted, with the smallest n
            that keeps within about the limit.
        tokenizer: What to show the tokens with.
        vocabulary: The tokens of the tokenizer, where they are known.

    Returns:
        The frequencies; None for a dataset of floating-point numbers, which are no tokens.

    Raises:
        StorageError: The file system refuses to read.
    """
    if dataset.dtype.kind not in "iu":
        return None
    counts, counted, outside = _counts(_sample(dataset, limit))
    used = np.flatnonzero(counts)
    ascending = used[np.argsort(counts[used], kind="stable")]
    descending = used[np.argsort(-counts[used], kind="stable")]
    return TokenFrequencies(
        tokens=dataset.index.token_count,
        counted=counted,
        distinct=len(used),
        vocabulary=vocabulary,
        outside=outside,
        head=_told(descending[:_ENDS], counts, tokenizer),
        tail=_told(ascending[: min(_ENDS, max(0, len(used) - _ENDS))], counts, tokenizer),
        curve=_curve(counts[descending]),
    )


def _sample(dataset: IndexedDataset, limit: int) -> Iterator[NDArray[Any]]:
    step = max(1, -(-dataset.index.token_count // max(limit, 1)))
    # Blocks that are passed over are views of the map, which nobody touches and nobody reads.
    return itertools.islice(dataset.token_blocks(_BLOCK_TOKENS * dataset.dtype.itemsize), 0, None, step)


def _counts(blocks: Iterator[NDArray[Any]]) -> tuple[NDArray[np.int64], int, int]:
    # (occurrences of each id, number of tokens, number of tokens without a counter).
    counts = np.zeros(0, np.int64)
    counted = outside = 0
    for block in blocks:
        inside = block[(block >= 0) & (block < COUNTED_IDS)]
        found = np.bincount(inside, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
        counted += len(block)
        outside += len(block) - len(inside)
    return counts, counted, outside


def _told(
    ids: NDArray[np.int64], counts: NDArray[np.int64], tokenizer: Tokenizer | None
) -> tuple[TokenCount, ...]:
    return tuple(TokenCount(token, int(counts[token]), _text(tokenizer, token)) for token in ids.tolist())


def _text(tokenizer: Tokenizer | None, token: int) -> str | None:
    if tokenizer is None:
        return None
    try:
        return token_text(tokenizer, token)
    except TokenizerError:
        return None  # an id that the tokenizer does not have, which verify reports


def _curve(descending: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    if not len(descending):
        return ()
    places = np.unique(np.geomspace(1, len(descending), _CURVE_POINTS).round().astype(np.int64))
    return tuple((place, int(descending[place - 1])) for place in places.tolist())
