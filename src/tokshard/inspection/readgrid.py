"""Which samples the ranks of a plan begin with at its steps: a picture of a plan of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokshard.errors import TokshardError
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.plan import Stream

SHOWN_RANKS = 32
SHOWN_STEPS = 80

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly however many there are."""


@dataclass(frozen=True, slots=True)
class ReadGrid:
    """The first sample of some ranks at some steps, spread over all of them.

    Attributes:
        ranks: The data-parallel ranks that are shown.
        steps: The steps that are shown.
        samples: For each of these ranks the ids of the samples, one for each step.
        datasets: Likewise the numbers of their datasets; None where the data cannot be opened.
        unknown: Why that is so, or None.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    datasets: tuple[tuple[int, ...], ...] | None
    unknown: str | None


def read_grid(stream: Stream, *, ranks: int = SHOWN_RANKS, steps: int = SHOWN_STEPS) -> ReadGrid | None:
    """Return what the ranks of a stream begin with at its steps; None where nothing is read.

    Args:
        stream: The stream.
        ranks: How many ranks to show at most, 2 or more.
        steps: How many steps.

    Raises:
        TokshardError: The stream sorts samples by something that cannot be read.
    """
    assignment = stream.assignment
    rows, columns = _spread(assignment.ranks, ranks), _spread(assignment.steps, steps)
    if not columns:
        return None
    first = np.array([assignment.first_local(step) for step in columns], dtype=np.int64)
    local = np.tile(first, len(rows))
    key_of = None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)
    ids = assignment.at(np.repeat(np.array(rows, dtype=np.int64), len(columns)), local, key_of)
    datasets, unknown = None, None
    try:
        datasets = _rows(Locator(stream.source).locate(ids)[0], len(rows))
    except TokshardError as error:
        unknown = error.message
    return ReadGrid(rows, columns, _rows(ids, len(rows)), datasets, unknown)


def _spread(total: int, shown: int) -> tuple[int, ...]:
    """Return at most ``shown`` of the numbers below ``total``, with the first and the last.

    They are one of each of equal parts, and not equally far apart: of an order that repeats itself, as that
    of a blend, numbers at equal distances can show one source alone.

    Example:
        >>> _spread(3, 5), _spread(100, 4)
        ((0, 1, 2), (0, 40, 55, 99))
    """
    if total <= shown:
        return tuple(range(total))
    edges = [part * total // shown for part in range(shown + 1)]
    inner = [
        edges[part] + int(part * _GOLDEN % 1 * (edges[part + 1] - edges[part]))
        for part in range(1, shown - 1)
    ]
    return (0, *inner, total - 1)


def _rows(values: np.ndarray, rows: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in values.reshape(rows, -1).tolist())
