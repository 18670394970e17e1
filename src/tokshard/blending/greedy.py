"""Megatron's weighted blend: at every step the source that lags most behind its weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokshard.blending.order import BlendOrder, blend_order, build
from tokshard.blending.recipe import MAX_SOURCES
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64], size: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the order of a blend by weights, as Megatron Core's function of this name builds it.

    At step k (0 to size - 1) the lag of source i is ``weights[i] * max(k, 1) - draws of i so far``, with
    the product rounded before the difference is taken: what Megatron computes on x86-64. The source with
    the largest lag is drawn, of equals the first. Megatron's builds for ARM fuse the two operations and
    order equal lags otherwise.

    The time of a step hardly depends on the number of sources, see
    :func:`tokshard.blending.kernels.blend_steps`. The peak of memory is the result: 10 bytes a sample.

    Args:
        weights: A positive weight for each of up to 32,766 sources, float64. They are used as they are:
            a blend that keeps its proportions needs a sum of 1.
        size: The samples of the blend.

    Returns:
        The dataset index, int16 of shape (size,): which source each sample comes from. And the dataset
        sample index, int64 of shape (size,): which sample of its source it is, counted from 0.

    Raises:
        UsageError: There is no source or too many, a weight is not positive or not finite, or the size is
            negative.

    Example:
        >>> dataset_index, dataset_sample_index = build_blending_indices([1/2, 1/4, 1/4], 4)
        >>> dataset_index
        array([0, 1, 2, 0], dtype=int16)
        >>> dataset_sample_index
        array([0, 0, 0, 1])
    """
    return build(greedy_order(weights, size), size)


def greedy_order(weights: Sequence[float] | NDArray[np.float64], size: int) -> BlendOrder:
    """Return the order of :func:`build_blending_indices`, to be filled in pieces of up to ``size``."""
    checked = np.array(weights, np.float64)
    check_source_count(checked)
    if size < 0:
        raise UsageError(f"the size of the blend is {size}")
    wrong = np.flatnonzero(~(np.isfinite(checked) & (checked > 0)))
    if len(wrong):
        raise UsageError(
            f"the weight of source {wrong[0]} is {checked[wrong[0]]:g}", hint="weights are positive numbers"
        )
    return blend_order(checked, None, size)


def normalize(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, with numpy's rounding, which enters Megatron's hashes.

    Example:
        >>> normalize([30, 70])
        [0.3, 0.7]
    """
    array = np.array(weights, dtype=np.float64)
    shares: list[float] = (array / np.sum(array)).tolist()
    return shares


def check_source_count(sources: NDArray[np.generic]) -> None:
    """Check that the sources of a blend can be numbered.

    Raises:
        UsageError: There is none, or more than int16 numbers.
    """
    if sources.ndim != 1 or not 1 <= sources.size <= MAX_SOURCES:
        raise UsageError(
            f"a blend has from 1 to {MAX_SOURCES} sources, because Megatron numbers them with int16, "
            f"and not {sources.size}"
        )
