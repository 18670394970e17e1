"""How long things are: a histogram of many numbers in a few bins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Bin:
    """Numbers from ``low`` to ``high``, both included."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """A distribution of lengths.

    Attributes:
        count: How many there are.
        total: Their sum.
        shortest: The smallest.
        longest: The largest.
        mean: Their mean.
        bins: A histogram; the bins are 0, 1, 2-3, 4-7, 8-15 and so on, without empty ones at the ends.
    """

    count: int
    total: int
    shortest: int
    longest: int
    mean: float
    bins: tuple[Bin, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return asdict(self)


def summarise(pieces: Iterable[NDArray[np.integer[Any]]]) -> LengthSummary:
    """Summarise lengths that come in pieces.

    Args:
        pieces: Arrays of numbers >= 0, int64 or smaller.

    Example:
        >>> import numpy as np
        >>> summary = summarise([np.array([1, 2, 3]), np.array([9])])
        >>> summary.longest, [(one.low, one.high, one.count) for one in summary.bins]
        (9, [(1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)])
    """
    import numpy as np

    counts = np.zeros(65, np.int64)
    total, shortest, longest = 0, -1, 0
    for piece in pieces:
        if not len(piece):
            continue
        # frexp gives the bit length exactly for all integers that a double can hold.
        bit_lengths = np.frexp(piece.astype(np.float64))[1]
        counts += np.bincount(bit_lengths, minlength=65)
        total += int(piece.sum(dtype=np.int64))
        smallest = int(piece.min())
        shortest = smallest if shortest < 0 else min(shortest, smallest)
        longest = max(longest, int(piece.max()))
    count = int(counts.sum())
    used = np.flatnonzero(counts)
    edges = range(int(used[0]), int(used[-1]) + 1) if count else range(0)
    bins = tuple(Bin((1 << n) >> 1, (1 << n) - 1 if n else 0, int(counts[n])) for n in edges)
    return LengthSummary(count, total, max(shortest, 0), longest, total / count if count else 0.0, bins)
