"""Megatron's exhaustive blend: every sample of every source once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokshard.blending.greedy import check_source_count
from tokshard.blending.order import BlendOrder, blend_order, build
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The lags are computed in float64, where larger counts would not differ from their neighbours.
_MAX_TOTAL = 2**53


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return an order of all samples of all sources, as Megatron Core's function of this name builds it.

    It is that of :func:`tokshard.build_blending_indices` with the sizes divided by their sum as weights,
    except that a source is left out once all its samples are drawn. The peak of memory is the result: 10
    bytes a sample.

    Args:
        sizes: The samples of each of up to 32,766 sources, at least one each.

    Returns:
        The dataset index, int16 of shape (sum of sizes,): which source each sample comes from. And the
        dataset sample index, int64 of the same shape: which sample of its source it is, counted from 0.

    Raises:
        UsageError: There is no source or too many, a source has no sample, or there are more than 2^53.

    Example:
        >>> dataset_index, dataset_sample_index = build_exhaustive_blending_indices([1, 3, 2])
        >>> dataset_index.tolist(), dataset_sample_index.tolist()
        ([1, 2, 0, 1, 2, 1], [0, 0, 0, 1, 1, 2])
    """
    order, total = exhaustive_order(sizes)
    return build(order, total)


def exhaustive_order(sizes: Sequence[int] | NDArray[np.int64]) -> tuple[BlendOrder, int]:
    """Return the order of :func:`build_exhaustive_blending_indices`, to be filled in pieces, and its size."""
    total = sum(int(size) for size in sizes)
    if total > _MAX_TOTAL:
        raise UsageError(f"the sources have {total} samples together, more than 2^53")
    limits = np.array(sizes, np.int64)
    check_source_count(limits)
    empty = np.flatnonzero(limits < 1)
    if len(empty):
        raise UsageError(f"source {empty[0]} has {limits[empty[0]]} samples, but it must have at least one")
    return blend_order(limits / float(total), limits, total), total
