"""Sets of positions as sorted, disjoint, half-open intervals: what a plan stores instead of lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 20
"""Members that are processed together, in some tens of megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of integers, 0 or larger.

    Attributes:
        starts: int64 of shape ``(k,)``: the first member of each interval, ascending.
        stops: int64 of shape ``(k,)``: one past the last member of each, below the next start.

    Example:
        >>> some = Intervals.of([(0, 3), (10, 12)])
        >>> some.count, some.nth(np.array([2, 3])).tolist(), some.index(np.array([11, 5])).tolist()
        (5, [2, 10], [4, -1])
        >>> some.complement(15).pairs()
        ((3, 10), (12, 15))
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return the set of ascending, disjoint pairs; empty ones vanish and touching ones become one.

        Raises:
            UsageError: The pairs overlap, descend, or hold negative numbers.
        """
        table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        return cls.of_bounds(table[:, 0], table[:, 1])

    @classmethod
    def of_bounds(cls, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Self:
        """Return the set of ascending, disjoint intervals given as two arrays; see :meth:`of`."""
        filled = starts < stops
        if np.any(starts > stops) or np.any(starts < 0):
            raise UsageError("intervals must have 0 <= start <= stop")
        starts, stops = starts[filled], stops[filled]
        if np.any(starts[1:] < stops[:-1]):
            raise UsageError("intervals must ascend without overlap")
        apart = starts[1:] > stops[:-1]
        first = np.concatenate(([True], apart))[: starts.size]
        last = np.concatenate((apart, [True]))[: starts.size]
        return cls(starts[first], stops[last])

    @classmethod
    def of_members(cls, members: NDArray[np.int64]) -> Self:
        """Return the set of the given members, in any order and as often as they come."""
        unique = np.unique(members)
        return cls.of_bounds(unique, unique + 1)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the intervals as pairs (start, stop)."""
        return tuple(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.stops, other.stops)

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.stops.tobytes()))

    @property
    def count(self) -> int:
        """The number of members."""
        return int((self.stops - self.starts).sum())

    def complement(self, length: int) -> Intervals:
        """Return the numbers 0 to ``length - 1`` that are no members.

        Raises:
            UsageError: A member is ``length`` or more.
        """
        if self.stops.size and self.stops[-1] > length:
            raise UsageError(f"positions must be below {length}, got {int(self.stops[-1]) - 1}")
        return Intervals.of_bounds(np.append(0, self.stops), np.append(self.starts, length))

    def nth(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the members at the given places of the ascending order.

        Raises:
            IndexError: A place is negative or past the last member.
        """
        ends = self._ends()
        if places.size and (places.min() < 0 or places.max() >= (ends[-1] if ends.size else 0)):
            raise IndexError(f"places must be from 0 to {self.count - 1}")
        which = np.searchsorted(ends, places, side="right")
        return self.stops[which] - (ends[which] - places)

    def index(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each member in the ascending order, or -1 where it is none."""
        if not self.starts.size:
            return np.full(members.shape, -1, dtype=np.int64)
        ends = self._ends()
        which = np.maximum(np.searchsorted(self.starts, members, side="right") - 1, 0)
        inside = (self.starts[which] <= members) & (members < self.stops[which])
        return np.where(inside, ends[which] - (self.stops[which] - members), -1)

    def select(self, places: Intervals) -> Intervals:
        """Return the members at the places of another set: the composition of two selections.

        Example:
            >>> Intervals.of([(0, 3), (10, 12)]).select(Intervals.of([(2, 4)])).pairs()
            ((2, 3), (10, 11))

        Raises:
            IndexError: A place is past the last member.
        """
        if places.stops.size and places.stops[-1] > self.count:
            raise IndexError(f"places must be from 0 to {self.count - 1}")
        before = self._ends() - (self.stops - self.starts)
        cuts = np.union1d(places.starts, before[places.index(before) >= 0])
        last: NDArray[np.int64] = places.stops[np.searchsorted(places.starts, cuts, side="right") - 1]
        ends = np.minimum(np.append(cuts[1:], self.count)[: cuts.size], last)
        first = self.nth(cuts)
        return Intervals.of_bounds(first, first + (ends - cuts))

    def blocks(self, size: int = _BLOCK) -> Iterator[NDArray[np.int64]]:
        """Yield the members in ascending order, in arrays of up to ``size``."""
        for begin in range(0, self.count, size):
            yield self.nth(np.arange(begin, min(begin + size, self.count), dtype=np.int64))

    def count_below(self, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many members are below each limit.

        Example:
            >>> Intervals.of([(0, 3), (10, 12)]).count_below(np.array([0, 2, 11, 99])).tolist()
            [0, 2, 4, 5]
        """
        ends = np.concatenate(([0], self._ends()))
        which = np.searchsorted(self.starts, limits, side="right")
        over = np.maximum(np.append(0, self.stops)[which] - limits, 0)
        return ends[which] - over

    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.stops - self.starts, dtype=np.int64)
