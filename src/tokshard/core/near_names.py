"""Names that are one typing mistake away from each other."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import commonprefix


def is_near(one: str, other: str) -> bool:
    """Return whether a name becomes another by one edit: a letter more, less, other, or two swapped.

    Equal names, and names that differ only in digits, are not near.

    Example:
        >>> is_near("cahce", "cache"), is_near("seq-lenght", "seq-length"), is_near("node1", "node2")
        (True, True, False)
    """
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = len(commonprefix([one, other]))  # noqa: RUF071 - characters
    end = len(commonprefix([one[start:][::-1], other[start:][::-1]]))  # noqa: RUF071 - characters
    middle = one[start : len(one) - end]
    other_middle = other[start : len(other) - end]
    if (middle + other_middle).isdecimal():
        return False
    is_edit = len(middle) <= 1 and len(other_middle) <= 1
    return is_edit or (len(middle) == 2 and middle == other_middle[::-1])


def near_name(name: str, names: Iterable[str]) -> str | None:
    """Return the first of several names that is near a name, or None.

    Example:
        >>> near_name("wbe", ["code", "web"])
        'web'
    """
    return next((other for other in names if is_near(name, other)), None)
