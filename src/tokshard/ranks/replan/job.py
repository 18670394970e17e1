"""Replanning: continue a plan for a new world size or with new weights.

Nothing is lost or repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokshard.core.codec import encode
from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
from tokshard.ranks.assignment import Assignment
from tokshard.ranks.discovery import read_blends
from tokshard.ranks.history import (
    Reweighting,
    StoppedPlan,
    StoppedStream,
    stops_of,
)
from tokshard.ranks.layouts import Blocked
from tokshard.ranks.modes import World
from tokshard.ranks.options import ReplanOptions, batch_schedule, consumed_valid_samples
from tokshard.ranks.order import SampleOrder
from tokshard.ranks.plan import Plan, PlanWarning, Stream, read_plan
from tokshard.ranks.planning import ShardPlanReport, publish_plan, world_of
from tokshard.ranks.replan.continuation import (
    ShardingPolicy,
    continue_assignment,
    whole_epochs,
)
from tokshard.ranks.replan.reweighting import (
    BlendComponent,
    OrderFiles,
    match_components,
    names_blend,
    read_weights,
    reweight,
    source_progress_of,
)
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.tokenizers import PlanTokenizers, agree_on_tokenizers
from tokshard.samples.index.splits import TRAIN
from tokshard.storage.lock import lock_mode

FULL_VALIDATION = "full-validation"
STRIPED_MODES = ("single", "sequential")


def replan(
    options: ReplanOptions, *, dry_run: bool = False, progress: Progress | None = None
) -> ShardPlanReport:
    """Continue a plan for a new world size or with new weights, and write it.

    Args:
        options: How it continues.
        dry_run: Whether to plan without writing anything. The samples of a plan with new weights cannot be
            read from it: their order would be in files next to it.
        progress: Receives the activities.

    Raises:
        UsageError: The consumed samples are not at the end of a step, nothing is left, or sizes do not
            fit, with the numbers.
        MissingFileError, IntegrityError: A file that is needed is not there or has changed, or the plan
            is damaged.
        TokenizerMismatchError: The new blend has data of another tokenizer than the plan.
        OutputExistsError: The directory holds another plan.
        StorageError: The disk is full or broken.

    Example::

        tokshard.replan(ReplanOptions(plan="plan", output="plan2", consumed_samples=4096, world_size=16))
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("planning and checking")
        found = continue_plan(read_plan(options.plan, roots=dict(options.moved)), options)
        if found.files is not None and not dry_run:
            listener.start("writing the order")
            found.files.write()
        return publish_plan(
            found.plan, options.output, listener, force=options.force, dry_run=dry_run, started=started
        )


@dataclass(frozen=True, slots=True)
class _Stop:
    name: str
    stream: Stream
    earlier: tuple[StoppedStream, ...]
    step: int
    world: World
    schedule: BatchSchedule
    policy: ShardingPolicy

    def stopped(self, reweighting: Reweighting | None = None) -> StoppedStream:
        assignment = self.stream.assignment
        consumed = assignment.consumed_after(self.step)
        return StoppedStream(assignment, self.step, consumed, reweighting)


@dataclass(frozen=True, slots=True)
class _Continued:
    stream: Stream
    stopped: StoppedStream
    warnings: tuple[PlanWarning, ...] = ()
    files: OrderFiles | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """A plan that continues another one.

    Attributes:
        plan: The plan.
        files: Its new order, to be written before the plan; None without new weights.
    """

    plan: Plan
    files: OrderFiles | None = None


def continue_plan(plan: Plan, options: ReplanOptions) -> Continuation:
    """Plan the samples that are read after a stop; nothing is written.

    Without another blend this opens no data. With another blend it looks at each sample that was planned,
    and its new order takes 10 bytes a sample.

    Args:
        plan: The plan that was stopped.
        options: How it continues; ``options.plan`` is not opened.

    Raises:
        UsageError: The consumed samples are not at the end of a step, nothing is left, or sizes do not
            fit, with the numbers.
        MissingFileError, IntegrityError: A file that is needed is not there or has changed, or the plan
            is damaged.
    """
    topology = options.topology(plan.topology)
    source = next(iter(plan.streams.values())).source
    schedule = batch_schedule(options, source.sequence_length)
    consumed_valid_samples(TRAIN, tuple(plan.streams), options.consumed_valid_samples)  # raises
    stops = {}
    for name, stream in plan.streams.items():
        with _named(name):
            stops[name] = _stop_of(name, stream, plan, topology.data_parallel, schedule, options)
    continued: dict[str, _Continued] = {}
    for name, stop in stops.items():
        with _named(name):
            if name == TRAIN and options.blend is not None:
                continued[name] = _reweighted(stop, plan, options)
            else:
                continued[name] = _continued(stop, options.steps if name == TRAIN else None)
    if options.blend is not None and TRAIN not in plan.streams:
        raise UsageError("the plan has no training stream to re-weight")
    entry = StoppedPlan(
        plan.plan_id, {name: continuation.stopped for name, continuation in continued.items()}
    )
    tokenizers = _tokenizers(plan, options, [each.stream.source for each in continued.values()])
    warnings = [warning for continuation in continued.values() for warning in continuation.warnings]
    after = Plan.of(
        topology=topology,
        streams={name: continuation.stream for name, continuation in continued.items()},
        history=(*plan.history, entry),
        warnings=(*warnings, *tokenizers.warnings),
        tokenizer=tokenizers.common,
        tokenizer_mismatches=tokenizers.mismatches,
    )
    files = continued[TRAIN].files if TRAIN in continued else None
    return Continuation(after, files)


