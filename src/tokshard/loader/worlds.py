"""State of a loader, the order that continues from it with any world size, and a plan with another one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokshard.core.codec import Count, Document, Sha256, encode
from tokshard.dataset.products import RANK_NAME
from tokshard.errors import IntegrityError, ResumeMismatchError, UsageError
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.manifests import read_rank
from tokshard.ranks.plan import Plan, Stream, read_plan
from tokshard.ranks.schedule import BatchSchedule
from tokshard.storage.digest import identity_digest


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
    def of(cls, plan: Plan, name: str, order: ConsumptionOrder, number: int) -> LoaderState:
        """Return the state at a number of an order of a stream."""
        epoch, position = order.point(number)
        consumed = order.consumed_samples + number
        step = min(int(order.timeline.step_of(consumed)), order.steps)
        digest = _order_digest(plan.streams[name])
        return cls(
            plan_id=plan.plan_id,
            stream=name,
            consumed_samples=consumed,
            step_start=order.consumed_after(step),
            epoch=epoch,
            position=position,
            order=digest,
        )


def state_at(plan: Plan, name: str, consumed_samples: int) -> dict[str, Any] | None:
    """Return the state of a stream after a step that ended in the first epoch, with any world size.

    Returns:
        None if the epoch ends before, or the order of samples depends on the world.
    """
    order = plan.streams[name].order
    number = consumed_samples - order.consumed_samples
    if not order.is_independent or not 0 <= number < order.samples:
        return None
    state = LoaderState.of(plan, name, order, number)
    if state.epoch != order.epoch_ranges[0].first_epoch:
        return None
    return replace(state, step_start=consumed_samples).to_json()


def _order_digest(stream: Stream) -> str | None:
    if not stream.order.is_independent:
        return None
    links = stream.order.epoch_ranges[-1].links
    return identity_digest([stream.source_id, [encode(link) for link in links], stream.sort_key])


def resume(
    saved: Mapping[str, Any], plan: Plan, name: str, order: ConsumptionOrder
) -> tuple[ConsumptionOrder, int]:
    """Return the order in which a loader continues from a state, and the number of the next sample.

    A state of the same plan, or at the start of the plan that continues it, continues in ``order``. So does
    any state of the same samples in the same order whose step starts in ``order``. Otherwise the current
    epoch continues with the batches of this plan, whose steps are counted from the state.

    Args:
        saved: State of a loader where it stopped, as a dictionary of plain values.
        plan: The plan of the loader that continues.
        name: Name of its stream.
        order: Its order.

    Raises:
        ResumeMismatchError: The state belongs to another order or stream.
        UsageError: It is no state, no micro-batch of this plan starts there, or nothing is left.
    """
    try:
        state = LoaderState.from_json(saved, "the loader's state")
    except IntegrityError as error:
        raise UsageError(error.message, hint=error.hint) from error
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
        own = LoaderState.of(plan, name, order, number)
        if own == replace(state, plan_id=own.plan_id, order=own.order):
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


def read_in_world(
    path: str,
    rank: int | None,
    stream: str,
    roots: Mapping[str, str],
    *,
    data_parallel: int | None,
    micro_batch_size: int | None,
    global_batch_size: int | None,
) -> tuple[Plan, int]:
    """Read a plan for one rank; with a size, one stream of it for other ranks and batches.

    Raises:
        UsageError: There is no such rank or stream, its ranks own parts, or sizes do not fit.
        MissingFileError, IntegrityError: See :func:`~tokshard.ranks.manifests.read_rank`.
    """
    if data_parallel is None and micro_batch_size is None and global_batch_size is None:
        return read_rank(path, rank, roots=roots)
    if RANK_NAME.fullmatch(os.path.basename(path)) is not None:
        raise UsageError(
            f"{path} is the manifest of a rank of the planned world size, and other sizes were passed",
            hint="pass the directory of the plan, and the rank",
        )
    if rank is None:
        raise UsageError("the rank is required to read a plan with another world size", hint="pass rank=0")
    plan = read_plan(path, roots=roots)
    planned = plan.stream(stream)
    order = planned.order
    if not order.is_independent:
        raise UsageError(
            f"data_parallel, micro_batch_size and global_batch_size require mode single: in mode "
            f"{planned.mode} each rank has its own part",
            hint="make a plan for the new size: tokshard replan OLD_PLAN --consumed-samples N -o NEW_PLAN",
        )
    from tokshard.ranks.continuation import continue_order
    from tokshard.ranks.modes import ReadingMode

    ranks = order.ranks if data_parallel is None else data_parallel
    size = order.micro_batch_size if micro_batch_size is None else micro_batch_size
    schedule = order.schedule if global_batch_size is None else BatchSchedule.constant(global_batch_size)
    try:
        reading = ReadingMode.of(ranks, size, schedule, planned.mode, planned.tail)
        order = continue_order(order, order.point(0), order.consumed_samples, reading, schedule)
    except UsageError as error:
        hint = f"pass a global_batch_size that is a multiple of {ranks} x {size} and fits the samples"
        raise UsageError(error.message, hint=hint) from error
    model = plan.topology.world_size // plan.topology.data_parallel
    in_world = Plan.of(
        replace(plan.topology, world_size=ranks * model),
        plan.sources,
        {stream: replace(planned, order=order).over(planned.source)},
        plan.history,
        plan.warnings,
        plan.tokenizer,
        plan.tokenizer_mismatches,
    )
    return in_world, rank
