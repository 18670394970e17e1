"""Making a plan: sources, topology and request become the assignments of all streams, checked."""

from __future__ import annotations

from collections.abc import Mapping

from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment, available_steps
from tokshard.sharding.bucketing import Bucketing
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.modes import World, cyclic_order, layout_of, shuffle_links
from tokshard.sharding.order import SampleOrder
from tokshard.sharding.passes import Pass
from tokshard.sharding.plan.coverage import check_partition
from tokshard.sharding.plan.document import Plan, Stream
from tokshard.sharding.plan.request import PlanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.sources.samples import SampleSource
from tokshard.sharding.topology import Topology

_FROM = "to go on in another world, plan from the old plan: shard-plan --from PLAN --consumed-samples N"


def plan_shards(sources: Mapping[str, SampleSource], topology: Topology, request: PlanRequest) -> Plan:
    """Plan what every rank reads. No data is read, and the work does not grow with it.

    Args:
        sources: What there is to read, by the names of streams; see
            :func:`~tokshard.sharding.sources.discovery.open_sources`.
        topology: The ranks.
        request: How it is to be read.

    Raises:
        UsageError: Batches, the sequence length or the steps do not fit the topology or the samples, with
            the numbers.
        IntegrityError: A defect: the ranks would not read every sample exactly once.
    """
    names = tuple(sources)
    ranks = topology.data_parallel
    streams = {}
    for name, source in sources.items():
        try:
            streams[name] = plan_stream(source, ranks, request.of_stream(name, names, ranks))
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", hint=error.hint) from error
    return Plan(topology, streams, request.to_json(), (), _warnings(sources, topology))


def plan_stream(source: SampleSource, ranks: int, request: StreamRequest) -> Stream:
    """Plan what the data-parallel ranks read of one source.

    Raises:
        UsageError: See :func:`plan_shards`.
        IntegrityError: See :func:`plan_shards`.
    """
    schedule = request.schedule or BatchSchedule.constant(request.micro_batch_size * ranks)
    world = world_of(ranks, request.micro_batch_size, request.mode, schedule)
    order = sample_order(source, world, request)
    layout = layout_of(request.mode, order.samples, world, tail=request.tail, sharded=request.sharded)
    endless = request.mode == "cyclic" and request.steps is not None and request.epochs is None
    whole = Pass(order, layout, 0, None if endless else request.epochs or 1)
    stream = Stream(
        source=source,
        assignment=_assignment(whole, world, schedule, request),
        mode=request.mode,
        tail=request.tail,
        shuffle=request.shuffle,
        sort_key=None if request.bucket_buffer is None else request.sort_key or source.sort_keys[0],
        boundaries=request.boundaries,
    )
    for one in stream.assignment.passes:
        check_partition(one.layout)
    return stream


def world_of(ranks: int, micro_batch_size: int, mode: str, schedule: BatchSchedule) -> World:
    """Return the world of a stream: the tail is measured by the global batch where that never changes.

    Mode ``cyclic`` measures it by one micro-batch of each rank, as Megatron does.

    Raises:
        UsageError: The global batch is not divisible by micro batch size times data-parallel size.
    """
    sizes = {size for _, size in schedule.segments}
    if mode == "cyclic" or len(sizes) > 1 or schedule.round_down:
        return World(ranks, micro_batch_size)
    return World(ranks, micro_batch_size, sizes.pop())


def sample_order(source: SampleSource, world: World, request: StreamRequest) -> SampleOrder:
    """Return the order of an epoch: shuffled, then bucketed, as it was asked for.

    Raises:
        UsageError: The source cannot be put into such an order.
    """
    if request.mode == "cyclic":
        order = cyclic_order(source.total, world, sharded=request.sharded, faithful=not request.equal_counts)
    else:
        order = SampleOrder(
            source.total,
            shuffle_links(
                request.shuffle,
                source.total,
                request.seed,
                shard_sizes=_shard_sizes(source, request.shuffle),
                block=request.block,
                per_epoch=request.per_epoch,
            ),
        )
    if request.bucket_buffer is None:
        return order
    pack = request.bucket_pack or world.group
    return order.before(Bucketing(order.samples, request.bucket_buffer, pack, request.seed))


def _shard_sizes(source: SampleSource, shuffle: str) -> tuple[int, ...] | None:
    sizes = None if source.order is not None else tuple(one.samples for one in source.datasets)
    if shuffle == "shards" and (sizes is None or len(sizes) == 1):
        what = "a blend mixes its datasets" if sizes is None else "there is only one dataset"
        raise UsageError(
            f"there are no shards to shuffle: {what}",
            hint="use --shuffle samples or blocks, or name several datasets",
        )
    return sizes


def _assignment(whole: Pass, world: World, schedule: BatchSchedule, request: StreamRequest) -> Assignment:
    consumed, size = request.consumed_samples, request.micro_batch_size
    passes: tuple[Pass, ...] = (whole,)
    skipped = consumed // world.ranks
    if consumed % world.group:
        passes, skipped = _from_the_middle(whole, world, request), 0
    available = available_steps(passes, size, schedule, consumed, skipped, request.steps)
    steps = available if request.steps is None else request.steps
    if steps > available or not steps:
        epochs = "an epoch" if whole.epochs == 1 else f"{whole.epochs} epochs"
        raise UsageError(
            f"{available} steps are left in {epochs} of {whole.order.samples} samples after {consumed} "
            f"consumed ones (batches of {schedule.size_at(consumed)}), not {request.steps or 'any'}",
            hint="ask for more --epochs or fewer --steps; or build a larger blend",
        )
    return Assignment(passes, size, schedule, steps, consumed, skipped)


def _from_the_middle(whole: Pass, world: World, request: StreamRequest) -> tuple[Pass, ...]:
    """Return what follows a number of consumed samples that is no whole micro-batch of all ranks.

    Only Megatron's sampler has a meaning for it, in the first epoch: its groups begin anew there.

    Raises:
        UsageError: It is another mode, or a later epoch.
    """
    consumed = request.consumed_samples
    if request.mode != "single" or consumed >= whole.order.samples:
        raise UsageError(
            f"{consumed} consumed samples are not divisible by micro batch size x data-parallel size = "
            f"{world.micro_batch_size} x {world.ranks} = {world.group}",
            hint=_FROM,
        )
    order = whole.order.rest(Intervals.of([(consumed, whole.order.samples)]))
    layout = layout_of(request.mode, order.samples, world, tail=request.tail)
    first = Pass(order, layout, 0, 1)
    left = None if whole.epochs is None else whole.epochs - 1
    return (first,) if left == 0 else (first, Pass(whole.order, whole.layout, 1, left))


def _warnings(sources: Mapping[str, SampleSource], topology: Topology) -> tuple[str, ...]:
    documents = [name for name, source in sources.items() if source.sequence_length is None]
    if documents and topology.context > 1:
        multiple = 2 * topology.context
        return (f"the documents of {', '.join(documents)} must be padded to multiples of {multiple} tokens",)
    return ()
