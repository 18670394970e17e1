"""Steps and consumed samples: a batch size schedule resolved for one world, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps and consumed samples of a schedule in one world.

    Attributes:
        group: Micro batch size times data-parallel size: the samples of one micro-batch on all ranks.
        pieces: Triples (first step, samples consumed before it, batch size), ascending; the last one has
            no end.

    Example:
        >>> timeline = Timeline(8, ((0, 0, 16), (7, 112, 32)))
        >>> timeline.consumed(np.array([0, 6, 7, 8])).tolist(), timeline.step_of(np.array([143])).tolist()
        ([0, 96, 112, 144], [7])
    """

    group: int
    pieces: tuple[tuple[int, int, int], ...]

    @property
    def start(self) -> int:
        """The consumed samples at step 0."""
        return self.pieces[0][1]

    def consumed(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples consumed before each step, by all ranks."""
        table = np.array(self.pieces, dtype=np.int64)
        piece = table[np.searchsorted(table[:, 0], steps, side="right") - 1]
        return piece[..., 1] + (steps - piece[..., 0]) * piece[..., 2]

    def step_of(self, consumed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step that reads the sample with each number in the order of consumption.

        At a boundary this is the step that comes next: ``step_of(consumed(s)) == s``.
        """
        table = np.array(self.pieces, dtype=np.int64)
        piece = table[np.searchsorted(table[:, 1], consumed, side="right") - 1]
        return piece[..., 0] + (consumed - piece[..., 1]) // piece[..., 2]

    def batch_size(self, step: int) -> int:
        """Return the global batch size of a step."""
        return next(size for first, _, size in reversed(self.pieces) if first <= step)

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches of a step on every rank."""
        return self.batch_size(step) // self.group

    def boundary(self, consumed: int) -> int:
        """Return the step before which exactly this many samples were consumed.

        Raises:
            UsageError: No step starts there.
        """
        if consumed < self.start:
            raise UsageError(f"{consumed} consumed samples are before the start at {self.start}")
        step = int(self.step_of(np.array([consumed]))[0])
        before = int(self.consumed(np.array([step]))[0])
        if before != consumed:
            raise UsageError(
                f"{consumed} consumed samples are in the middle of step {step}, which starts at {before} and "
                f"has {self.batch_size(step)} samples"
            )
        return step

    def steps_within(self, samples: int) -> int:
        """Return how many whole steps fit a number of samples."""
        return int(self.step_of(np.array([self.start + samples]))[0])
