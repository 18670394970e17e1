"""Megatron's orders of a blend: by weights, and of every sample once; made whole or in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokshard.errors import UsageError
from tokshard.samples.blend.kernels import FEW_CLASSES, blend_few, blend_steps
from tokshard.samples.blend.recipe import MAX_SOURCES
from tokshard.storage.compilation import compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATASET_INDEX = np.dtype("<i2")
DATASET_SAMPLE_INDEX = np.dtype("<i8")

# A step of the plain order takes 4 microseconds, twice as much with 1,000 sources, and each is made twice;
# importing numba and loading a kernel takes most of a second.
_WORTH_COMPILING_STEPS = 100_000
# With more sources, comparing eight at a time is faster (``scripts/bench indices``).
_FEW_SOURCES = 16
# About a tenth of a second: signals are handled between two calls.
_STEPS_OF_A_CALL = 1 << 20
# The lags are computed in float64, where larger counts would not differ from their neighbours.
_MAX_TOTAL = 2**53


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64], size: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the order of a blend by weights, as Megatron Core's function of this name builds it.

    At step k (0 to size - 1) the lag of source i is ``weights[i] * max(k, 1) - draws of i so far``, with
    the product rounded before the difference is taken: what Megatron computes on x86-64. The source with
    the largest lag is drawn, of equals the first. Megatron's builds for ARM fuse the two operations and
    order equal lags otherwise.

    The time of a step hardly depends on the number of sources, see
    :func:`tokshard.samples.blend.kernels.blend_few` and :func:`tokshard.samples.blend.kernels.blend_steps`.
    The peak of memory is the result: 10 bytes a sample.

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
        raise UsageError(f"the size of a blend must be at least 0, got {size}")
    wrong = np.flatnonzero(~(np.isfinite(checked) & (checked > 0)))
    if len(wrong):
        raise UsageError(
            f"the weight of source {wrong[0]} must be a positive number, got {checked[wrong[0]]:g}"
        )
    return blend_order(checked, None, size)


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
        raise UsageError(f"the sources must have at most 2^53 samples together, got {total}")
    limits = np.array(sizes, np.int64)
    check_source_count(limits)
    empty = np.flatnonzero(limits < 1)
    if len(empty):
        raise UsageError(f"source {empty[0]} must have at least 1 sample, got {limits[empty[0]]}")
    return blend_order(limits / float(total), limits, total), total


class BlendOrder(Protocol):
    """A blend from its first sample on."""

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples: as many as the arrays have room for."""

    def draws(self) -> NDArray[np.int64]:
        """Return how often each source has been drawn: int64 of shape (sources,)."""


def blend_order(weights: NDArray[np.float64], limits: NDArray[np.int64] | None, steps: int) -> BlendOrder:
    """Return the order of a blend before its first sample.

    Args:
        weights: A positive weight for each source: float64 of shape (sources,).
        limits: The samples of each source, after which it is skipped; None for no limits.
        steps: The number of samples that will be requested.
    """
    if steps * (1 + len(weights) / 1000) >= _WORTH_COMPILING_STEPS and has_numba():
        few = len(weights) <= _FEW_SOURCES
        return FewSourcesOrder(weights, limits) if few else CompiledOrder(weights, limits)
    return PlainOrder(weights, limits)


def blend_blocks(
    order: BlendOrder, size: int, block: int = _STEPS_OF_A_CALL
) -> Iterator[tuple[NDArray[np.int16], NDArray[np.int64]]]:
    """Return a blend's next ``size`` samples in blocks; each stays as it is until the next is taken."""
    first = np.empty(min(size, block), DATASET_INDEX)
    second = np.empty(min(size, block), DATASET_SAMPLE_INDEX)
    for done in range(0, size, block):
        count = min(block, size - done)
        order.fill(first[:count], second[:count])
        yield first[:count], second[:count]


