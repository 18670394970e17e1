"""Counting along a plan: micro-batches, steps, consumed samples and epochs, from any to any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Course:
    """The micro-batches of a rank, numbered from 0 through all steps, equally many on every rank.

    Attributes:
        assignment: What all ranks read.

    Example:
        >>> from tokshard.sharding.layouts import Striped
        >>> from tokshard.sharding.order import SampleOrder
        >>> from tokshard.sharding.passes import Pass
        >>> from tokshard.sharding.schedule import BatchSchedule
        >>> whole = Pass(SampleOrder(100), Striped(100, ranks=2, width=4, samples_per_rank=48))
        >>> course = Course(Assignment((whole,), 4, BatchSchedule.constant(16), steps=6))
        >>> len(course), course.micro_batches(1), course.step(3), course.consumed(3), course.at(24)
        (12, range(2, 4), 1, 24, 3)
    """

    assignment: Assignment

    def __len__(self) -> int:
        return self.assignment.samples_per_rank // self.assignment.micro_batch_size

    def micro_batches(self, step: int) -> range:
        """Return the numbers of the micro-batches of a step.

        Raises:
            IndexError: There is no such step.
        """
        if not 0 <= step < self.assignment.steps:
            raise IndexError(f"step {step} is not 0 to {self.assignment.steps - 1}")
        return range(self._first(step), self._first(step + 1))

    def step(self, position: int) -> int:
        """Return the step of a micro-batch; the number of steps for the end."""
        consumed = np.array([self.consumed(position)], dtype=np.int64)
        return min(int(self.assignment.timeline.step_of(consumed)[0]), self.assignment.steps)

    def start_of_step(self, step: int) -> int:
        """Return the first micro-batch of a step, or the end for the number of steps."""
        return self._first(step)

    def consumed(self, position: int) -> int:
        """Return what all ranks have consumed when each stands before a micro-batch."""
        local = position * self.assignment.micro_batch_size
        return self.assignment.consumed_samples + local * self.assignment.ranks

    def at(self, consumed_samples: int) -> int:
        """Return the micro-batch before which all ranks have consumed this many samples.

        Raises:
            UsageError: None starts there, or the plan does not reach it.
        """
        group = self.assignment.ranks * self.assignment.micro_batch_size
        position, rest = divmod(consumed_samples - self.assignment.consumed_samples, group)
        if rest or not 0 <= position <= len(self):
            raise UsageError(
                f"no micro-batch of the plan starts at {consumed_samples} consumed samples: they start "
                f"every {group} from {self.consumed(0)} to {self.consumed(len(self))}"
            )
        return position

    def epoch(self, position: int) -> int:
        """Return the epoch of the first sample of a micro-batch; at the end, that of the last one."""
        last = min(position, len(self) - 1) * self.assignment.micro_batch_size + self.assignment.skipped
        epoch = 0
        for one in self.assignment.passes:
            epoch = one.first_epoch + max(min(last, one.per_rank - 1), 0) // one.per_epoch
            if last < one.per_rank:
                break
            last -= one.per_rank
        return epoch

    def _first(self, step: int) -> int:
        return self.assignment.first_local(step) // self.assignment.micro_batch_size
