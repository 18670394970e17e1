"""The order in which a blend draws from its sources, made piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokshard.blending.kernels import FEW_CLASSES, blend_steps
from tokshard.gpt_index.compilation import compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATASET_INDEX = np.dtype("<i2")
DATASET_SAMPLE_INDEX = np.dtype("<i8")

# A step of the twin in numpy takes some microseconds; numba needs half a second to be ready.
_WORTH_COMPILING_STEPS = 100_000
# About a tenth of a second: signals are handled between two calls.
_STEPS_OF_A_CALL = 1 << 20


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
        limits: How many samples each source has, after which it is left out; None for no limits.
        steps: How many samples will be asked for.
    """
    if steps >= _WORTH_COMPILING_STEPS and has_numba():
        return CompiledOrder(weights, limits)
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


class CompiledOrder:
    """A blend by :func:`tokshard.blending.kernels.blend_steps`: the same samples, many times as fast."""

    def __init__(self, weights: NDArray[np.float64], limits: NDArray[np.int64] | None) -> None:
        self._classes = _Classes.of(weights, limits)
        self._kernel = compiled(blend_steps)
        self._left = len(self._classes.weights)
        self._step = 0
        self._draws = np.zeros(len(weights), np.int64)

    def fill(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> None:
        """Write the next samples: as many as the arrays have room for."""
        one = self._classes
        self._left = self._kernel(
            one.weights, one.limits, one.counts, one.starts, one.ends, one.members, one.heads,
            self._left, one.width, self._step, dataset_index, dataset_sample_index,
        )  # fmt: skip
        self._step += len(dataset_index)
        self._draws += np.bincount(dataset_index, minlength=len(self._draws))

    def draws(self) -> NDArray[np.int64]:
        """Return how often each source has been drawn: int64 of shape (sources,)."""
        return self._draws.copy()


@dataclass(frozen=True, slots=True)
class _Classes:
    """Sources of equal weight and limit together, by their first members; see the kernel for the fields."""

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
