"""Batch size over time: the samples that all ranks together have consumed after each step.

A schedule gives the global batch size at every number of consumed samples. The three kinds are Megatron's:
constant, ``--rampup-batch-size`` (up to 0.17) and ``--step-batch-size-schedule`` (from 0.18 on). A timeline
is a schedule resolved for one world size, in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.core.codec import Record
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
        >>> import numpy as np
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

    def consumed(self, steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the samples consumed before each step, or before one step, by all ranks."""
        table = np.array(self.pieces, dtype=np.int64)
        piece = table[np.searchsorted(table[:, 0], steps, side="right") - 1]
        return piece[..., 1] + (steps - piece[..., 0]) * piece[..., 2]

    def step_of(self, consumed: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the step that reads the sample with each number in the order of consumption.

        At a boundary this is the step that comes next: ``step_of(consumed(s)) == s``.
        """
        table = np.array(self.pieces, dtype=np.int64)
        piece = table[np.searchsorted(table[:, 1], consumed, side="right") - 1]
        return piece[..., 0] + (consumed - piece[..., 1]) // piece[..., 2]

    def samples_of(self, steps: int) -> int:
        """Return the samples of the first steps."""
        return int(self.consumed(steps)) - self.start

    def batch_size(self, step: int) -> int:
        """Return the global batch size of a step."""
        return next(size for first, _, size in reversed(self.pieces) if first <= step)

    def boundary(self, consumed: int) -> int:
        """Return the step before which exactly this many samples were consumed.

        Raises:
            UsageError: No step starts there.
        """
        if consumed < self.start:
            raise UsageError(f"consumed samples must be at least {self.start}, got {consumed}")
        step = int(self.step_of(consumed))
        before = int(self.consumed(step))
        if before != consumed:
            raise UsageError(
                f"consumed samples must be at the end of a step, got {consumed}: step {step} starts at "
                f"{before} and has {self.batch_size(step)} samples",
                hint=f"use {before} or {before + self.batch_size(step)} consumed samples",
            )
        return step

    def steps_within(self, samples: int) -> int:
        """Return how many whole steps fit a number of samples."""
        return int(self.step_of(self.start + samples))


_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

MAX_SAMPLES = 2**62
MAX_SEGMENTS = 100_000
"""More sizes than this are a mistake, and would make plans large."""


@dataclass(frozen=True, slots=True)
class BatchSchedule(Record):
    """The global batch size as a function of the consumed samples.

    Raises:
        UsageError: The segments are none, do not start at 0, do not ascend, or hold a size below 1.

    Attributes:
        segments: Pairs of a number of consumed samples and the global batch size from there on, ascending.
            The first number is 0.
        round_down: Whether a size that is not divisible by the data-parallel size times the micro-batch size
            is rounded down (``--decrease-batch-size-if-needed``).

    Example:
        >>> schedule = BatchSchedule.parse("0:16 100:32")
        >>> schedule.size_at(99), schedule.size_at(100)
        (16, 32)
    """

    segments: tuple[tuple[int, int], ...]
    round_down: bool

    def _validate(self) -> None:
        if not 0 < len(self.segments) <= MAX_SEGMENTS:
            raise UsageError(
                f"a batch size schedule must have from 1 to {MAX_SEGMENTS} sizes, got {len(self.segments)}"
            )
        if self.segments[0][0] != 0:
            raise UsageError(
                f"the first threshold of a batch size schedule must be 0, got {self.segments[0][0]}"
            )
        for (before, _), (threshold, _) in zip(self.segments, self.segments[1:], strict=False):
            if threshold <= before:
                raise UsageError(
                    f"the thresholds of a batch size schedule must ascend, got {before}, {threshold}"
                )
        for threshold, size in self.segments:
            if size < 1:
                raise UsageError(f"the global batch size must be at least 1, got {size}")
            if max(threshold, size) > MAX_SAMPLES:
                raise UsageError(
                    f"the numbers of a batch size schedule must be at most 2**62, got {max(threshold, size)}"
                )

    @property
    def text(self) -> str:
        """The schedule in words: its one size, or its thresholds and sizes as :meth:`parse` takes them."""
        if len(self.segments) == 1:
            return str(self.segments[0][1])
        return " ".join(f"{threshold}:{size}" for threshold, size in self.segments)

    @classmethod
    def constant(cls, size: int, *, round_down: bool = False) -> Self:
        """Return the schedule of one size."""
        return cls(((0, size),), round_down)

    @classmethod
    def rampup(cls, start: int, increment: int, samples: int, size: int, *, round_down: bool = False) -> Self:
        """Return Megatron's ramp-up from a start size to the full size over a number of samples.

        The size is ``start + int(consumed / (samples / increments)) * increment`` up to ``samples``
        consumed ones, computed in floating point as there, and the full size after them.

        Args:
            start: The first global batch size.
            increment: What is added each time.
            samples: After how many samples the full size is reached.
            size: The full global batch size.
            round_down: See :class:`BatchSchedule`.

        Raises:
            UsageError: The numbers make no ramp.

        Example:
            >>> BatchSchedule.rampup(16, 16, 90, 64).segments
            ((0, 16), (30, 32), (60, 48), (90, 64))
        """
        if min(start, increment, samples) < 1:
            raise UsageError(
                f"--rampup-batch-size must be three numbers of at least 1, got {start} {increment} {samples}"
            )
        if size <= start or (size - start) % increment:
            raise UsageError(
                f"--rampup-batch-size must reach the global batch size {size} in whole increments, "
                f"got {start} {increment} {samples}",
                hint="omit --rampup-batch-size if both sizes are equal" if size == start else None,
            )
        increments = (size - start) // increment
        if increments >= MAX_SEGMENTS:
            raise UsageError(
                f"--rampup-batch-size must have at most {MAX_SEGMENTS - 1} increments, got {increments}"
            )
        each = samples / increments
        segments = [(0, start)]
        for number in range(1, increments + 1):
            threshold = _first_reaching(number, each)
            # More increments than samples: several are passed at one sample, and the last one counts.
            if threshold == segments[-1][0]:
                segments.pop()
            segments.append((threshold, start + number * increment))
        return cls(tuple(segments), round_down)

    @classmethod
    def parse(cls, text: str, sequence_length: int | None = None) -> Self:
        """Return the schedule of a text ``"THRESHOLD:SIZE THRESHOLD:SIZE ..."`` as Megatron reads it.

        Pairs are separated by spaces or commas, in any order, and numbers may end in K, M, B or T
        (1e3 to 1e12).

        Args:
            text: The pairs.
            sequence_length: Thresholds are tokens and become samples by ``// sequence_length``; None
                where they are samples already.

        Raises:
            UsageError: A pair is none, or the schedule is not valid.

        Example:
            >>> BatchSchedule.parse("0:768 1M:1536", 4096).segments
            ((0, 768), (244, 1536))
        """
        segments = []
        for entry in text.replace(",", " ").split():
            threshold_text, colon, size_text = entry.partition(":")
            if not colon:
                raise UsageError(
                    f"entries of a batch size schedule must be THRESHOLD:SIZE, got {entry!r}",
                    hint="pass for example --step-batch-size-schedule '0:256 1B:512'",
                )
            threshold, size = _number(threshold_text, entry), _number(size_text, entry)
            if size != int(size):
                raise UsageError(f"sizes of a batch size schedule must be plain integers, got {entry!r}")
            samples = int(threshold)
            segments.append((samples if sequence_length is None else samples // sequence_length, int(size)))
        return cls(tuple(sorted(segments, key=lambda pair: pair[0])), round_down=False)

    def size_at(self, consumed: int) -> int:
        """Return the nominal global batch size at a number of consumed samples."""
        return next(size for threshold, size in reversed(self.segments) if threshold <= consumed)

    def timeline(
        self, group: int, start: int = 0, *, stop: int | None = None, steps: int | None = None
    ) -> Timeline:
        """Resolve the schedule for a world.

        Args:
            group: Micro batch size times data-parallel size.
            start: The consumed samples at step 0.
            stop: Sizes that hold only from this many consumed samples on are not looked at; None for all.
            steps: Sizes that hold only from this step on are not looked at; None for all.

        Raises:
            UsageError: A size in use is not divisible by the group (or is below it, where rounded down).
        """
        pieces: list[tuple[int, int, int]] = []
        step, consumed = 0, start
        for number, (threshold, nominal) in enumerate(self.segments):
            last = number + 1 == len(self.segments)
            end = None if last else self.segments[number + 1][0]
            if end is not None and end <= consumed:
                continue
            if pieces and ((stop is not None and consumed >= stop) or (steps is not None and step >= steps)):
                break
            size = self._running(nominal, group, threshold)
            pieces.append((step, consumed, size))
            if end is not None:
                needed = -(-(end - consumed) // size)
                step, consumed = step + needed, consumed + needed * size
        return Timeline(group, tuple(pieces))

    def _running(self, size: int, group: int, threshold: int) -> int:
        running = size // group * group
        if running == size or (self.round_down and running):
            return running
        raise UsageError(
            f"the global batch size (from {threshold} consumed samples on) must be divisible by "
            f"micro batch size x data-parallel size = {group}, got {size}",
            hint=f"use a multiple of {group}, or --decrease-batch-size-if-needed to round it down",
        )


def batch_size_warning(schedule: BatchSchedule, job_batch_size: int | None, path: str) -> str | None:
    """Return the warning that a blend was built for a job with another last batch size, or None."""
    planned = schedule.segments[-1][1]
    if job_batch_size in {None, planned}:
        return None
    return (
        f"the global batch size is {planned:,}, but {path} was built for a job with {job_batch_size:,}: pass "
        f"--from-launch LAUNCH or --global-batch-size {job_batch_size} to plan that job"
    )


def _first_reaching(number: int, each: float) -> int:
    # The smallest count with ``int(count / each) >= number`` in floating point.
    count = math.floor(number * each)
    while count > 0 and (count - 1) / each >= number:
        count -= 1
    while count / each < number:
        count += 1
    return count


def _number(text: str, entry: str) -> float:
    # In floating point, as Megatron computes it.
    text = text.strip().upper()
    factor = _SUFFIXES.get(text[-1:], 1)
    try:
        value = float(text if factor == 1 else text[:-1]) * factor
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**63:
        raise UsageError(
            f"batch size schedule: {text!r} in {entry!r} must be a number of samples or tokens",
            hint="write for example 250B; numbers may end in K, M, B or T",
        )
    return value
