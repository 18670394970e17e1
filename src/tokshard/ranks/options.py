"""Options of planning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tokshard.core import megatron_defaults
from tokshard.errors import UsageError
from tokshard.ranks.requests import (
    DEFAULT_BLOCK,
    DEFAULT_WINDOW,
    PlanRequest,
    StreamRequest,
)
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.topology import DEFAULT_ORDER, Topology
from tokshard.storage.lock import LockMode, check_lock_mode


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
            f"--world-size must be --data-parallel x tensor x pipeline x context "
            f"= {data_parallel} x {model} = {data_parallel * model}, got {world_size}",
            hint="pass only one of them",
        )
    return data_parallel * model


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
        allow_tokenizer_mismatch: Whether to plan datasets of different tokenizers, and record it.
        world_size: The number of ranks; or else ``data_parallel``.
        data_parallel: The data-parallel size.
        tensor_parallel: The tensor-parallel size.
        pipeline_parallel: The number of pipeline stages.
        context_parallel: The context-parallel size.
        mtp_stages: The pipeline stages with multi-token prediction.
        order: The dimensions from the fastest to the slowest, joined by hyphens.
        micro_batch_size: The samples of a micro-batch of one rank.
        batch_sizes: The global batch size over time.
        steps: The number of steps; None for all that the samples fill.
        epochs: How often everything is read.
        consumed_samples: Samples that all ranks had consumed before step 0.
        mode: One of :data:`~tokshard.ranks.plan.MODES`, but for ``"full-validation"``.
        data_sharding: In mode ``cyclic``, whether each rank has its own block of the samples.
        equal_counts: See :class:`~tokshard.ranks.requests.StreamRequest`.
        shuffle: One of :data:`~tokshard.ranks.plan.SHUFFLES`.
        shuffle_block: Samples per block of the shuffle ``windows``; None for 256.
        shuffle_window: Blocks per window of the shuffle ``windows``; None for 4,096.
        shuffle_per_epoch: Whether each epoch is shuffled differently.
        tail: ``"drop"`` or ``"pad"``.
        seed: The seed of shuffles and bucketing.
        bucket_buffer: The samples of a bucketing window; None for no bucketing.
        bucket_pack: The similar samples that stay together; None for one micro-batch of each rank.
        bucket_by: The key that bucketing sorts by; None for the source's first one.
        document_boundaries: Whether every pipeline stage reads document boundaries.
        eval_global_batch_size: See :class:`~tokshard.ranks.requests.PlanRequest`.
        eval_micro_batch_size: See :class:`~tokshard.ranks.requests.PlanRequest`.
        full_validation: See :class:`~tokshard.ranks.requests.PlanRequest`.
        consumed_valid_samples: Consumed samples of each validation set; one number counts for all.
        force: Whether to replace another plan.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.

    Raises:
        UsageError: A value is invalid, or values do not fit together.
    """

    sources: tuple[str, ...]
    output: str
    documents: bool = False
    split: str | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    digests: bool = True
    allow_tokenizer_mismatch: bool = False
    world_size: int | None = None
    data_parallel: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
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
    shuffle_block: int | None = None
    shuffle_window: int | None = None
    shuffle_per_epoch: bool = False
    tail: str = "drop"
    seed: int = megatron_defaults.SEED
    bucket_buffer: int | None = None
    bucket_pack: int | None = None
    bucket_by: str | None = None
    document_boundaries: bool = False
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    full_validation: bool = False
    consumed_valid_samples: tuple[int, ...] = ()
    force: bool = False
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError(
                "at least one source is required", hint="pass a blend, an index, or --documents and datasets"
            )
        check_lock_mode(self.lock)
        self.topology()
        self.request(None)

    def topology(self) -> Topology:
        """Return the ranks."""
        model = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        return Topology(
            world_size_of(self.world_size, self.data_parallel, model),
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            context_parallel=self.context_parallel,
            rank_order=self.order,
            mtp_stages=self.mtp_stages,
        )

    def request(self, schedule: BatchSchedule | None) -> PlanRequest:
        """Return how the streams are read, with a schedule of the global batch size."""
        window = self.shuffle_window
        if self.shuffle == "windows" and window is None:
            window = DEFAULT_WINDOW
        if self.shuffle != "windows" and self.shuffle_block is not None:
            raise UsageError(
                f"--shuffle-block requires --shuffle windows, got --shuffle {self.shuffle}",
                hint="leave out --shuffle-block, or pass --shuffle windows",
            )
        train = StreamRequest(
            mode=self.mode,
            tail=self.tail,
            shuffle=self.shuffle,
            seed=self.seed,
            block=DEFAULT_BLOCK if self.shuffle_block is None else self.shuffle_block,
            window=window,
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
