"""Planning: options become the orders of all streams, checked."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tokshard.core.codec import Amount, Count, Document, Positive
from tokshard.core.formatting import counted, duration, size
from tokshard.core.options import StrPath, several
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
from tokshard.ranks.consumption import AnyLink, EpochRange
from tokshard.ranks.discovery import RequestedSamples, open_sources, read_blends
from tokshard.ranks.links import Bucketing
from tokshard.ranks.modes import ReadingMode, order_after
from tokshard.ranks.options import ShardPlanOptions, batch_schedule
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule, batch_size_warning
from tokshard.ranks.shuffles import shuffle_links
from tokshard.ranks.sources import SOURCES_NAME, PlanSources, SampleSource, SourcesFile
from tokshard.ranks.tokenizers import PlanTokenizers, agree_on_tokenizers
from tokshard.ranks.topology import Topology
from tokshard.samples.blend.document import BlendDocument
from tokshard.storage.fs import abspath
from tokshard.storage.lock import lock_mode
from tokshard.storage.reading import read_json_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlanReport(Document):
    """A plan, and what :func:`tokshard.shard_plan` or :func:`tokshard.replan` did."""

    SCHEMA = "tokshard.shard-plan/2"

    output: str
    action: Literal["planned", "written"]
    plan: Plan
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
        files=None if sizes is None else len(sizes),
        size_bytes=None if sizes is None else sum(sizes.values()),
        seconds=time.monotonic() - started,
    )


def _plan_of(options: ShardPlanOptions, progress: Progress) -> Plan:
    requested = RequestedSamples(options.documents, options.split, options.path_as, options.digests)
    paths = several(options.sources)
    sources = open_sources(paths, requested)
    progress.start("planning and checking")
    blends = {} if options.documents else read_blends(paths)
    tokenizers = agree_on_tokenizers(sources.values(), blends, allowed=options.allow_tokenizer_mismatch)
    plan = plan_shards(sources, options, sources_file(sources, options.output, blends), tokenizers)
    if "train" not in plan.streams:
        return plan
    schedule = plan.streams["train"].order.schedule
    warnings = (batch_size_warning(schedule, blend.global_batch_size, path) for path, blend in blends.items())
    return replace(plan, warnings=(*plan.warnings, *filter(None, warnings)))


def sources_file(
    sources: Mapping[str, SampleSource], output: StrPath, blends: Mapping[str, BlendDocument]
) -> SourcesFile:
    """Return the file that describes the samples of a plan: a blend, or else one next to the plan.

    Raises:
        UsageError: A path has characters that a plan does not store.
    """
    for path, blend in blends.items():
        return SourcesFile.of(abspath(path), read_json_bytes(path), blend.id)
    content = PlanSources(dict(sources)).stored_in(os.fspath(output))
    return SourcesFile.of(SOURCES_NAME, content)


def plan_shards(
    sources: Mapping[str, SampleSource],
    options: ShardPlanOptions,
    described_in: SourcesFile,
    tokenizers: PlanTokenizers = PlanTokenizers(),  # noqa: B008 - immutable
) -> Plan:
    """Plan what every rank reads. No data is read, and the work does not grow with it.

    Args:
        sources: The samples of each stream; see :func:`~tokshard.ranks.discovery.open_sources`.
        options: The ranks, and how they read.
        described_in: The file that describes the samples.
        tokenizers: The tokenizers of the data.

    Raises:
        UsageError: Batches, the sequence length or the steps do not fit the topology or the samples, with
            the numbers.
    """
    names = tuple(sources)
    topology = options.topology()
    streams = {}
    for name, source in sources.items():
        with named_stream(name):
            streams[name] = plan_stream(source, options.of_stream(name, names, source.sequence_length))
    return Plan.of(
        topology,
        described_in,
        streams,
        warnings=(*padding_warnings(sources, topology), *tokenizers.notes),
        tokenizer=tokenizers.common,
        tokenizer_mismatches=tokenizers.mismatches,
    )


@contextmanager
def named_stream(name: str) -> Iterator[None]:
    """Begin the message of a UsageError with the name of the stream."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint) from error


