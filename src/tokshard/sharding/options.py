"""Options of planning, and their meaning for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokshard.core.codec import encode
from tokshard.errors import UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.topology import DEFAULT_ORDER, Topology

DEFAULT_BLOCK = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """Request for one stream.

    Attributes:
        mode: One of :data:`~tokshard.sharding.planning.MODES`.
        tail: ``"drop"``, ``"pad"`` or ``"error"``.
        shuffle: One of :data:`~tokshard.sharding.planning.SHUFFLES`.
        seed: The seed of shuffles and bucketing; mode ``cyclic`` has none, as in Megatron.
        block: The samples of a block of the shuffle ``blocks``.
        per_epoch: Whether each epoch is shuffled anew.
        sharded: In mode ``cyclic``, whether each rank has its own block of the samples.
        equal_counts: In mode ``cyclic`` without sharding, whether to cut a ragged end, where Megatron's
            ranks would take different numbers of batches, instead of refusing it.
        micro_batch_size: The samples of a micro-batch of one rank.
        schedule: The global batch size over time; None for one micro-batch of each rank.
        steps: The number of steps; None for all that the samples fill.
        epochs: How often everything is read; None for once, or in mode ``cyclic`` with ``steps`` as often
            as they need.
        consumed_samples: What all ranks had read before step 0.
        bucket_buffer: The samples of a bucketing window; None for no bucketing.
        bucket_pack: How many similar samples come together; None for one micro-batch of each rank.
        sort_key: What bucketing sorts by; None for the source's first one.
        boundaries: See :class:`~tokshard.sharding.plan.Stream`.
    """

    mode: str = "single"
    tail: str = "drop"
    shuffle: str = "none"
    seed: int = DEFAULT_SEED
    block: int = DEFAULT_BLOCK
    per_epoch: bool = False
    sharded: bool = True
    equal_counts: bool = False
    micro_batch_size: int = 1
    schedule: BatchSchedule | None = None
    steps: int | None = None
    epochs: int | None = None
    consumed_samples: int = 0
    bucket_buffer: int | None = None
    bucket_pack: int | None = None
    sort_key: str | None = None
    boundaries: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "block", "micro_batch_size", "bucket_buffer", "bucket_pack"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UsageError(f"{name.replace('_', ' ')} is {number}, not 1 or more")
        if min(self.seed, self.consumed_samples) < 0:
            raise UsageError("the seed and the consumed samples are 0 or more")
        if self.bucket_buffer is None and (self.bucket_pack, self.sort_key) != (None, None):
            raise UsageError(
                "bucketing needs the number of samples that it sorts at a time", hint="give --bucket-buffer"
            )
        if self.mode == "cyclic" and self.shuffle != "none":
            raise UsageError(
                f"mode cyclic has an order of its own: it cannot be shuffled by {self.shuffle}",
                hint="use --mode single with --shuffle samples for a random order with a seed",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Request for a whole plan.

    Attributes:
        train: How training is read. Validation and testing follow it in mode, tail, micro batch size and
            boundaries; they are read once, in the order of their ids or the mode's own, with a constant
            batch size.
        eval_global_batch_size: The samples of a step of validation and testing; None for the last one of
            training.
        eval_micro_batch_size: The samples of a micro-batch there; None for that of training.
        full_validation: Whether every rank reads its share of validation sample by sample, all of it:
            Megatron's ``--full-validation`` since 0.18.
        consumed_valid_samples: What all ranks had read of each validation set before, in their order; one
            number counts for all sets.
    """

    train: StreamRequest
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    full_validation: bool = False
    consumed_valid_samples: Sequence[int] = ()

    def of_stream(self, name: str, names: Sequence[str], ranks: int) -> StreamRequest:
        """Return how one of several streams is read.

        Args:
            name: The stream.
            names: All streams.
            ranks: The data-parallel size.

        Raises:
            UsageError: There are more or fewer counts of consumed samples than validation sets.
        """
        train = self.train
        if name == "train":
            return train
        consumed = consumed_valid_samples(name, names, self.consumed_valid_samples) or 0
        if self.full_validation and name != "test":
            return StreamRequest(
                mode="full-validation",
                schedule=BatchSchedule.constant(ranks),
                consumed_samples=consumed,
                boundaries=train.boundaries,
            )
        size = self.eval_global_batch_size
        if size is None and train.schedule is not None:
            size = train.schedule.segments[-1][1]
        return StreamRequest(
            mode=train.mode,
            tail=train.tail,
            sharded=train.sharded,
            equal_counts=train.equal_counts,
            micro_batch_size=self.eval_micro_batch_size or train.micro_batch_size,
            schedule=None if size is None else BatchSchedule.constant(size),
            consumed_samples=consumed,
            boundaries=train.boundaries,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON values, for people who read a plan."""
        train = {name: getattr(self.train, name) for name in self.train.__slots__}
        schedule = self.train.schedule
        return {
            "train": train | {"schedule": None if schedule is None else encode(schedule)},
            "eval_global_batch_size": self.eval_global_batch_size,
            "eval_micro_batch_size": self.eval_micro_batch_size,
            "full_validation": self.full_validation,
            "consumed_valid_samples": list(self.consumed_valid_samples),
        }


def consumed_valid_samples(name: str, names: Sequence[str], counts: Sequence[int]) -> int | None:
    """Return the consumed samples of a stream, given one count for all validation sets or one for each.

    Returns:
        None if it has no count.

    Raises:
        UsageError: There are more or fewer counts than validation sets.
    """
    sets = [stream for stream in names if stream.partition(".")[0] == "valid"]
    if len(counts) not in {0, 1, len(sets)}:
        raise UsageError(
            f"{len(counts)} counts of consumed validation samples are given, "
            f"but the validation sets are {len(sets)}",
            hint="give one count for all sets, or one for each in their order",
        )
    if name not in sets or not counts:
        return None
    return counts[sets.index(name)] if len(counts) > 1 else counts[0]


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The global batch size over time, in one of Megatron's three ways; nothing is given by default.

    Attributes:
        global_batch_size: The samples of a step, over all ranks.
        step_batch_size_schedule: Batch sizes by consumed samples or tokens, as Megatron writes them.
        rampup_batch_size: The first batch size, its increment, and the samples until ``global_batch_size``.
        decrease_if_needed: Whether to round batch sizes down to multiples of the micro-batches of all ranks.

    Raises:
        UsageError: The ways exclude each other, or one is incomplete.
    """

    global_batch_size: int | None = None
    step_batch_size_schedule: str | None = None
    rampup_batch_size: tuple[int, int, int] | None = None
    decrease_if_needed: bool = False

    def __post_init__(self) -> None:
        size, rampup = self.global_batch_size, self.rampup_batch_size
        if self.step_batch_size_schedule is not None:
            if size is not None or rampup is not None:
                other = "--global-batch-size" if size is not None else "--rampup-batch-size"
                raise UsageError(f"--step-batch-size-schedule and {other} exclude each other")
        elif size is None and rampup is not None:
            raise UsageError("--rampup-batch-size requires --global-batch-size, the size that it grows to")
        elif size is None and self.decrease_if_needed:
            raise UsageError("--decrease-batch-size-if-needed requires --global-batch-size")

    def schedule(self, sequence_length: int | None) -> BatchSchedule | None:
        """Return the batch size over time; None if none is given.

        Args:
            sequence_length: The tokens of a sample, for schedules by tokens.
        """
        size, down = self.global_batch_size, self.decrease_if_needed
        if self.step_batch_size_schedule is not None:
            parsed = BatchSchedule.parse(self.step_batch_size_schedule, sequence_length)
            return replace(parsed, round_down=down)
        if size is None:
            return None
        if self.rampup_batch_size is not None:
            return BatchSchedule.rampup(*self.rampup_batch_size, size, round_down=down)
        return BatchSchedule.constant(size, round_down=down)


def world_size_of(world_size: int | None, data_parallel: int | None, model: int) -> int:
    """Return the number of ranks, given as such or by the data-parallel size.

    Args:
        world_size: The number of ranks.
        data_parallel: The data-parallel size.
        model: The ranks of one replica of the model: tensor x pipeline x context parallelism.

    Raises:
        UsageError: Neither is given, or they contradict each other.
    """
    if data_parallel is None:
        if world_size is None:
            raise UsageError("the number of ranks is required", hint="pass --world-size or --data-parallel")
        return world_size
    if world_size is not None and world_size != data_parallel * model:
        raise UsageError(
            f"--world-size {world_size} is not --data-parallel {data_parallel} x tensor x pipeline x context "
            f"= {data_parallel} x {model} = {data_parallel * model}",
            hint="pass one of the two",
        )
    return data_parallel * model


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of :func:`tokshard.simulate_plan`.

    Attributes:
        stream: The stream.
        steps: The number of steps, from the first on.
        ranks_per_node: The neighboring ranks on a node.
        bandwidth: Bytes per second that a node, or a rank by itself, gets from storage; None for no times.

    Raises:
        UsageError: A number is out of range.
    """

    stream: str = "train"
    steps: int = 10
    ranks_per_node: int = 8
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "ranks_per_node"):
            number = getattr(self, name)
            if number < 1:
                raise UsageError(f"{name.replace('_', ' ')} must be at least 1, got {number}")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise UsageError(f"bandwidth must be positive, got {self.bandwidth}")


@dataclass(frozen=True, kw_only=True)
class StagingOptions:
    """Options of :func:`tokshard.stage_plan`.

    Attributes:
        directory: Where the lists go.
        remote: The root directory in an object store, to write commands for ``s5cmd`` as well.
        stream: The stream.
        steps: The number of steps, from the first on.
        ranks_per_node: The neighboring ranks on a node.

    Raises:
        UsageError: A number is below 1.
    """

    directory: str
    remote: str | None = None
    stream: str = SimulateOptions.stream
    steps: int = SimulateOptions.steps
    ranks_per_node: int = SimulateOptions.ranks_per_node

    def __post_init__(self) -> None:
        SimulateOptions(steps=self.steps, ranks_per_node=self.ranks_per_node)


@dataclass(frozen=True, kw_only=True)
class ShardPlanOptions:
    """Options of :func:`tokshard.shard_plan`.

    Attributes:
        sources: One blend (directory or ``blend.json``); one or more built indexes; or with ``documents``
            datasets, or globs of them.
        output: The directory of the plan.
        documents: Whether the samples are the documents of datasets.
        split: Names of splits, by commas, to plan only these; for documents also weights such as
            ``"98,1,1"``.
        path_as: Pairs (path here, path in the description of an index).
        digests: Whether to read ``.idx`` files whole, to check that indexes were made from them.
        world_size: The number of ranks; or else ``data_parallel``.
        data_parallel: The data-parallel size.
        tensor_parallel: The tensor-parallel size.
        pipeline_parallel: The number of pipeline stages.
        context_parallel: The context-parallel size.
        expert_parallel: The expert-parallel size.
        expert_tensor_parallel: The tensor-parallel size of expert layers; None for that of dense ones.
        virtual_pipeline: The model chunks of each rank, or None.
        mtp_stages: The pipeline stages with multi-token prediction.
        order: The dimensions from the fastest to the slowest, joined by hyphens.
        micro_batch_size: The samples of a micro-batch of one rank.
        batch_sizes: The global batch size over time.
        steps: The number of steps; None for all that the samples fill.
        epochs: How often everything is read.
        consumed_samples: Samples that all ranks had consumed before step 0.
        mode: One of :data:`~tokshard.sharding.plan.MODES`, but for ``"full-validation"``.
        data_sharding: In mode ``cyclic``, whether each rank has its own block of the samples.
        equal_counts: See :class:`StreamRequest`.
        shuffle: One of :data:`~tokshard.sharding.plan.SHUFFLES`.
        shuffle_block: The samples of a block of the shuffle ``blocks``.
        shuffle_per_epoch: Whether each epoch is shuffled anew.
        tail: ``"drop"``, ``"pad"`` or ``"error"``.
        seed: The seed of shuffles and bucketing.
        bucket_buffer: The samples of a bucketing window; None for no bucketing.
        bucket_pack: The similar samples that stay together; None for one micro-batch of each rank.
        bucket_by: The key that bucketing sorts by; None for the source's first one.
        document_boundaries: Whether every pipeline stage reads document boundaries.
        eval_global_batch_size: See :class:`PlanRequest`.
        eval_micro_batch_size: See :class:`PlanRequest`.
        full_validation: See :class:`PlanRequest`.
        consumed_valid_samples: Consumed samples of each validation set; one number counts for all.
        packed: Whether to write the manifests of all ranks into one file.
        force: Whether to replace another plan.

    Raises:
        UsageError: A value is invalid, or values do not fit together.
    """

    sources: tuple[str, ...]
    output: str
    documents: bool = False
    split: str | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    digests: bool = True
    world_size: int | None = None
    data_parallel: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    virtual_pipeline: int | None = None
    mtp_stages: tuple[int, ...] = ()
    order: str = DEFAULT_ORDER
    micro_batch_size: int = 1
    batch_sizes: BatchSizes = field(default_factory=BatchSizes)
    steps: int | None = None
    epochs: int | None = None
    consumed_samples: int = 0
    mode: str = "single"
    data_sharding: bool = True
    equal_counts: bool = False
    shuffle: str = "none"
    shuffle_block: int = DEFAULT_BLOCK
    shuffle_per_epoch: bool = False
    tail: str = "drop"
    seed: int = DEFAULT_SEED
    bucket_buffer: int | None = None
    bucket_pack: int | None = None
    bucket_by: str | None = None
    document_boundaries: bool = False
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    full_validation: bool = False
    consumed_valid_samples: tuple[int, ...] = ()
    packed: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError(
                "nothing is named to read", hint="name a blend, an index, or --documents and datasets"
            )
        self.topology()
        self.request(None)

    def topology(self) -> Topology:
        """Return the ranks."""
        model = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        return Topology(
            world_size_of(self.world_size, self.data_parallel, model),
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            context=self.context_parallel,
            order=self.order,
            virtual_pipeline=self.virtual_pipeline,
            mtp_stages=self.mtp_stages,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
        )

    def request(self, schedule: BatchSchedule | None) -> PlanRequest:
        """Return how the streams are read, with a schedule of the global batch size."""
        train = StreamRequest(
            mode=self.mode,
            tail=self.tail,
            shuffle=self.shuffle,
            seed=self.seed,
            block=self.shuffle_block,
            per_epoch=self.shuffle_per_epoch,
            sharded=self.data_sharding,
            equal_counts=self.equal_counts,
            micro_batch_size=self.micro_batch_size,
            schedule=schedule,
            steps=self.steps,
            epochs=self.epochs,
            consumed_samples=self.consumed_samples,
            bucket_buffer=self.bucket_buffer,
            bucket_pack=self.bucket_pack,
            sort_key=self.bucket_by,
            boundaries=self.document_boundaries,
        )
        return PlanRequest(
            train=train,
            eval_global_batch_size=self.eval_global_batch_size,
            eval_micro_batch_size=self.eval_micro_batch_size,
            full_validation=self.full_validation,
            consumed_valid_samples=self.consumed_valid_samples,
        )
