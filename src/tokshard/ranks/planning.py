"""Planning: options become the assignments of all streams, checked."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Amount, Count, Document, Positive
from tokshard.core.formatting import counted, duration, size
from tokshard.core.options import StrPath, several
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
from tokshard.ranks.assignment import Assignment, EpochRange, available_steps
from tokshard.ranks.choices import Mode, ShuffleKind
from tokshard.ranks.discovery import RequestedSamples, open_sources, read_blends
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.modes import World, cyclic_order, layout_of, shuffle_links
from tokshard.ranks.options import ShardPlanOptions, batch_schedule
from tokshard.ranks.order import Bucketing, SampleOrder
from tokshard.ranks.plan import Plan, PlanWarning, Stream
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.summary import Coverage, check_partition, coverage_of
from tokshard.ranks.tokenizers import PlanTokenizers, agree_on_tokenizers
from tokshard.ranks.topology import Topology
from tokshard.storage.lock import lock_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlanReport(Document):
    """A plan, and what :func:`tokshard.shard_plan` or :func:`tokshard.replan` did."""

    SCHEMA = "tokshard.shard-plan/2"

    output: str
    action: Literal["planned", "written"]
    plan: Plan
    coverage: dict[str, Coverage]
    files: Positive | None = None
    size_bytes: Count | None = None
    seconds: Amount

    def outcome(self) -> Section:
        """Return what was written for people, and the next step."""
        if self.files is None or self.size_bytes is None:
            return planned([])
        written = f"{self.output}: {counted(self.files, 'file')}, {size(self.size_bytes)}"
        next_step = f"tokshard inspect {shlex.quote(self.output)}"
        return outcome(self.action, [written], [], duration(self.seconds), [next_step])


def shard_plan(
    options: ShardPlanOptions, *, dry_run: bool = False, progress: Progress | None = None
) -> ShardPlanReport:
    """Plan the samples of every rank and write the plan; see :func:`write_plan`.

    Args:
        options: What to plan.
        dry_run: Whether to plan without writing anything.
        progress: Receives the activities.

    Raises:
        UsageError: Batches, the sequence length or the steps do not fit the ranks or the samples.
        InputError, MissingFileError, IntegrityError: The data does not exist, or does not fit together.
        TokenizerMismatchError: Datasets have different tokenizers.
        OutputExistsError: The directory holds another plan.
        StorageError: The disk is full or broken.

    Example::

        tokshard.shard_plan(ShardPlanOptions(sources=("mix",), output="plan", data_parallel=8))
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading sources")
        plan = _plan_of(options, listener)
        return publish_plan(
            plan, options.output, listener, force=options.force, dry_run=dry_run, started=started
        )


def publish_plan(
    plan: Plan, output: StrPath, progress: Progress, *, force: bool, dry_run: bool, started: float
) -> ShardPlanReport:
    """Write a plan, except in a dry run; return the report."""
    sizes = None
    if not dry_run:
        progress.start("writing the plan")
        sizes = write_plan(plan, output, force=force)
    return ShardPlanReport(
        output=os.fspath(output),
        action="planned" if sizes is None else "written",
        plan=plan,
        coverage={name: coverage_of(stream.assignment) for name, stream in plan.streams.items()},
        files=None if sizes is None else len(sizes),
        size_bytes=None if sizes is None else sum(sizes.values()),
        seconds=time.monotonic() - started,
    )


def _plan_of(options: ShardPlanOptions, progress: Progress) -> Plan:
    requested = RequestedSamples(options.documents, options.split, options.path_as, options.digests)
    paths = several(options.sources)
    sources = open_sources(paths, requested)
    progress.start("planning and checking")
    tokenizers = agree_on_tokenizers(
        sources.values(),
        {} if options.documents else read_blends(paths),
        allowed=options.allow_tokenizer_mismatch,
    )
    return plan_shards(sources, options, tokenizers)


_REPLAN_HINT = "to continue with another world size, run tokshard replan PLAN --consumed-samples N"


