"""Distributions of lengths: tokens of documents, documents of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.core.codec import Amount, Count, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BIT_LENGTHS = 65


@dataclass(frozen=True, slots=True)
class LengthBin(Record):
    """A bin of a histogram."""

    low: Count
    high: Count
    count: Count


@dataclass(frozen=True, slots=True)
class LengthSummary(Record):
    """A distribution of lengths."""

    count: Count
    total: Count
    shortest: Count
    longest: Count
    mean: Amount
    bins: tuple[LengthBin, ...]

    @classmethod
    def of(cls, pieces: Iterable[NDArray[np.integer[Any]]]) -> LengthSummary:
        """Summarize lengths that come in pieces.

        Args:
            pieces: Arrays of numbers >= 0, int64 or smaller.

        Example:
            >>> import numpy as np
            >>> summary = LengthSummary.of([np.array([1, 2, 3]), np.array([9])])
            >>> summary.longest, [(length.low, length.high, length.count) for length in summary.bins]
            (9, [(1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)])
        """
        import numpy as np

        counts = np.zeros(_BIT_LENGTHS, np.int64)
        total, shortest, longest = 0, -1, 0
        for piece in pieces:
            if not len(piece):
                continue
            counts += np.bincount(_bit_lengths(piece), minlength=_BIT_LENGTHS)
            total += int(piece.sum(dtype=np.int64))
            smallest = int(piece.min())
            shortest = smallest if shortest < 0 else min(shortest, smallest)
            longest = max(longest, int(piece.max()))
        count = int(counts.sum())
        used = np.flatnonzero(counts)
        edges = range(int(used[0]), int(used[-1]) + 1) if count else range(0)
        bins = tuple(LengthBin((1 << n) >> 1, (1 << n) - 1 if n else 0, int(counts[n])) for n in edges)
        mean = total / count if count else 0.0
        return cls(count, total, max(shortest, 0), longest, mean, bins)


def _bit_lengths(lengths: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    import numpy as np

    # frexp gives the bit length exactly for all integers that a double can hold.
    return np.frexp(lengths.astype(np.float64))[1]
