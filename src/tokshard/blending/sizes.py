"""How many samples are wanted of each source, and how many are built: Megatron's sums, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_OLD_SURPLUS = 1.005
_GRID = 1_000_000
_MOST_SURPLUS = 1_000_000 * _GRID


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """The samples of each source, in order.

    Attributes:
        targets: What the blend counts on; their sum is the size of the blend.
        built: What is asked of the source's index: the target and the surplus.
    """

    targets: tuple[int, ...]
    built: tuple[int, ...]


def source_sizes(shares: Sequence[float], size: int, surplus: float, *, old: bool = False) -> SourceSizes:
    """Return the sizes of the sources of a blend.

    Args:
        shares: The normalised weights.
        size: The samples asked for.
        surplus: How much more is built than the weights ask for, as a fraction.
        old: Whether the sums are those of Megatron Core up to 0.12, which have a fixed surplus.

    Example:
        >>> source_sizes([0.7, 0.3], 101, 0.005)
        SourceSizes(targets=(71, 31), built=(72, 32))
    """
    if old:
        built = tuple(math.ceil(size * share * _OLD_SURPLUS) for share in shares)
        return SourceSizes(built, built)
    targets = tuple(math.ceil(size * share) for share in shares)
    return SourceSizes(targets, tuple(with_surplus(target, surplus) for target in targets))


def with_surplus(target: int, surplus: float) -> int:
    """Return the samples to build for a target.

    Example:
        >>> with_surplus(1000, 0.005)
        1005
    """
    return math.ceil(target * (1 + surplus))


def smallest_surplus(fits: Callable[[float], bool]) -> float | None:
    """Return the smallest surplus, in millionths, that fits; None if none up to a millionfold does.

    Args:
        fits: Whether a surplus is large enough. If one is, all larger ones are.

    Example:
        >>> smallest_surplus(lambda surplus: with_surplus(1000, surplus) >= 1013)
        0.012001
    """
    high = 1
    while not fits(high / _GRID):
        high *= 2
        if high > _MOST_SURPLUS:
            return None
    low = -1 if high == 1 else high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle / _GRID) else (middle, high)
    return high / _GRID
