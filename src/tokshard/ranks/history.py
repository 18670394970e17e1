"""The plans that a plan continues, and where each stopped: the records of ``history`` in ``plan.json``.

:mod:`tokshard.ranks.replan` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tokshard.core.codec import Amount, Count, Record, Sha256
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.errors import UsageError
from tokshard.ranks.assignment import Assignment

"""The frozen name of the order of an epoch of one source; keys are derived from it."""


@dataclass(frozen=True, slots=True)
class Reweighting(Record):
    """The order of a re-weighted blend.

    Raises:
        UsageError: There is not one number of each kind for each source.

    Attributes:
        weights: Weight of each dataset of the stream. 0 if it is no longer drawn.
        seed: Seed of the source epochs that begin after the stop.
        next_source_epochs: First source epoch of each dataset that had not started before the stop.
        unread: Fingerprint of the array of unread samples: int64 rows of source, source epoch, first sample
            and one past the last.
        source_epochs: Fingerprint of the array of source epochs: int64 rows of source, source epoch and first
            sample of the plan in it.
    """

    ALGORITHM: ClassVar[str] = "tokshard.feistel/1:lap"

    weights: tuple[Amount, ...]
    seed: Count
    next_source_epochs: tuple[Count, ...]
    unread: FileFingerprint
    source_epochs: FileFingerprint

    def _validate(self) -> None:
        if len(self.next_source_epochs) != len(self.weights):
            raise UsageError(
                f"next_source_epochs must have {len(self.weights)} items like weights, "
                f"got {len(self.next_source_epochs)}"
            )


@dataclass(frozen=True, slots=True)
class StoppedStream(Record):
    """A stream of a plan that was stopped.

    Raises:
        UsageError: The plan has no such step, or other samples are consumed after it.

    Attributes:
        assignment: Assignment of the stopped plan.
        step: Steps that were taken.
        consumed_samples: Samples that all ranks have consumed after these steps.
        reweighting: New weights of the next plan. Absent if it reads the same samples.
    """

    assignment: Assignment
    step: Count
    consumed_samples: Count
    reweighting: Reweighting | None = None

    def _validate(self) -> None:
        if self.step > self.assignment.steps:
            raise UsageError(f"step must be at most {self.assignment.steps}, got {self.step}")
        if self.assignment.consumed_after(self.step) != self.consumed_samples:
            raise UsageError(
                f"consumed_samples after step {self.step} must be "
                f"{self.assignment.consumed_after(self.step)}, got {self.consumed_samples}"
            )


@dataclass(frozen=True, slots=True)
class StoppedPlan(Record):
    """A plan that was stopped, and that the next one continues.

    Attributes:
        plan_id: Id of the plan.
        streams: Streams that continue, by name.
    """

    plan_id: Sha256
    streams: dict[str, StoppedStream]


def stops_of(history: Iterable[StoppedPlan], stream: str) -> tuple[StoppedStream, ...]:
    """Return where a stream was stopped, oldest first."""
    return tuple(plan.streams[stream] for plan in history if stream in plan.streams)


def reweighting_of(stops: Iterable[StoppedStream]) -> Reweighting | None:
    """Return how the blend that a stream reads now was made; None if it was not re-weighted."""
    found = None
    for stop in stops:
        if stop.reweighting is not None:
            found = stop.reweighting
    return found