def plan_shards(
    sources: Mapping[str, SampleSource],
    options: ShardPlanOptions,
    tokenizers: PlanTokenizers = PlanTokenizers(),  # noqa: B008 - immutable
) -> Plan:
    """Plan what every rank reads. No data is read, and the work does not grow with it.

    Args:
        sources: What there is to read, by the names of streams; see
            :func:`~tokshard.ranks.discovery.open_sources`.
        options: The ranks, and how they read.
        tokenizers: The tokenizers of the data.

    Raises:
        UsageError: Batches, the sequence length or the steps do not fit the topology or the samples, with
            the numbers.
        IntegrityError: A defect: the ranks would not read every sample exactly once.
    """
    names = tuple(sources)
    topology = options.topology()
    streams = {}
    for name, source in sources.items():
        try:
            streams[name] = plan_stream(source, options.of_stream(name, names, source.sequence_length))
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", hint=error.hint) from error
    warnings = (*_warnings(sources, topology), *tokenizers.warnings)
    return Plan.of(topology, streams, (), warnings, tokenizers.common, tokenizers.mismatches)


def plan_stream(source: SampleSource, options: ShardPlanOptions) -> Stream:
    """Plan what the data-parallel ranks read of one source.

    Raises:
        UsageError: See :func:`plan_shards`.
        IntegrityError: See :func:`plan_shards`.
    """
    mode, size, ranks = options.stream_mode, options.micro_batch_size, options.topology().data_parallel
    schedule = batch_schedule(options, source.sequence_length) or BatchSchedule.constant(size * ranks)
    world = world_of(ranks, size, mode, schedule)
    order = sample_order(source, world, options)
    layout = layout_of(mode, order.samples, world, tail=options.tail, sharded=options.data_sharding)
    # Mode cyclic reads as many epochs as its steps need.
    endless = mode == "cyclic" and options.steps is not None and options.epochs is None
    whole = EpochRange(order, layout, 0, None if endless else options.epochs or 1)
    stream = Stream(
        source=source,
        assignment=_assignment(whole, world, schedule, options),
        mode=mode,
        tail=options.tail,
        shuffle=options.shuffle,
        sort_key=None if options.bucket_buffer is None else options.bucket_by or source.sort_keys[0],
        document_boundaries=options.document_boundaries,
    )
    for epochs in stream.assignment.epoch_ranges:
        check_partition(epochs.layout)
    return stream


def world_of(ranks: int, micro_batch_size: int, mode: Mode, schedule: BatchSchedule) -> World:
    """Return the world of a stream: the tail is measured by the global batch where that never changes.

    Mode ``cyclic`` measures it by one micro-batch of each rank, as Megatron does.

    Raises:
        UsageError: The global batch is not divisible by micro batch size times data-parallel size.
    """
    sizes = {size for _, size in schedule.segments}
    if mode == "cyclic" or len(sizes) > 1 or schedule.round_down:
        return World(ranks, micro_batch_size)
    return World(ranks, micro_batch_size, sizes.pop())


def sample_order(source: SampleSource, world: World, options: ShardPlanOptions) -> SampleOrder:
    """Return the order of an epoch: shuffled, then bucketed.

    Raises:
        UsageError: The source cannot be put into such an order.
    """
    if options.stream_mode == "cyclic":
        order = cyclic_order(
            source.total, world, sharded=options.data_sharding, faithful=not options.equal_counts
        )
    else:
        order = SampleOrder(
            source.total,
            shuffle_links(
                options.shuffle,
                source.total,
                options.seed,
                shard_sizes=_shard_sizes(source, options.shuffle),
                block=options.shuffle_block,
                window=options.shuffle_window,
                per_epoch=options.shuffle_per_epoch,
            ),
        )
    if options.bucket_buffer is None:
        return order
    pack = options.bucket_pack or world.group
    return order.before(Bucketing(order.samples, options.bucket_buffer, pack, options.seed, per_epoch=True))


