"""Megatron's orders of a blend: by weights, and of every sample once; at once or in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import MAX_SOURCES
from tokshard.storage.compilation import compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Block = tuple[NDArray[np.int16], NDArray[np.int64]]

# numpy needs 4 microseconds for a step, and twice as much with 1,000 sources. Each step is computed twice.
# Importing numba and loading a kernel takes most of a second.
_WORTH_COMPILING_STEPS = 100_000
# A call takes a tenth of a second, because signals are handled between two calls.
_LAGS_OF_A_CALL = 1 << 26
# The lags are computed in float64, where larger counts would not differ from their neighbors.
_MAX_SIZE = 2**53


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64], size: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the order of a blend by weights, as Megatron Core's function of this name builds it.

    At step k (0 to size - 1) the lag of source i is ``weights[i] * max(k, 1) - draws of i so far``, with
    the product rounded before the difference is taken: the arithmetic of Megatron on x86-64. The source with
    the largest lag is drawn, ties go to the first. Megatron's builds for ARM fuse the two operations and
    order equal lags otherwise.

    The time is proportional to samples times sources. The peak of memory is the result: 10 bytes a sample.

    Args:
        weights: A positive weight for each of up to 32,766 sources, float64. They are used as they are:
            a blend that keeps its proportions needs a sum of 1.
        size: The samples of the blend.

    Returns:
        The dataset index, int16 of shape (size,): the source of each sample. And the dataset sample index,
        int64 of shape (size,): the number of each sample in its source, counted from 0.

    Raises:
        UsageError: The number of sources, a weight or the size is out of range.

    Example:
        >>> dataset_index, dataset_sample_index = build_blending_indices([1/2, 1/4, 1/4], 4)
        >>> dataset_index
        array([0, 1, 2, 0], dtype=int16)
        >>> dataset_sample_index
        array([0, 0, 0, 1])
    """
    return BlendOrder(weights, size).build()


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return an order of all samples of all sources, as Megatron Core's function of this name builds it.

    It equals the order of :func:`tokshard.build_blending_indices` with the sizes divided by their sum as
    weights, except that a source is skipped once all its samples are drawn. The peak of memory is the result:
    10 bytes a sample.

    Args:
        sizes: The samples of each of up to 32,766 sources, at least one each.

    Returns:
        The dataset index, int16 of shape (sum of sizes,): the source of each sample. And the dataset sample
        index, int64 of the same shape: the number of each sample in its source, counted from 0.

    Raises:
        UsageError: The number of sources or a size is out of range, or their sum is larger than 2^53.

    Example:
        >>> dataset_index, dataset_sample_index = build_exhaustive_blending_indices([1, 3, 2])
        >>> dataset_index.tolist(), dataset_sample_index.tolist()
        ([1, 2, 0, 1, 2, 1], [0, 0, 0, 1, 1, 2])
    """
    return BlendOrder(sizes, None).build()


class BlendOrder:
    """The order of a blend, starting at its first sample.

    Args:
        weights: A positive weight for each source; if there is no size, the number of its samples.
        size: The samples of the blend, or None for every sample of every source once.

    Raises:
        UsageError: The number of sources, a weight or the size is out of range.

    Attributes:
        size: The samples of the blend.
    """

    def __init__(self, weights: Sequence[float] | NDArray[Any], size: int | None) -> None:
        self.size = sum(map(int, weights)) if size is None else size
        if not 0 <= self.size <= _MAX_SIZE:
            raise UsageError(f"the size of a blend must be between 0 and 2^53, got {self.size}")
        numbers = np.array(weights, np.float64)
        if numbers.ndim != 1 or not 1 <= numbers.size <= MAX_SOURCES:
            raise UsageError(
                f"a blend must have between 1 and {MAX_SOURCES} sources (Megatron numbers them with int16), "
                f"got {numbers.size}"
            )
        invalid = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
        if invalid.size:
            raise UsageError(
                f"the {'size' if size is None else 'weight'} of source {invalid[0]} must be a positive "
                f"number, got {numbers[invalid[0]]:g}"
            )
        self._weights = numbers / float(self.size) if size is None else numbers
        self._limits = numbers if size is None else np.full(numbers.size, np.inf)
        self._counts = np.zeros(numbers.size)
        self._step = 0
        is_long = self.size * (1 + numbers.size / 1000) >= _WORTH_COMPILING_STEPS
        self._kernel = compiled(draw_samples) if is_long and has_numba() else None

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples, as many as the arrays have elements."""
        weights, limits, counts = self._weights, self._limits, self._counts
        rows_of_a_call = max(1, _LAGS_OF_A_CALL // weights.size)
        for first in range(0, len(dataset_index), rows_of_a_call):
            sources = dataset_index[first : first + rows_of_a_call]
            samples = dataset_sample_index[first : first + rows_of_a_call]
            if self._kernel is not None:
                self._kernel(weights, limits, counts, self._step, sources, samples)
            else:
                self._fill_with_numpy(sources, samples)
            self._step += len(sources)

    def _fill_with_numpy(self, sources: NDArray[np.int16], samples: NDArray[np.int64]) -> None:
        """Do the work of :func:`draw_samples` without the time that numba takes to load."""
        for row in range(len(sources)):
            source = (self._weights * max(self._step + row, 1) - self._counts).argmax()
            sources[row] = source
            samples[row] = self._counts[source]
            self._counts[source] += 1
            if self._counts[source] == self._limits[source]:
                self._counts[source] = np.inf

    def build(self) -> Block:
        """Return all samples: int16 and int64, both of shape (size,)."""
        arrays = np.empty(self.size, np.int16), np.empty(self.size, np.int64)
        self.fill(*arrays)
        return arrays

    def blocks(self, block: int = 1 << 20) -> Iterator[Block]:
        """Return all samples in blocks. The arrays are reused: copy a block to keep it."""
        sources, samples = (
            np.empty(min(self.size, block), np.int16),
            np.empty(min(self.size, block), np.int64),
        )
        for first in range(0, self.size, block):
            count = min(block, self.size - first)
            self.fill(sources[:count], samples[:count])
            yield sources[:count], samples[:count]

    @property
    def draws(self) -> list[int]:
        """The number of samples drawn from each source so far."""
        draws: list[int] = np.minimum(self._counts, self._limits).astype(np.int64).tolist()
        return draws


def draw_samples(
    weights: NDArray[np.float64],
    limits: NDArray[np.float64],
    counts: NDArray[np.float64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Draw the next samples of a blend: a kernel for :func:`tokshard.storage.compilation.compiled`.

    ``counts`` are the samples drawn from each source so far, or infinity once its limit is reached. They are
    changed in place. Both index arrays are filled.
    """
    for row in range(dataset_index.size):
        step = max(float(first + row), 1.0)
        source = 0
        largest = -np.inf
        for candidate in range(weights.size):
            lag = weights[candidate] * step - counts[candidate]
            # Selections compile to code without branches, which is 1.2 times as fast with 8 sources.
            is_larger = lag > largest
            largest = lag if is_larger else largest
            source = candidate if is_larger else source
        dataset_index[row] = source
        dataset_sample_index[row] = np.int64(counts[source])
        counts[source] += 1.0
        if counts[source] == limits[source]:
            counts[source] = np.inf


def normalize(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, with numpy's rounding, which enters Megatron's hashes.

    Example:
        >>> normalize([30, 70])
        [0.3, 0.7]
    """
    array = np.array(weights, dtype=np.float64)
    shares: list[float] = (array / np.sum(array)).tolist()
    return shares
