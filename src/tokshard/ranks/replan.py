"""Replanning: continue a plan for a new world size or with another blend. Nothing is lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.continuation import continue_order
from tokshard.ranks.discovery import read_blends
from tokshard.ranks.links import Interleave
from tokshard.ranks.modes import ReadingMode, order_after
from tokshard.ranks.options import ReplanOptions, batch_schedule, consumed_valid_samples
from tokshard.ranks.plan import Plan, StoppedPlan, StoppedStream, Stream, read_plan
from tokshard.ranks.planning import (
    ShardPlanReport,
    named_stream,
    padding_warnings,
    publish_plan,
    sources_file,
)
from tokshard.ranks.reweighting import OrderFiles, names_blend, reweighted_source
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.tokenizers import agree_on_tokenizers
from tokshard.samples.index.splits import TRAIN
from tokshard.storage.lock import lock_mode

FULL_VALIDATION = "full-validation"
_MODES_IN_ORDER = (None, "single", "sequential")


def replan(
    options: ReplanOptions, *, dry_run: bool = False, progress: Progress | None = None
) -> ShardPlanReport:
    """Continue a plan for a new world size or with another blend, and write it.

    Args:
        options: How it continues.
        dry_run: Whether to plan without writing anything. The samples of a plan with another blend cannot be
            read from it: their order would be in files next to it.
        progress: Receives the activities.

    Raises:
        UsageError: The consumed samples are not at the end of a step, nothing is left, or sizes do not
            fit, with the numbers.
        MissingFileError, IntegrityError: A file that is needed does not exist or has changed, or the plan
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
        continuation = continue_plan(read_plan(options.plan, roots=dict(options.moved)), options)
        if continuation.files is not None and not dry_run:
            listener.start("writing the order")
            continuation.files.write()
        return publish_plan(
            continuation.plan,
            options.output,
            listener,
            force=options.force,
            dry_run=dry_run,
            started=started,
        )


class Continuation(NamedTuple):
    """A plan that continues another one, and the files of its new blend, to be written before it, or None."""

    plan: Plan
    files: OrderFiles | None


def continue_plan(plan: Plan, options: ReplanOptions) -> Continuation:
    """Plan the samples that are read after a stop; nothing is written.

    Without another blend this opens no data. A new blend takes 10 bytes of memory for each sample.

    Args:
        plan: The plan that was stopped.
        options: How it continues; ``options.plan`` is not opened.

    Raises:
        UsageError: The consumed samples are not at the end of a step, nothing is left, or sizes do not
            fit, with the numbers.
        MissingFileError, IntegrityError: A file that is needed does not exist or has changed.
    """
    topology = options.topology(plan.topology)
    source = next(iter(plan.streams.values())).source
    schedule = batch_schedule(options, source.sequence_length)
    consumed_valid_samples(TRAIN, tuple(plan.streams), options.consumed_valid_samples)  # raises
    if options.blend is not None and TRAIN not in plan.streams:
        raise UsageError("the plan has no training stream to re-weight")
    streams: dict[str, Stream] = {}
    stops: dict[str, StoppedStream] = {}
    warnings: list[str] = []
    files = None
    for name, stream in plan.streams.items():
        with named_stream(name):
            consumed = _consumed(name, plan, options)
            _check_stop(stream.order, consumed)
            reading, batches = _reading(name, stream, topology.data_parallel, schedule, options)
            if name == TRAIN and options.blend is not None:
                streams[name], files, notes = _reweighted(plan, consumed, reading, batches, options)
                warnings += notes
                stops[name] = StoppedStream(stream.order, consumed, files.record)
            else:
                streams[name] = _continued(stream, consumed, reading, batches, name, options)
                stops[name] = StoppedStream(stream.order, consumed)
    sources = {name: stream.source for name, stream in streams.items()}
    earlier = padding_warnings({name: stream.source for name, stream in plan.streams.items()}, plan.topology)
    warnings += padding_warnings(sources, topology)
    described_in = plan.sources
    tokenizer, mismatches = plan.tokenizer, plan.tokenizer_mismatches
    if options.blend is None:
        warnings += [warning for warning in plan.warnings if warning not in earlier]
        # The blend still names the data at its old paths.
        if plan.sources.blend_id is None or options.moved:
            described_in = sources_file(sources, options.output, {})
    else:
        described_in = sources_file(sources, options.output, {})
        blends = read_blends([options.blend] if names_blend(options.blend) else ())
        tokenizer, mismatches, notes = agree_on_tokenizers(
            sources.values(), blends, continued=plan, allowed=options.allow_tokenizer_mismatch
        )
        warnings += notes
    after = Plan.of(
        topology,
        described_in,
        streams,
        (*plan.history, StoppedPlan(plan.plan_id, stops)),
        warnings,
        tokenizer,
        mismatches,
    )
    return Continuation(after, files)