@contextmanager
def _named(stream: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{stream}: {error.message}", hint=error.hint) from error


def _tokenizers(plan: Plan, options: ReplanOptions, sources: Sequence[SampleSource]) -> PlanTokenizers:
    if options.blend is None:
        return PlanTokenizers.of(plan)
    return agree_on_tokenizers(
        sources,
        read_blends([options.blend] if names_blend(options.blend) else ()),
        continued=plan,
        allowed=options.allow_tokenizer_mismatch,
    )


def _stop_of(
    name: str,
    stream: Stream,
    plan: Plan,
    ranks: int,
    schedule: BatchSchedule | None,
    options: ReplanOptions,
) -> _Stop:
    step = _stop_step(stream.assignment, _consumed(name, plan, options))
    world, schedule = _world(name, stream, ranks, schedule, options)
    policy = _policy(name, stream, options)
    return _Stop(name, stream, stops_of(plan.history, name), step, world, schedule, policy)


def _continued(stop: _Stop, steps: int | None) -> _Continued:
    stream, step = stop.stream, stop.step
    stopped = stream.assignment
    after = continue_assignment(stopped, step, stop.world, stop.schedule, stop.policy, steps=steps)
    changed = replace(stream, assignment=after, mode=stop.policy.mode, tail=stop.policy.tail)
    return _Continued(changed, stop.stopped())


def _reweighted(stop: _Stop, plan: Plan, options: ReplanOptions) -> _Continued:
    name, stream, step, world, schedule = stop.name, stop.stream, stop.step, stop.world, stop.schedule
    stopped = stream.assignment
    consumed = stopped.consumed_after(step)
    left = stopped.consumed_after(stopped.steps) - consumed
    steps = options.steps or schedule.timeline(world.group, consumed, stop=consumed + left).steps_within(left)
    if not steps:
        raise UsageError(f"the plan has no steps after {consumed:,} consumed samples", hint="pass --steps")
    timeline = schedule.timeline(world.group, consumed, steps=steps)
    samples = int(timeline.consumed(np.array([steps]))[0]) - consumed
    pairs, warnings = read_weights(options.blend or "", stream.source, name)
    components = match_components(pairs, stream.source, source_progress_of(stream, step, stop.earlier))
    directory = os.path.abspath(options.output)
    identity = {"plan_id": plan.plan_id, "stream": name, "step": step, "samples": samples}
    source, files = _blended(components, samples, options.seed, directory, name, identity)
    whole = whole_epochs(SampleOrder(samples, ()), 0, 1, world, stop.policy)
    after = Assignment((whole,), world.micro_batch_size, schedule, steps, consumed, 0)
    if stream.sort_key is not None:
        warnings = (*warnings, PlanWarning("no-bucketing", name))
    changed = Stream(
        source,
        after,
        stop.policy.mode,
        stop.policy.tail,
        "none",
        sort_key=None,
        document_boundaries=stream.document_boundaries,
    )
    return _Continued(changed, stop.stopped(files.record), warnings, files)


def _blended(
    components: Sequence[BlendComponent],
    samples: int,
    seed: int,
    directory: str,
    name: str,
    identity: dict[str, Any],
) -> tuple[SampleSource, OrderFiles]:
    weights = [component.weight for component in components]
    progress = [component.progress for component in components]
    drawn = sum(weight > 0 for weight in weights)
    order = reweight(weights[:drawn], progress[:drawn], samples, seed)
    datasets = tuple(component.reference for component in components)
    identity["datasets"] = [encode(reference.with_paths(lambda _: "")) for reference in datasets]
    files = OrderFiles.of(
        order, progress, weights, seed, directory=directory, stream=name, made_from=identity
    )
    return SampleSource("blend", name, samples, datasets, files.blend), files


def _world(
    name: str, stream: Stream, ranks: int, given: BatchSchedule | None, options: ReplanOptions
) -> tuple[World, BatchSchedule]:
    size, schedule = stream.assignment.micro_batch_size, stream.assignment.schedule
    if stream.mode == FULL_VALIDATION:
        return World(ranks, 1), BatchSchedule.constant(ranks)
    if name == TRAIN:
        size, schedule = options.micro_batch_size or size, given or schedule
        mode = options.mode or stream.mode
    else:
        size, mode = options.eval_micro_batch_size or options.micro_batch_size or size, stream.mode
        batch = options.eval_global_batch_size
        if batch is None and given is not None:
            batch = given.segments[-1][1]
        if batch is not None:
            schedule = BatchSchedule.constant(batch)
    return world_of(ranks, size, mode, schedule), schedule


def _policy(name: str, stream: Stream, options: ReplanOptions) -> ShardingPolicy:
    layout = stream.assignment.epoch_ranges[-1].layout
    sharded = isinstance(layout, Blocked)
    if name != TRAIN:
        return ShardingPolicy(stream.mode, stream.tail, sharded)
    return ShardingPolicy(
        mode=options.mode or stream.mode,
        tail=options.tail or stream.tail,
        sharded=sharded if options.data_sharding is None else options.data_sharding,
        keep_order=options.mode is None or options.mode in STRIPED_MODES,
    )


def _consumed(name: str, plan: Plan, options: ReplanOptions) -> int:
    # Without a count, those it began with.
    if name == TRAIN:
        return options.consumed_samples
    counted = consumed_valid_samples(name, tuple(plan.streams), options.consumed_valid_samples)
    return plan.streams[name].assignment.consumed_samples if counted is None else counted


def _stop_step(stopped: Assignment, consumed: int) -> int:
    last = stopped.consumed_after(stopped.steps)
    if consumed > last:
        raise UsageError(f"--consumed-samples must be at most {last}, the end of the plan, got {consumed}")
    return stopped.timeline.boundary(consumed) if consumed < last else stopped.steps