def plan_stream(source: SampleSource, options: ShardPlanOptions) -> Stream:
    """Plan what the data-parallel ranks read of one source.

    Raises:
        UsageError: See :func:`plan_shards`.
    """
    ranks = options.topology().data_parallel
    size = options.micro_batch_size
    schedule = batch_schedule(options, source.sequence_length) or BatchSchedule.constant(size * ranks)
    reading = ReadingMode.of(
        ranks, size, schedule, options.stream_mode, options.tail, sharded=options.data_sharding
    )
    # Mode cyclic reads as many epochs as its steps need.
    is_endless = reading.mode == "cyclic" and options.steps is not None and options.epochs is None
    epochs = None if is_endless else options.epochs or 1
    links = _links(source, reading, options)
    ranges, skipped = first_ranges(reading, source.total, links, epochs, options.consumed_samples)
    return Stream.of(
        source,
        order_after(ranges, reading, schedule, options.consumed_samples, skipped, options.steps),
        reading.mode,
        reading.tail,
        None if options.bucket_buffer is None else options.bucket_by or source.sort_keys[0],
        document_boundaries=options.document_boundaries,
    )


def _links(source: SampleSource, reading: ReadingMode, options: ShardPlanOptions) -> tuple[AnyLink, ...]:
    """Return the links of an epoch without the mode: bucketing, then the shuffle."""
    links: tuple[AnyLink, ...]
    if reading.mode == "cyclic":
        links = reading.cyclic_links(source.total, faithful=not options.equal_counts)
    else:
        sizes = [dataset.samples for dataset in source.datasets]
        if options.shuffle.name == "datasets" and (source.order is not None or len(sizes) == 1):
            problem = "the samples of a blend are already mixed"
            if source.order is None:
                problem = "only one dataset was given"
            raise UsageError(
                f"--shuffle datasets requires several datasets: {problem}",
                hint="pass --shuffle samples, or several datasets",
            )
        links = shuffle_links(
            options.shuffle,
            source.total,
            options.seed,
            dataset_sizes=sizes,
            per_epoch=options.shuffle_per_epoch,
        )
    if options.bucket_buffer is None:
        return links
    pack = options.bucket_pack or reading.group
    return (Bucketing(source.total, options.bucket_buffer, pack, options.seed, per_epoch=True), *links)


def first_ranges(
    reading: ReadingMode,
    total: int,
    links: tuple[AnyLink, ...],
    epochs: int | None,
    consumed_samples: int,
) -> tuple[list[EpochRange], int]:
    """Return the epochs that are left after some consumed samples, and the samples of them to skip.

    Args:
        reading: The ranks, which have read all samples so far.
        total: Number of sample ids.
        links: Links of an epoch without the mode.
        epochs: Number of epochs in all; unlimited if it is None.
        consumed_samples: Samples that all ranks have consumed.

    Raises:
        UsageError: The samples do not fill a batch, or the consumed samples do not fit the ranks.
    """
    all_epochs = reading.epochs(total, links, 0, epochs)
    epoch, skipped = divmod(consumed_samples, all_epochs.read)
    # In the first epoch, groups of Megatron's sampler start at any number of consumed samples.
    if consumed_samples % reading.group and (reading.mode != "single" or epoch):
        raise UsageError(
            f"{consumed_samples} consumed samples are not divisible by micro-batch size x data-parallel size "
            f"= {reading.micro_batch_size} x {reading.ranks} = {reading.group}",
            hint="to continue with another world size, run tokshard replan PLAN --consumed-samples N",
        )
    ranges = []
    if skipped and (epochs is None or epoch < epochs):
        if reading.fills(total - skipped):
            # The tail is measured from the consumed samples, where the steps begin.
            ranges.append(reading.epochs(total, links, epoch, 1, skipped))
        epoch += 1
    if epochs is None or epoch < epochs:
        left = None if epochs is None else epochs - epoch
        ranges.append(replace(all_epochs, first_epoch=epoch, epochs=left))
    is_skipped = bool(ranges) and ranges[0].first_epoch == consumed_samples // all_epochs.read
    return ranges, skipped if is_skipped else 0


def padding_warnings(sources: Mapping[str, SampleSource], topology: Topology) -> tuple[str, ...]:
    """Return the warnings about documents that context parallelism divides."""
    if topology.context_parallel == 1:
        return ()
    multiple = 2 * topology.context_parallel
    return tuple(
        f"the documents of {name} must be padded to multiples of {multiple} tokens"
        for name, source in sources.items()
        if source.sequence_length is None
    )