def _check_stop(order: ConsumptionOrder, consumed: int) -> None:
    try:
        order.step_at(consumed)
    except UsageError as error:
        if error.hint is None:
            raise
        other = "if a job with other batches stopped there, first replan to its sizes where it had started"
        raise UsageError(error.message, hint=f"{error.hint}; {other}") from error


def _continued(
    stream: Stream,
    consumed: int,
    reading: ReadingMode,
    schedule: BatchSchedule,
    name: str,
    options: ReplanOptions,
) -> Stream:
    stopped = stream.order
    is_train = name == TRAIN
    order = continue_order(
        stopped,
        stopped.point(consumed - stopped.consumed_samples),
        consumed,
        reading,
        schedule,
        redistributes=is_train and options.mode not in _MODES_IN_ORDER,
        steps=options.steps if is_train else None,
    )
    return replace(stream, order=order, mode=reading.mode, tail=reading.tail).over(stream.source)


def _reweighted(
    plan: Plan, consumed: int, reading: ReadingMode, schedule: BatchSchedule, options: ReplanOptions
) -> tuple[Stream, OrderFiles, Sequence[str]]:
    stream = plan.streams[TRAIN]
    stop = stream.order.consumed_after(stream.order.steps)
    timeline = schedule.timeline(reading.group, consumed, stop=stop)
    steps = options.steps or timeline.steps_within(stop - consumed)
    if not steps:
        raise UsageError(f"the plan has no steps after {consumed:,} consumed samples", hint="pass --steps")
    samples = schedule.timeline(reading.group, consumed, steps=steps).samples_of(steps)
    source, files, warnings = reweighted_source(plan, consumed, samples, options)
    epoch = reading.epochs(samples, (), 0, 1)
    order = order_after([epoch], reading, schedule, consumed, 0, steps)
    after = Stream.of(
        source,
        order,
        reading.mode,
        reading.tail,
        document_boundaries=stream.document_boundaries,
    )
    return after, files, warnings


def _reading(
    name: str, stream: Stream, ranks: int, given: BatchSchedule | None, options: ReplanOptions
) -> tuple[ReadingMode, BatchSchedule]:
    size = stream.order.micro_batch_size
    schedule = stream.order.schedule
    first = stream.order.epoch_ranges[-1].links[:1]
    is_sharded = bool(first) and isinstance(first[0], Interleave) and first[0].run > 0
    if stream.mode == FULL_VALIDATION:
        schedule = BatchSchedule.constant(ranks)
        return ReadingMode(ranks, 1, ranks, FULL_VALIDATION, stream.tail), schedule
    if name == TRAIN:
        size = options.micro_batch_size or size
        schedule = given or schedule
        sharded = is_sharded if options.data_sharding is None else options.data_sharding
        mode = options.mode or stream.mode
        return ReadingMode.of(
            ranks, size, schedule, mode, options.tail or stream.tail, sharded=sharded
        ), schedule
    size = options.eval_micro_batch_size or options.micro_batch_size or size
    batch = options.eval_global_batch_size
    if batch is None and given is not None:
        batch = given.segments[-1][1]
    if batch is not None:
        schedule = BatchSchedule.constant(batch)
    return ReadingMode.of(ranks, size, schedule, stream.mode, stream.tail, sharded=is_sharded), schedule


def _consumed(name: str, plan: Plan, options: ReplanOptions) -> int:
    """Return the consumed samples of a stream: by default as many as when it began."""
    if name == TRAIN:
        return options.consumed_samples
    counted = consumed_valid_samples(name, tuple(plan.streams), options.consumed_valid_samples)
    return plan.streams[name].order.consumed_samples if counted is None else counted