def build(order: BlendOrder, size: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return a blend's next ``size`` samples: int16 and int64, both of shape (size,)."""
    first, second = np.empty(size, DATASET_INDEX), np.empty(size, DATASET_SAMPLE_INDEX)
    for done in range(0, size, _STEPS_OF_A_CALL):
        piece = slice(done, done + _STEPS_OF_A_CALL)
        order.fill(first[piece], second[piece])
    return first, second


def count_draws(order: BlendOrder, size: int) -> NDArray[np.int64]:
    """Return how often a blend's next ``size`` samples draw from each source, in constant memory."""
    for _ in blend_blocks(order, size):
        pass
    return order.draws()


class PlainOrder:
    """A blend by the definition: at each step the source that lags most, the first of equals.

    The lag of source i at step k is ``weights[i] * max(k, 1) - draws[i]``, in two roundings: a product
    that is rounded before the difference. A step costs a pass over all sources.
    """

    def __init__(self, weights: NDArray[np.float64], limits: NDArray[np.int64] | None) -> None:
        self._weights = weights
        self._limits = limits
        self._counts = np.zeros(len(weights), np.float64)
        self._step = 0

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples: as many as the arrays have room for."""
        counts = self._counts
        spent = np.zeros(len(counts), bool) if self._limits is None else counts >= self._limits
        for at in range(len(dataset_index)):
            lag = self._weights * max(float(self._step), 1.0) - counts
            lag[spent] = -np.inf
            source = int(lag.argmax())
            dataset_index[at] = source
            dataset_sample_index[at] = counts[source]
            counts[source] += 1
            spent[source] = self._limits is not None and counts[source] >= self._limits[source]
            self._step += 1

    def draws(self) -> NDArray[np.int64]:
        """Return how often each source has been drawn: int64 of shape (sources,)."""
        return self._counts.astype(np.int64)


class FewSourcesOrder:
    """A blend of few sources by :func:`tokshard.samples.blend.kernels.blend_few`: the same samples."""

    def __init__(self, weights: NDArray[np.float64], limits: NDArray[np.int64] | None) -> None:
        self._weights = np.ascontiguousarray(weights)
        self._limits = np.full(len(weights), np.inf) if limits is None else limits.astype(np.float64)
        self._counts = np.zeros(len(weights), np.float64)
        self._step = 0
        self._kernel = compiled(blend_few)

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples: as many as the arrays have room for."""
        self._kernel(
            self._weights, self._limits, self._counts, self._step, dataset_index, dataset_sample_index
        )
        self._step += len(dataset_index)

    def draws(self) -> NDArray[np.int64]:
        """Return how often each source has been drawn: int64 of shape (sources,)."""
        draws: NDArray[np.int64] = np.minimum(self._counts, self._limits).astype(np.int64)
        return draws


class CompiledOrder:
    """A blend by :func:`tokshard.samples.blend.kernels.blend_steps`: the same samples, many times as fast."""

    def __init__(self, weights: NDArray[np.float64], limits: NDArray[np.int64] | None) -> None:
        self._classes = _Classes.of(weights, limits)
        self._kernel = compiled(blend_steps)
        self._left = len(self._classes.weights)
        self._step = 0
        self._draws = np.zeros(len(weights), np.int64)
        self._scratch = np.empty((3, self._left + 8)), np.empty(self._left + 8, np.int64)

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples: as many as the arrays have room for."""
        classes = self._classes
        self._left = self._kernel(
            classes.weights, classes.limits, classes.counts, classes.starts, classes.ends,
            classes.members, classes.heads,
            self._left, classes.width, self._step, dataset_index, dataset_sample_index, *self._scratch,
        )  # fmt: skip
        self._step += len(dataset_index)
        self._draws += np.bincount(dataset_index, minlength=len(self._draws))

    def draws(self) -> NDArray[np.int64]:
        """Return how often each source has been drawn: int64 of shape (sources,)."""
        return self._draws.copy()


@dataclass(frozen=True, slots=True)
class _Classes:
    # Sources of equal weight and limit, by their first members; see the kernel for the fields.
    weights: NDArray[np.float64]
    limits: NDArray[np.float64]
    counts: NDArray[np.float64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    members: NDArray[np.int64]
    heads: NDArray[np.int64]
    width: NDArray[np.float64]

    @classmethod
    def of(cls, weights: NDArray[np.float64], limits: NDArray[np.int64] | None) -> _Classes:
        kinds = weights.view(np.int64) if limits is None else limits
        _, first, number = np.unique(kinds, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[first.argsort()] = np.arange(len(first))
        number = rank[number]
        ends = np.bincount(number).cumsum().astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        members = number.argsort(kind="stable").astype(np.int64)
        leaders = members[starts]
        caps = np.full(len(first), np.inf) if limits is None else limits[leaders].astype(np.float64)
        return cls(
            weights=weights[leaders],
            limits=caps,
            counts=np.zeros(len(first)),
            starts=starts,
            ends=ends,
            members=members,
            heads=starts.copy(),
            width=np.array([min(1.0, FEW_CLASSES / len(first))]),
        )


def check_source_count(sources: NDArray[np.generic]) -> None:
    """Check that the sources of a blend can be numbered.

    Raises:
        UsageError: There is none, or more than int16 numbers.
    """
    if sources.ndim != 1 or not 1 <= sources.size <= MAX_SOURCES:
        raise UsageError(
            f"a blend must have from 1 to {MAX_SOURCES} sources (Megatron numbers them with int16), "
            f"got {sources.size}"
        )


def normalize(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, with numpy's rounding, which enters Megatron's hashes.

    Example:
        >>> normalize([30, 70])
        [0.3, 0.7]
    """
    array = np.array(weights, dtype=np.float64)
    shares: list[float] = (array / np.sum(array)).tolist()
    return shares
