"""Masks and positions of samples, from where documents end within them: Megatron's, for many at once."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def starts_after(tokens: NDArray[np.int64], eod_id: int) -> NDArray[np.int64]:
    """Return where the document of each token starts, if documents end with a token.

    Args:
        tokens: int64 of shape (samples, length).
        eod_id: The token that ends a document.

    Returns:
        int64 of the same shape: the first position after the last such token before this one, or 0.

    Example:
        >>> starts_after(np.array([[7, 0, 7, 7, 0, 7]]), 0).tolist()
        [[0, 0, 2, 2, 2, 5]]
    """
    samples, length = tokens.shape
    starts = np.zeros((samples, length), np.int64)
    after = np.arange(1, length, dtype=np.int64)
    starts[:, 1:] = np.where(tokens[:, :-1] == eod_id, after, 0)
    return np.maximum.accumulate(starts, axis=1, out=starts)


def masked_attention(
    length: int, queries: NDArray[np.int64], starts: NDArray[np.int64] | None, samples: int
) -> NDArray[np.bool_]:
    """Return which keys each query does not attend to: those after it, and those of other documents.

    Args:
        length: The number of keys.
        queries: The positions of the queries: int64 of shape (queries,).
        starts: Where the document of each query starts: int64 of shape (samples, queries); None where
            queries attend to everything before them.
        samples: The number of samples.

    Returns:
        bool of shape (samples, 1, queries, length). Without ``starts`` all samples share one mask, which
        is read-only then.
    """
    keys = np.arange(length, dtype=np.int64)
    later = keys > queries[:, None]
    if starts is None:
        shape = (samples, 1, len(queries), length)
        return np.broadcast_to(later, shape)
    masked: NDArray[np.bool_] = (keys < starts[:, :, None]) | later
    return masked[:, None]


def document_bounds(lengths: NDArray[np.int64], sequence_length: int) -> list[int]:
    """Return the bounds of the documents within a sample, from 0 to its length.

    The extra token, which is a label only, is left out, and padding belongs to the last document. Megatron
    differs in one case: of a padded sample whose last document has one token, it gives that token to the
    document before.

    Args:
        lengths: The tokens of each piece, the extra token among them.
        sequence_length: The length of the sample without the extra token.

    Example:
        >>> document_bounds(np.array([3, 4, 1]), 7), document_bounds(np.array([3, 2]), 7)
        ([0, 3, 7], [0, 3, 7])
    """
    pieces: list[int] = lengths.tolist()
    if pieces:
        pieces[-1] += sequence_length - sum(pieces)
        if pieces[-1] == 0:
            pieces.pop()
    return [0, *accumulate(pieces)]


def packed_bounds(bounds: list[list[int]], sequence_length: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bounds of several samples as arrays of a fixed shape.

    Returns:
        ``cu_seqlens``, int32 of shape (samples, sequence_length + 1), filled up with the sequence length
        (or wider, where samples hold more pieces than tokens, empty ones among them); and
        ``max_seqlen``, int32 of shape (samples,), the longest document of each.
    """
    width = max([sequence_length + 1, *map(len, bounds)])
    cu_seqlens = np.full((len(bounds), width), sequence_length, np.int32)
    for row, edges in zip(cu_seqlens, bounds, strict=True):
        row[: len(edges)] = edges
    return cu_seqlens, np.diff(cu_seqlens, axis=1).max(axis=1)


def starts_of(bounds: list[list[int]], sequence_length: int) -> NDArray[np.int64]:
    """Return where the document of each token starts: int64 of shape (samples, sequence_length)."""
    starts = np.empty((len(bounds), sequence_length), np.int64)
    for row, edges in zip(starts, bounds, strict=True):
        row[:] = np.repeat(edges[:-1], np.diff(edges))
    return starts
