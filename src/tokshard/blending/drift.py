"""How far a blend is from its weights on the way: measured at every prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 18
CURVE_POINTS = 64


@dataclass(frozen=True, slots=True)
class Drift:
    """The deviations of a blend, in samples.

    Attributes:
        draws: How often each source is drawn: int64 of shape (sources,).
        lag: How far each source is behind its share at most.
        lead: How far it is ahead at most.
        curve: The largest deviation of any source in each of up to 64 equal parts of the blend.
        out_of_range: Draws of a sample that the source does not have.
    """

    draws: NDArray[np.int64]
    lag: NDArray[np.float64]
    lead: NDArray[np.float64]
    curve: tuple[float, ...]
    out_of_range: int


def measure_drift(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    shares: Sequence[float],
    available: Sequence[int],
) -> Drift:
    """Measure the largest deviation of each source from its share, at any prefix of the blend.

    Between two draws of a source it only falls behind, and a draw moves it ahead by one: so it is enough
    to look just before and just after each draw, and at the end. Memory does not depend on the size.

    Args:
        dataset_index: The source of each sample.
        dataset_sample_index: Which sample of its source it is.
        shares: The share of each source; their sum is 1.
        available: The samples that each source has.

    Raises:
        IntegrityError: The dataset index names a source that is not there.

    Example:
        >>> from tokshard.blending.greedy import build_blending_indices
        >>> drift = measure_drift(*build_blending_indices([0.9, 0.1], 100), [0.9, 0.1], [100, 100])
        >>> drift.draws.tolist(), [round(float(lag), 2) for lag in drift.lag]
        ([90, 10], [0.8, 0.1])
    """
    size, sources = len(dataset_index), len(shares)
    share, limits = np.array(shares, np.float64), np.array(available, np.int64)
    draws, curve = np.zeros(sources, np.int64), np.zeros(min(CURVE_POINTS, max(size, 1)))
    lag, lead = np.zeros(sources), np.zeros(sources)
    out_of_range = 0
    for first in range(0, size, _BLOCK):
        source = dataset_index[first : first + _BLOCK].astype(np.int64)
        sample = dataset_sample_index[first : first + _BLOCK]
        if source.min() < 0 or source.max() >= sources:
            raise IntegrityError(f"the dataset index names sources that the blend of {sources} does not have")
        step = np.arange(first, first + len(source), dtype=np.float64)
        behind = share[source] * step - sample
        ahead = (sample + 1) - share[source] * (step + 1)
        np.maximum.at(lag, source, behind)
        np.maximum.at(lead, source, ahead)
        part = np.arange(first, first + len(source)) * len(curve) // size
        np.maximum.at(curve, part, np.maximum(behind, ahead))
        out_of_range += int(np.count_nonzero((sample < 0) | (sample >= limits[source])))
        draws += np.bincount(source, minlength=sources)
    at_end = share * size - draws
    lag = np.maximum(lag, at_end)
    curve[-1] = max(curve[-1], float(np.abs(at_end).max()))
    return Drift(draws, lag, lead, tuple(curve.tolist()), out_of_range)