def _shard_sizes(source: SampleSource, shuffle: ShuffleKind) -> tuple[int, ...] | None:
    sizes = None if source.order is not None else tuple(dataset.samples for dataset in source.datasets)
    if shuffle == "shards" and (sizes is None or len(sizes) == 1):
        what = "the samples of a blend are already mixed" if sizes is None else "only one dataset was given"
        raise UsageError(
            f"--shuffle shards requires several datasets: {what}",
            hint="pass --shuffle samples, or several datasets",
        )
    return sizes


def _assignment(
    whole: EpochRange, world: World, schedule: BatchSchedule, options: ShardPlanOptions
) -> Assignment:
    consumed, size = options.consumed_samples, options.micro_batch_size
    passes: tuple[EpochRange, ...] = (whole,)
    skipped = consumed // world.ranks
    if consumed % world.group:
        passes, skipped = _from_the_middle(whole, world, options), 0
    elif consumed % world.whole:
        passes, skipped = _from_within_a_batch(whole, world, options)
    available = available_steps(passes, size, schedule, consumed, skipped, options.steps)
    steps = available if options.steps is None else options.steps
    if steps > available or not steps:
        epochs = "an epoch" if whole.epochs == 1 else f"{whole.epochs} epochs"
        raise UsageError(
            f"{available:,} steps are left in {epochs} of {whole.order.samples:,} samples after {consumed:,} "
            f"consumed samples (global batch size {schedule.size_at(consumed)}), "
            f"fewer than the required {options.steps or 1:,}",
            hint="pass more --epochs or fewer --steps, or build a larger blend",
        )
    return Assignment(passes, size, schedule, steps, consumed, skipped)


def _from_the_middle(whole: EpochRange, world: World, options: ShardPlanOptions) -> tuple[EpochRange, ...]:
    # The consumed samples are no whole micro-batch of all ranks: only Megatron's sampler, in the first epoch,
    # defines what follows. Its groups start there again.
    consumed = options.consumed_samples
    if options.stream_mode != "single" or consumed >= whole.order.samples:
        raise UsageError(
            f"{consumed} consumed samples are not divisible by micro batch size x data-parallel size = "
            f"{world.micro_batch_size} x {world.ranks} = {world.group}",
            hint=_REPLAN_HINT,
        )
    order = whole.order.rest(Intervals.of([(consumed, whole.order.samples)]))
    layout = layout_of(options.stream_mode, order.samples, world, tail=options.tail)
    return _followed_by_the_rest(EpochRange(order, layout, 0, 1), whole)


def _from_within_a_batch(
    whole: EpochRange, world: World, options: ShardPlanOptions
) -> tuple[tuple[EpochRange, ...], int]:
    # The tail of this epoch is measured from the consumed samples, where the steps begin. Measured from the
    # start of the epoch, it could hold a whole step, which Megatron's sampler gives.
    epoch, skipped = divmod(options.consumed_samples // world.ranks, whole.per_epoch)
    if whole.epochs is not None and epoch >= whole.epochs:
        return (whole,), options.consumed_samples // world.ranks
    layout = layout_of(
        options.stream_mode,
        whole.order.samples,
        world,
        tail=options.tail,
        sharded=options.data_sharding,
        skipped=skipped,
    )
    return _followed_by_the_rest(EpochRange(whole.order, layout, epoch, 1), whole), skipped


def _followed_by_the_rest(first: EpochRange, whole: EpochRange) -> tuple[EpochRange, ...]:
    # The one epoch of ``first``, then those of ``whole`` that come after it.
    left = None if whole.epochs is None else whole.epochs - first.first_epoch - 1
    following = EpochRange(whole.order, whole.layout, first.first_epoch + 1, left) if left != 0 else None
    return (first,) if following is None else (first, following)


def _warnings(sources: Mapping[str, SampleSource], topology: Topology) -> tuple[PlanWarning, ...]:
    if topology.context_parallel == 1:
        return ()
    documents = [name for name, source in sources.items() if source.sequence_length is None]
    return tuple(
        PlanWarning("document-padding", name, multiple=2 * topology.context_parallel) for name in documents
    )
