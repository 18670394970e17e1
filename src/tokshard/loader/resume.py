"""State of a loader, and how an order continues from it, in any world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokshard.core.codec import Count, Document, Sha256, encode
from tokshard.errors import IntegrityError, ResumeMismatchError, UsageError
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.storage.digest import identity_digest

if TYPE_CHECKING:
    from tokshard.ranks.plan import Plan, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState(Document):
    """The position of all ranks in a stream; no rank, and no world size, is part of it.

    Attributes:
        plan_id: Id of the plan.
        stream: Name of the stream.
        consumed_samples: Samples that all ranks have consumed.
        step_start: Consumed samples at the start of the step under way.
        epoch: Number of the epoch under way.
        position: Samples of this epoch that were read; all others were read in finished epochs.
        order: SHA-256 of the order of an epoch. Null where it depends on the world size.
    """

    SCHEMA = "tokshard.loader/2"
    OLDER_HINT = "resume with the tokshard that saved it, or call seek() with the samples consumed so far"

    plan_id: str
    stream: str
    consumed_samples: Count
    step_start: Count
    epoch: Count
    position: Count
    order: Sha256 | None

    @classmethod
    def of(cls, plan_id: str, name: str, stream: Stream, order: ConsumptionOrder, number: int) -> LoaderState:
        """Return the state at a number of an order of a stream."""
        epoch, position = order.point(number)
        consumed = order.consumed_samples + number
        step = min(int(order.timeline.step_of(consumed)), order.steps)
        return cls(
            plan_id=plan_id,
            stream=name,
            consumed_samples=consumed,
            step_start=order.consumed_after(step),
            epoch=epoch,
            position=position,
            order=_order_digest(stream),
        )

    @classmethod
    def of_dict(cls, value: Any) -> LoaderState:
        """Return the state of a dictionary of plain values that ``to_json`` gave.

        Raises:
            UsageError: It is no state of a loader.
        """
        try:
            return cls.from_json(value, "the loader's state")
        except IntegrityError as error:
            raise UsageError(error.message, hint=error.hint) from error


def _order_digest(stream: Stream) -> str | None:
    if not stream.order.is_independent:
        return None
    links = stream.order.epoch_ranges[-1].links
    return identity_digest([stream.source_id, [encode(link) for link in links], stream.sort_key])


def resume(
    state: LoaderState, plan: Plan, name: str, order: ConsumptionOrder
) -> tuple[ConsumptionOrder, int]:
    """Return the order in which a loader continues from a state, and the number of the next sample.

    A state of the same plan, or at the start of the plan that continues it, continues in ``order``. So does
    any state of the same samples in the same order whose step starts in ``order``. Otherwise the current
    epoch continues with the batches of this plan, whose steps are counted from the state.

    Args:
        state: Where a loader stopped.
        plan: The plan of the loader that continues.
        name: Name of its stream.
        order: Its order.

    Raises:
        ResumeMismatchError: The state belongs to another order or stream.
        UsageError: No micro-batch of this plan starts there, or nothing is left.
    """
    if state.stream != name:
        raise ResumeMismatchError(
            f"the state must be of the stream {name!r}, got {state.stream!r}",
            differences=("stream",),
        )
    stream = plan.streams[name]
    number = state.consumed_samples - order.consumed_samples
    digest = _order_digest(stream)
    is_same = state.plan_id == plan.plan_id or (digest is not None and digest == state.order)
    if is_same and 0 <= number <= order.samples and number % order.group == 0:
        own = LoaderState.of(state.plan_id, name, stream, order, number)
        if own == replace(state, order=own.order):
            return order, number
    if plan.history and plan.history[-1].plan_id == state.plan_id:
        if number:
            raise _mismatch(
                f"the plan starts at {order.consumed_samples} consumed samples, but the state is at "
                f"{state.consumed_samples}",
                "consumed_samples",
                state,
            )
        return order, 0
    if digest is None or not is_same:
        difference = "the plans do not read the same samples in the same order"
        if digest is None or state.order is None:
            difference = "the order of samples is independent of the world size only in mode single"
        raise _mismatch(
            f"the state at {state.consumed_samples} consumed samples belongs to plan {state.plan_id[:12]}, "
            f"not to {plan.plan_id[:12]}: {difference}",
            difference,
            state,
        )
    return _continued(state, stream, order)


def _continued(state: LoaderState, stream: Stream, order: ConsumptionOrder) -> tuple[ConsumptionOrder, int]:
    from tokshard.ranks.continuation import continue_order
    from tokshard.ranks.modes import ReadingMode

    # Steps start where the step under way has started.
    number = state.consumed_samples - state.step_start
    point = (state.epoch, state.position - number)
    if number % order.group or point[1] < 0:
        raise UsageError(
            f"the state at {state.consumed_samples} consumed samples is inside a step, and no micro-batch of "
            f"{order.group} samples on all ranks starts there",
            hint="resume from a state that was saved at the end of a step",
        )
    if state.step_start < order.consumed_samples or point < order.point(0):
        raise _mismatch(
            f"the plan starts at {order.consumed_samples} consumed samples, but the state is at "
            f"{state.consumed_samples}",
            "consumed_samples",
            state,
        )
    reading = ReadingMode.of(order.ranks, order.micro_batch_size, order.schedule, stream.mode, stream.tail)
    try:
        return continue_order(order, point, state.step_start, reading, order.schedule), number
    except UsageError as error:
        raise UsageError(error.message, hint=_replan_hint(state)) from error


def _mismatch(message: str, difference: str, state: LoaderState) -> ResumeMismatchError:
    return ResumeMismatchError(message, differences=(difference,), hint=_replan_hint(state))


def _replan_hint(state: LoaderState) -> str:
    return (
        "build the continuing plan: tokshard replan OLD_PLAN "
        f"--consumed-samples {state.consumed_samples} -o NEW_PLAN"
    )
