"""Axes of charts: positions and labels of their ticks."""

from __future__ import annotations

import math

from tokshard.core.formatting import count
from tokshard.core.presentation import Axis, Tick

SHARES = tuple(Tick(quarter / 4, f"{25 * quarter}%") for quarter in range(5))
"""The scale that all shares have in common: 0 to 100%."""

_STEPS = (1, 2, 2.5, 5, 10)
_LONGEST = 100_000


def linear_axis(title: str, most: float, *, whole: bool = True) -> Axis:
    """Return an axis from 0 to ``most``, which is above 0, with 3 to 6 ticks at round values.

    Example:
        >>> [tick.label for tick in linear_axis("samples", 4000).ticks]
        ['0', '1,000', '2,000', '3,000', '4,000']
    """
    scale = math.pow(10, math.floor(math.log10(most / 4)))
    step = next(step * scale for step in _STEPS if most / (step * scale) <= 5)
    step = max(1, round(step)) if whole else step
    values = [number * step for number in range(int(most / step * (1 + 1e-9)) + 1)]
    return Axis(title, [Tick(value / most, _label(value)) for value in values])


def log_axis(title: str, most: float) -> Axis:
    """Return a logarithmic axis from 1 to ``most`` with ticks at powers of ten.

    Example:
        >>> [tick.label for tick in log_axis("occurrences", 2_000_000).ticks]
        ['1', '10', '100', '1,000', '10,000', '100k', '1M']
    """
    last = int(math.log10(most) + 1e-9)
    return Axis(title, [Tick(log_position(10**power, most), _label(10**power)) for power in range(last + 1)])


def log_position(value: float, most: float) -> float:
    """Return the position of a value on :func:`log_axis`."""
    return math.log(value) / math.log(max(most, 2))


def _label(value: float) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if value >= max(limit, _LONGEST):
            return f"{value / limit:g}{unit}"
    return count(int(value)) if value == int(value) else f"{value:g}"
