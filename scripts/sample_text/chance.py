"""Seeded choices that give the same values on every Python and every machine.

Python promises the stream of ``Random.random()`` for ever, but not that of ``choice`` or ``shuffle``; and
``math.exp`` may differ in the last bit between machines. So everything here is made of ``random()``,
multiplications and additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class Chance:
    """A stream of choices.

    Args:
        seed: Any string; one string, one stream (Python seeds strings by SHA-512, not by ``hash``).
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def below(self, limit: int) -> int:
        """Return an integer in ``[0, limit)``."""
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer in ``[low, high]``."""
        return low + self.below(high - low + 1)

    def often(self, share: float) -> bool:
        """Return True in about ``share`` of the calls."""
        return self._random.random() < share

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of ``items``."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Return the items in random order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def by_quantiles(self, values: Sequence[int]) -> int:
        """Return a value between two neighbours of ``values``, which are quantiles at equal distances."""
        position = self._random.random() * (len(values) - 1)
        cell = int(position)
        return values[cell] + int((position - cell) * (values[cell + 1] - values[cell]))
