"""The order of a mixture that is weighted anew in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.replan.laps import LapTable, Standing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """The samples of a plan from its start on.

    Attributes:
        dataset_index: int16 of shape ``(samples,)``: the source of each sample.
        dataset_sample_index: int64 of shape ``(samples,)``: the number of the sample in the source's index.
        laps: The lap of each sample.
        draws: How often each source is drawn: int64 of shape ``(sources,)``.
    """

    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]
    laps: LapTable
    draws: NDArray[np.int64]


def mix(weights: Sequence[float], standings: Sequence[Standing], samples: int, seed: int) -> Mixture:
    """Draw from sources by weight, each from where it stands.

    The order of the sources is Megatron's for these weights. Memory is 10 bytes a sample.

    Args:
        weights: A positive weight for each source.
        standings: Where each source stands.
        samples: The number of draws.
        seed: The seed of the laps that begin anew.

    Raises:
        UsageError: There is nothing to draw, a weight is not positive, or a source has no sample.

    Example:
        >>> mixed = mix([0.5, 0.5], [Standing.untouched(2), Standing.untouched(3)], 6, seed=1)
        >>> mixed.dataset_index.tolist(), mixed.laps.rows.tolist()
        ([0, 1, 0, 1, 0, 1], [[0, 0, 0], [0, 1, 4], [1, 0, 1]])
    """
    from tokshard.blending.greedy import build_blending_indices, normalize

    if samples < 1:
        raise UsageError("no sample is left to be weighted anew")
    for number, standing in enumerate(standings):
        if standing.samples < 1:
            raise UsageError(f"source {number} of the new blend has no sample")
    sources, numbers = build_blending_indices(normalize(list(weights)), samples)
    draws = np.bincount(sources, minlength=len(standings)).astype(np.int64)
    table = _lap_rows(sources, standings, draws)
    for begin in range(0, samples, _BLOCK):
        piece = slice(begin, begin + _BLOCK)
        for source, places in by_source(sources[piece]):
            block = numbers[piece]
            block[places] = standings[source].samples_of(block[places], seed, source)
    return Mixture(sources, numbers, LapTable(table, samples), draws)


def by_source(sources: NDArray[np.int16]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return (source, the places where it is drawn), for each that is."""
    if not sources.size:
        return []
    order = np.argsort(sources, kind="stable")
    present, firsts = np.unique(sources[order], return_index=True)
    return list(zip(present.tolist(), np.split(order, firsts[1:]), strict=True))


def _lap_rows(
    sources: NDArray[np.int16], standings: Sequence[Standing], draws: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows of the table of laps: at which sample each source begins each of its laps."""
    wanted = [
        (source, lap, first)
        for source, standing in enumerate(standings)
        for lap, first in standing.lap_starts(int(draws[source]))
    ]
    rows = np.array(wanted, dtype=np.int64).reshape(-1, 3)
    bounds = np.searchsorted(rows[:, 0], np.arange(len(standings) + 1))
    firsts = rows[:, 2].copy()
    drawn = np.zeros(len(standings), dtype=np.int64)
    for begin in range(0, len(sources), _BLOCK):
        for source, places in by_source(sources[begin : begin + _BLOCK]):
            low, high = bounds[source], bounds[source + 1]
            limits = (drawn[source], drawn[source] + len(places))
            here = slice(*(low + np.searchsorted(firsts[low:high], limits)))
            rows[here, 2] = begin + places[firsts[here] - drawn[source]]
            drawn[source] += len(places)
    return rows
