"""Placement: where in the output the tokens of a unit lie, known before the units before it are written.

The tokens of field ``K`` of all units lie one after the other, in unit order, in the file ``K.bin`` of the
work directory. So a unit's place is known as soon as the sizes of all earlier units are, and whoever has
its tokens in memory can write them there, at the same time as others write theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.tokenization.part import UnitKey


@dataclass(frozen=True, slots=True)
class Measured:
    """An encoded unit, and how much room its tokens take.

    Attributes:
        key: Which unit.
        last: Whether it is the last unit of its file.
        sizes: The bytes of each field's tokens.
    """

    key: UnitKey
    last: bool
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tokens of a unit belong.

    Attributes:
        key: Which unit.
        paths: The file of each field's tokens.
        offsets: Where in it they begin, in bytes.
    """

    key: UnitKey
    paths: tuple[str, ...]
    offsets: tuple[int, ...]


class Placement:
    """Finds the places of units as their sizes become known, in any order.

    Args:
        first: The first unit that has no place yet.
        paths: The file of each field's tokens.
        offsets: Where the tokens of ``first`` belong in each.

    Example:
        >>> placement = Placement(UnitKey(0, 0), ["0.bin"], [0])
        >>> placement.locate(Measured(UnitKey(0, 1), True, (6,)))
        []
        >>> [place.offsets for place in placement.locate(Measured(UnitKey(0, 0), False, (4,)))]
        [(0,), (4,)]
    """

    def __init__(self, first: UnitKey, paths: Sequence[str], offsets: Sequence[int]) -> None:
        self._next = first
        self._paths = tuple(paths)
        self._offsets = tuple(offsets)
        self._waiting: dict[UnitKey, Measured] = {}

    def locate(self, unit: Measured) -> list[Place]:
        """Take in the sizes of a unit; return the places that are now known, in order."""
        self._waiting[unit.key] = unit
        found = []
        while (known := self._waiting.pop(self._next, None)) is not None:
            found.append(Place(known.key, self._paths, self._offsets))
            self._offsets = tuple(map(sum, zip(self._offsets, known.sizes, strict=True)))
            self._next = known.key.following(last=known.last)
        return found
