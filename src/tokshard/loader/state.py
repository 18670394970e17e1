"""Where a loader stands, as plain values for any checkpoint, and whether another may go on there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from tokshard.errors import ResumeMismatchError, UsageError
from tokshard.loader.course import Course
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.layouts import Striped
from tokshard.storage.digest import identity_digest

SCHEMA = "tokshard.loader/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """The position of all ranks in a stream; no rank, and no world size, is part of it.

    Attributes:
        plan_id: The plan.
        stream: The name of the stream.
        consumed_samples: What all ranks together have consumed, before this plan, too.
        epoch: The epoch of the next sample; for people.
        order: What identifies the order in which all ranks together consume samples, where that does not
            depend on how many there are (mode ``single``); None otherwise.
        start: The consumed samples at which that order begins.
        whole: How many samples its epochs have for all ranks; those of the first epoch first.
        schema: ``"tokshard.loader/1"``.
    """

    plan_id: str
    stream: str
    consumed_samples: int
    epoch: int
    order: str | None
    start: int
    whole: list[int]
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Return the state that :meth:`to_dict` gave.

        Raises:
            UsageError: It is none.
        """
        kinds = {one.name: str(one.type) for one in fields(cls)}
        if not isinstance(value, dict) or set(value) != set(kinds):
            raise UsageError(f"a loader's state has the fields {', '.join(kinds)}")
        wanted: dict[str, Any] = {"str": str, "int": int, "list[int]": list, "str | None": str | None}
        for name, kind in kinds.items():
            if not isinstance(value[name], wanted[kind]):
                raise UsageError(f"{name} of a loader's state is {value[name]!r}, not {kind}")
        if value["schema"] != SCHEMA:
            raise UsageError(
                f"the loader's state is {value['schema']!r}, this version of tokshard reads {SCHEMA!r}"
            )
        return cls(**value)


def global_order(source_id: str, assignment: Assignment) -> tuple[str | None, int, list[int]]:
    """Return the fields ``order``, ``start`` and ``whole`` of a state of an assignment."""
    start = assignment.consumed_samples - assignment.skipped * assignment.ranks
    whole = [one.per_epoch * assignment.ranks for one in assignment.passes]
    for one in assignment.passes:
        if not isinstance(one.layout, Striped) or one.layout.width != assignment.micro_batch_size:
            return None, start, whole
    passes = [[one.order.to_json(), one.first_epoch, one.epochs] for one in assignment.passes]
    return identity_digest([source_id, passes]), start, whole


def position_of(
    state: LoaderState, own: LoaderState, course: Course, history: Sequence[dict[str, Any]]
) -> int:
    """Return the micro-batch at which a loader goes on from a state.

    Args:
        state: Where a loader stood: of the same plan; of the one that this plan was made from; or, in mode
            ``single``, of any other that reads the same samples in the same order.
        own: A state of the loader itself.
        course: Its micro-batches.
        history: The plans that its plan goes on from, oldest first; each has its ``plan_id``.

    Raises:
        ResumeMismatchError: The state is of another plan, or of another stream.
        UsageError: No step of this plan starts there.
    """
    if state.stream != own.stream:
        raise ResumeMismatchError(
            f"the state is that of the stream {state.stream!r}, and not of {own.stream!r}",
            differences=("stream",),
        )
    if state.plan_id == own.plan_id:
        return course.at(state.consumed_samples)
    if history and history[-1].get("plan_id") == state.plan_id:
        if state.consumed_samples != course.consumed(0):
            raise ResumeMismatchError(
                f"the plan goes on from {course.consumed(0)} consumed samples, but the state is at "
                f"{state.consumed_samples}",
                differences=("consumed_samples",),
                hint=f"make the plan again with --consumed-samples {state.consumed_samples}",
            )
        return 0
    _check_same_order(state, own)
    position = course.at(state.consumed_samples)
    if position < len(course):
        course.assignment.timeline.boundary(state.consumed_samples)
    return position


def _check_same_order(state: LoaderState, own: LoaderState) -> None:
    if own.order is None or state.order is None:
        difference = "only in mode single is the order of samples the same for every world size"
    elif (state.order, state.start) != (own.order, own.start):
        difference = "the plans do not read the same samples in the same order"
    elif state.whole != own.whole and state.consumed_samples - own.start > min(state.whole[0], own.whole[0]):
        difference = (
            f"the first epoch, which is over, had {state.whole[0]} samples there and {own.whole[0]} here"
        )
    else:
        return
    raise ResumeMismatchError(
        f"the state at {state.consumed_samples} consumed samples is that of plan {state.plan_id[:12]}, and "
        f"not of {own.plan_id[:12]}: {difference}",
        differences=(difference,),
        hint=f"make the plan that goes on there: tokshard shard-plan --from OLD_PLAN "
        f"--consumed-samples {state.consumed_samples} -o NEW_PLAN",
    )
