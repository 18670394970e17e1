"""How thoroughly to look, and at which part."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, get_args

from tokshard.errors import UsageError

Level = Literal["structure", "digest", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Each does what those before it do. ``"structure"``: sizes, headers, counts, all entries of indexes.
``"digest"``: every byte, by the digests that were recorded. ``"deep"``: what the bytes mean."""

_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")


def check_level(level: str) -> Level:
    """Return a level, if it is one.

    Raises:
        UsageError: There is none of this name.
    """
    for one in LEVELS:
        if one == level:
            return one
    raise UsageError(f"there is no level {level!r}", hint=f"use one of {', '.join(LEVELS)}")


def parse_subset(text: str) -> Fraction:
    """Return the share that a text as ``5%`` means.

    Raises:
        UsageError: It is no percentage above 0 and up to 100.

    Example:
        >>> parse_subset("12.5%")
        Fraction(1, 8)
    """
    found = _PERCENT.fullmatch(text)
    share = Fraction(found[1]) / 100 if found else Fraction(0)
    if not 0 < share <= 1:
        raise UsageError(
            f"--subset {text!r} is no share of the data", hint="a percentage, for example --subset 5%"
        )
    return share


def chosen(count: int, share: Fraction | None) -> list[int]:
    """Return which of ``count`` pieces belong to a share of them: the same at every call, evenly spread.

    Piece ``i`` does where the share of ``i + 1`` pieces, rounded down, is more than that of ``i``; and the
    last one where none does.

    Example:
        >>> chosen(10, Fraction(3, 10)), chosen(3, Fraction(1, 10)), chosen(2, None)
        ([3, 6, 9], [2], [0, 1])
    """
    if share is None:
        return list(range(count))
    found = [place for place in range(count) if (place + 1) * share // 1 > place * share // 1]
    return found or list(range(count))[-1:]
