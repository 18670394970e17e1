"""The plans that a plan goes on from: where each stopped, and the proof that nothing is lost or repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.fields import Fields
from tokshard.sharding.replan.laps import LAP_ALGORITHM
from tokshard.sharding.replan.proof import StreamProof
from tokshard.sharding.sources import FileStamp

if TYPE_CHECKING:
    from tokshard.sharding.plan import Plan


@dataclass(frozen=True, slots=True)
class Reweighting:
    """How the order of a blend was made when it was weighted anew.

    Attributes:
        weights: A weight for each dataset of the stream; 0 for those that are not drawn any more, which
            are kept to be taken up again.
        seed: The seed of laps that begin after the stop.
        next_laps: The first lap of each dataset that was not begun before the stop.
        unread: The stamp of the array of unread samples, beside the arrays of the blend: int64 rows of
            dataset, lap, first sample and one past the last.
        laps: The stamp of the array of laps: int64 rows of dataset, lap, and first sample of the plan.
        algorithm: The frozen name of the order of a lap.
    """

    weights: tuple[float, ...]
    seed: int
    next_laps: tuple[int, ...]
    unread: FileStamp
    laps: FileStamp
    algorithm: str = LAP_ALGORITHM

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "weights": list(self.weights),
            "seed": self.seed,
            "next_laps": list(self.next_laps),
            "unread": self.unread.to_json(),
            "laps": self.laps.to_json(),
            "algorithm": self.algorithm,
        }

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the record that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or of another version.
        """
        record = Fields(value, path, "a weighting", cls.__slots__)
        weights, next_laps = record.array("weights"), record.array("next_laps")
        if not all(type(one) in {int, float} and one >= 0 for one in weights):
            raise record.wrong("has weights that are not numbers", "weights")
        if len(next_laps) != len(weights) or not all(type(one) is int and one >= 0 for one in next_laps):
            raise record.wrong("has laps that do not fit the weights", "next_laps")
        return cls(
            weights=tuple(weights),
            seed=record.count("seed"),
            next_laps=tuple(next_laps),
            unread=FileStamp.from_json(record.value("unread"), path),
            laps=FileStamp.from_json(record.value("laps"), path),
            algorithm=record.one_of("algorithm", (LAP_ALGORITHM,)),
        )


@dataclass(frozen=True, slots=True)
class StoppedStream:
    """A stream of a plan that was stopped.

    Attributes:
        assignment: What was being read.
        step: How many of its steps were taken.
        proof: What was counted when the next plan was made.
        reweighting: How the next plan's blend was made; None where it reads the same ids.
    """

    assignment: Assignment
    step: int
    proof: StreamProof
    reweighting: Reweighting | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "assignment": self.assignment.to_json(),
            "step": self.step,
            "consumed_samples": self.assignment.consumed_after(self.step),
            "proof": self.proof.to_json(),
            "reweighting": None if self.reweighting is None else self.reweighting.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the record that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        record = Fields(value, path, "a stopped stream", (*cls.__slots__, "consumed_samples"))
        assignment = Assignment.from_json(record.value("assignment"), path)
        step = record.count("step")
        if step > assignment.steps or assignment.consumed_after(step) != record.count("consumed_samples"):
            raise record.wrong(f"was not stopped at step {step} of {assignment.steps}", "step")
        weighted = record.value("reweighting")
        return cls(
            assignment,
            step,
            StreamProof.from_json(record.value("proof"), path),
            None if weighted is None else Reweighting.from_json(weighted, path),
        )


@dataclass(frozen=True, slots=True)
class Replanning:
    """A plan that was stopped, and went on in the next one.

    Attributes:
        plan_id: The plan.
        streams: Its streams that go on, by name.
    """

    plan_id: str
    streams: Mapping[str, StoppedStream]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "plan_id": self.plan_id,
            "streams": {name: one.to_json() for name, one in self.streams.items()},
        }

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the record that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        record = Fields(value, path, "a plan of the history", cls.__slots__)
        streams = record.object("streams")
        return cls(
            record.hexadecimal("plan_id", 64),
            {name: StoppedStream.from_json(one, path) for name, one in streams.items()},
        )


def history_of(plan: Plan, path: str = "the plan") -> tuple[Replanning, ...]:
    """Return the plans that a plan goes on from, oldest first.

    Args:
        plan: The plan.
        path: Its file, for errors.

    Raises:
        IntegrityError: The history is damaged.
    """
    return tuple(Replanning.from_json(one, path) for one in plan.history)


def stops_of(history: tuple[Replanning, ...], stream: str) -> tuple[StoppedStream, ...]:
    """Return where a stream was stopped, oldest first."""
    return tuple(one.streams[stream] for one in history if stream in one.streams)


def reweighting_of(stops: tuple[StoppedStream, ...]) -> Reweighting | None:
    """Return how the blend that a stream reads now was made; None where it is no new weighting."""
    return next((one.reweighting for one in reversed(stops) if one.reweighting is not None), None)
