"""Options of planning and replanning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from tokshard.core import megatron_rules
from tokshard.core.codec import Count, Positive
from tokshard.core.options import Force, Option, Options, StrPath, StrPaths, parse_pair
from tokshard.errors import UsageError
from tokshard.ranks.choices import Mode, Shuffling, Tail, TrainingMode
from tokshard.ranks.topology import DEFAULT_ORDER, Topology
from tokshard.storage.lock import Lock

if TYPE_CHECKING:
    from tokshard.ranks.schedule import BatchSchedule

DATA = "Data"
_RANKS = "Ranks"
_BATCHES = "Batches and steps"
_ORDER = "Order"
_EVALUATION = "Validation and testing"
_NO_SHUFFLE = Shuffling()


def _parse_stages(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        raise ValueError(f"must be a list of numbers such as 3,7, got {text!r}") from None


PATH_AS = Option(
    "Read data from LOCAL if an index records it under TRAINING.",
    metavar="LOCAL=TRAINING",
    group=DATA,
    parse=parse_pair("LOCAL=TRAINING", "out=/data/v1"),
)
MOVED = Option(
    "Read the plan's data below OLD from NEW.",
    metavar="OLD=NEW",
    group=DATA,
    parse=parse_pair("OLD=NEW", "/scratch/data=/mnt/data"),
)
"""Where data is now, for commands that read plans and indexes."""

# Options of both classes: types where their values are the same, else what the help says.
Output = Annotated[StrPath, Option("Write the plan to this directory.", aliases=("-o",), metavar="DIR")]
AllowTokenizerMismatch = Annotated[
    bool,
    Option(
        "Allow datasets with different tokenizers, and record the mismatch in the plan.",
        group=DATA,
        is_rare=True,
    ),
]
WorldSize = Annotated[Positive | None, Option("Plan for N ranks (GPUs) in total.", group=_RANKS)]
DataParallel = Annotated[
    Positive | None, Option("Plan for N data-parallel ranks, instead of --world-size.", group=_RANKS)
]
StepBatchSizeSchedule = Annotated[
    str | None,
    Option(
        "Read SIZE samples per step once N tokens are consumed (with --documents: N samples), as Megatron "
        "since 0.18.",
        metavar="'N:SIZE ...'",
        group=_BATCHES,
        is_rare=True,
        excludes=("global_batch_size", "rampup_batch_size"),
    ),
]
RampupBatchSize = Annotated[
    tuple[int, int, int] | None,
    Option(
        "Grow to --global-batch-size over the first SAMPLES samples, as Megatron up to 0.17.",
        metavar="START INCREMENT SAMPLES",
        group=_BATCHES,
        is_rare=True,
        requires="global_batch_size",
    ),
]
DecreaseBatchSizeIfNeeded = Annotated[
    bool,
    Option(
        "Round batch sizes down to a multiple of micro-batch x data-parallel.",
        group=_BATCHES,
        is_rare=True,
        requires=("global_batch_size", "step_batch_size_schedule"),
    ),
]
_TENSOR_PARALLEL = Option(
    "Set the tensor-parallel size.", aliases=("--tensor-model-parallel-size",), group=_RANKS
)
_PIPELINE_PARALLEL = Option(
    "Set the number of pipeline stages.", aliases=("--pipeline-model-parallel-size",), group=_RANKS
)
_CONTEXT_PARALLEL = Option(
    "Set the context-parallel size.", aliases=("--context-parallel-size",), group=_RANKS
)
_MTP_STAGES = Option(
    "Name the pipeline stages with multi-token prediction, which read every field.",
    metavar="N,...",
    group=_RANKS,
    parse=_parse_stages,
    is_list=True,
    is_rare=True,
)
_RANK_ORDER = Option(
    "Number ranks in this order, fastest first.", metavar="DIMENSIONS", group=_RANKS, is_rare=True
)
_MICRO_BATCH_SIZE = Option("Read N samples per rank and micro-batch.", group=_BATCHES)
_GLOBAL_BATCH_SIZE = Option("Read N samples per step.", group=_BATCHES)
_STEPS = Option("Train for N steps.", aliases=("--train-iters",), group=_BATCHES)
_MODE = Option("Assign samples to data-parallel ranks in this pattern; single is Megatron's.", group=_ORDER)
_DATA_SHARDING = Option(
    "With --mode cyclic: give each rank its own block of samples.", group=_ORDER, is_rare=True
)
_TAIL = Option("Drop the incomplete final batch, or pad it with repeated samples.", group=_ORDER)
_EVAL_GLOBAL_BATCH_SIZE = Option("Read N samples per validation step.", group=_EVALUATION, is_rare=True)
_EVAL_MICRO_BATCH_SIZE = Option(
    "Read N samples per rank and validation micro-batch.", group=_EVALUATION, is_rare=True
)
_CONSUMED_VALID_SAMPLES = Option(
    "Start validation after N consumed samples, for all validation sets or once for each set.",
    group=_EVALUATION,
    is_rare=True,
)


@dataclass(frozen=True, kw_only=True)
class ShardPlanOptions(Options):
    """Options of :func:`tokshard.shard_plan`.

    Raises:
        UsageError: A value is invalid, or values do not fit together.
    """

    sources: Annotated[
        StrPaths,
        Option(
            "A blend (its directory or blend.json), datasets with built indexes, or datasets with "
            "--documents.",
            is_argument=True,
            metavar="SOURCE...",
        ),
    ]
    output: Output
    documents: Annotated[bool, Option("Use whole documents as samples.", group=DATA)] = False
    split: Annotated[
        str | None,
        Option(
            "Plan only these splits, such as train,valid. With --documents also weights, such as 98,1,1.",
            metavar="NAMES",
            default="all; with --documents train",
            group=DATA,
        ),
    ] = None
    path_as: Annotated[tuple[tuple[str, str], ...], replace(PATH_AS, is_rare=True)] = ()
    digests: Annotated[
        bool,
        Option(
            "Read .idx files completely to check that indexes were built from them.",
            group=DATA,
            is_rare=True,
        ),
    ] = True
    allow_tokenizer_mismatch: AllowTokenizerMismatch = False
    world_size: WorldSize = None
    data_parallel: DataParallel = None
    tensor_parallel: Annotated[Positive, _TENSOR_PARALLEL] = 1
    pipeline_parallel: Annotated[Positive, _PIPELINE_PARALLEL] = 1
    context_parallel: Annotated[Positive, _CONTEXT_PARALLEL] = 1
    mtp_stages: Annotated[tuple[Count, ...], _MTP_STAGES] = ()
    order: Annotated[str, _RANK_ORDER] = DEFAULT_ORDER
    micro_batch_size: Annotated[Positive, _MICRO_BATCH_SIZE] = 1
    global_batch_size: Annotated[
        Positive | None, replace(_GLOBAL_BATCH_SIZE, default="micro-batch x data-parallel")
    ] = None
    step_batch_size_schedule: StepBatchSizeSchedule = None
    rampup_batch_size: RampupBatchSize = None
    decrease_batch_size_if_needed: DecreaseBatchSizeIfNeeded = False
    steps: Annotated[Positive | None, replace(_STEPS, default="all of --epochs")] = None
    epochs: Annotated[
        Positive | None, Option("Read the training data N times.", default="1", group=_BATCHES)
    ] = None
    consumed_samples: Annotated[
        Count,
        Option("Start after N samples that were already consumed, summed over all ranks.", group=_BATCHES),
    ] = 0
    mode: Annotated[TrainingMode, _MODE] = "single"
    data_sharding: Annotated[bool, _DATA_SHARDING] = True
    equal_counts: Annotated[
        bool,
        Option(
            "With --mode cyclic --no-data-sharding: drop the batches that only some ranks would get.",
            group=_ORDER,
            is_rare=True,
        ),
    ] = False
    shuffle: Annotated[
        Shuffling,
        Option(
            "Shuffle samples, whole datasets, or blocks of consecutive samples and then samples within "
            "windows of blocks (windows:BLOCK:WINDOW; windows is windows:256:4096).",
            metavar="none|samples|datasets|windows",
            group=_ORDER,
            parse=Shuffling.parse,
        ),
    ] = _NO_SHUFFLE
    shuffle_per_epoch: Annotated[
        bool, Option("Use a new shuffle in each epoch.", group=_ORDER, is_rare=True)
    ] = False
    tail: Annotated[Tail, _TAIL] = "drop"
    seed: Annotated[Count, Option("Seed shuffles and bucketing with N.", group=_ORDER)] = megatron_rules.SEED
    bucket_buffer: Annotated[
        Positive | None,
        Option("Group samples of similar length within windows of N samples.", group=_ORDER, is_rare=True),
    ] = None
    bucket_pack: Annotated[
        Positive | None,
        Option(
            "With --bucket-buffer: keep N similar samples together.",
            default="micro-batch x data-parallel",
            group=_ORDER,
            is_rare=True,
            requires="bucket_buffer",
        ),
    ] = None
    bucket_by: Annotated[
        Literal["length", "sequences", "pieces"] | None,
        Option(
            "With --bucket-buffer: sort documents by length (tokens) or sequences, indexed samples by pieces "
            "of documents.",
            default="length, or pieces",
            group=_ORDER,
            is_rare=True,
            requires="bucket_buffer",
        ),
    ] = None
    document_boundaries: Annotated[
        bool,
        Option(
            "Let every pipeline stage read document boundaries, for attention within documents.",
            group=_ORDER,
            is_rare=True,
        ),
    ] = False
    eval_global_batch_size: Annotated[
        Positive | None, replace(_EVAL_GLOBAL_BATCH_SIZE, default="as in training")
    ] = None
    eval_micro_batch_size: Annotated[
        Positive | None, replace(_EVAL_MICRO_BATCH_SIZE, default="as in training")
    ] = None
    full_validation: Annotated[
        bool,
        Option("Validate on all samples, one sample per rank at a time.", group=_EVALUATION, is_rare=True),
    ] = False
    consumed_valid_samples: Annotated[tuple[Count, ...], replace(_CONSUMED_VALID_SAMPLES, default="0")] = ()
    force: Force = False
    lock: Lock = "flock"

    def _validate(self) -> None:
        if not self.sources:
            raise UsageError(
                "at least one source is required", hint="pass a blend, an index, or --documents and datasets"
            )
        if self.mode == "cyclic" and self.shuffle.name != "none":
            raise UsageError(
                f"--mode cyclic has its own order and cannot be used with --shuffle {self.shuffle}",
                hint="pass --mode single --shuffle samples for a seeded random order",
            )
        self.topology()

    def topology(self) -> Topology:
        """Return the ranks."""
        model = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        return Topology(
            _world_size(self.world_size, self.data_parallel, model),
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            context_parallel=self.context_parallel,
            rank_order=self.order,
            mtp_stages=self.mtp_stages,
        )

    @property
    def stream_mode(self) -> Mode:
        """The mode of a stream that these options describe, see :meth:`of_stream`."""
        return "full-validation" if self.full_validation else self.mode

    def of_stream(self, name: str, names: Sequence[str], sequence_length: int | None) -> ShardPlanOptions:
        """Return the options of one of several streams, each as if it were planned alone.

        Validation and testing are read once, in the order of their ids or the mode's own, with a constant
        batch size: the last one of training if no other is given.

        Args:
            name: Name of the stream.
            names: Names of all streams.
            sequence_length: Tokens of a sample, for schedules by tokens.

        Raises:
            UsageError: The counts of consumed samples are not those of the validation sets.
        """
        if name == "train":
            return replace(self, full_validation=False)
        consumed = consumed_valid_samples(name, names, self.consumed_valid_samples) or 0
        schedule = batch_schedule(self, sequence_length)
        size = self.eval_global_batch_size
        if size is None and schedule is not None:
            size = schedule.segments[-1][1]
        is_full = self.full_validation and name != "test"
        return ShardPlanOptions(
            sources=self.sources,
            output=self.output,
            data_parallel=self.topology().data_parallel,
            micro_batch_size=1 if is_full else self.eval_micro_batch_size or self.micro_batch_size,
            global_batch_size=None if is_full else size,
            consumed_samples=consumed,
            mode=self.mode,
            data_sharding=self.data_sharding,
            equal_counts=self.equal_counts,
            tail="drop" if is_full else self.tail,
            document_boundaries=self.document_boundaries,
            full_validation=is_full,
        )


@dataclass(frozen=True, kw_only=True)
class ReplanOptions(Options):
    """Options of :func:`tokshard.replan`. Options that are not given keep the plan's values.

    Raises:
        UsageError: A value is invalid, or values do not fit together.
    """

    plan: Annotated[
        StrPath, Option("The plan that was stopped: its directory or plan.json.", is_argument=True)
    ]
    output: Output
    consumed_samples: Annotated[
        Count,
        Option(
            "Continue after N samples, summed over all ranks: the consumed samples in Megatron's log or "
            "checkpoint."
        ),
    ]
    blend: Annotated[
        str | None,
        Option(
            "Continue with a new blend: a directory, a recipe or words such as '0.7 data/web 0.3 data/code'.",
            metavar="BLEND",
            group=DATA,
        ),
    ] = None
    moved: Annotated[tuple[tuple[str, str], ...], replace(MOVED, is_rare=True)] = ()
    allow_tokenizer_mismatch: AllowTokenizerMismatch = False
    world_size: WorldSize = None
    data_parallel: DataParallel = None
    tensor_parallel: Annotated[Positive | None, _TENSOR_PARALLEL] = None
    pipeline_parallel: Annotated[Positive | None, _PIPELINE_PARALLEL] = None
    context_parallel: Annotated[Positive | None, _CONTEXT_PARALLEL] = None
    mtp_stages: Annotated[tuple[Count, ...] | None, _MTP_STAGES] = None
    order: Annotated[str | None, _RANK_ORDER] = None
    micro_batch_size: Annotated[Positive | None, _MICRO_BATCH_SIZE] = None
    global_batch_size: Annotated[Positive | None, _GLOBAL_BATCH_SIZE] = None
    step_batch_size_schedule: StepBatchSizeSchedule = None
    rampup_batch_size: RampupBatchSize = None
    decrease_batch_size_if_needed: DecreaseBatchSizeIfNeeded = False
    steps: Annotated[Positive | None, replace(_STEPS, default="all that the plan had left")] = None
    mode: Annotated[TrainingMode | None, _MODE] = None
    data_sharding: Annotated[bool | None, _DATA_SHARDING] = None
    tail: Annotated[Tail | None, _TAIL] = None
    seed: Annotated[
        Count,
        Option(
            "With --blend: seed the order of each new source epoch with N.", group=_ORDER, requires="blend"
        ),
    ] = megatron_rules.SEED
    eval_global_batch_size: Annotated[
        Positive | None, replace(_EVAL_GLOBAL_BATCH_SIZE, default="as in training, if that is passed")
    ] = None
    eval_micro_batch_size: Annotated[
        Positive | None, replace(_EVAL_MICRO_BATCH_SIZE, default="as in training, if that is passed")
    ] = None
    consumed_valid_samples: Annotated[tuple[Count, ...], _CONSUMED_VALID_SAMPLES] = ()
    force: Force = False
    lock: Lock = "flock"

    def topology(self, old: Topology) -> Topology:
        """Return the topology of the plan with the sizes that are given; by default its data-parallel size.

        Raises:
            UsageError: The sizes do not fit together.
        """
        sizes = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        given = {name: getattr(self, name) for name in (*sizes, "mtp_stages")} | {"rank_order": self.order}
        changes = {name: value for name, value in given.items() if value is not None}
        model = math.prod(changes.get(name, getattr(old, name)) for name in sizes)
        data_parallel = self.data_parallel
        if self.world_size is None and data_parallel is None:
            data_parallel = old.data_parallel
        return replace(old, world_size=_world_size(self.world_size, data_parallel, model), **changes)


def batch_schedule(
    options: ShardPlanOptions | ReplanOptions, sequence_length: int | None
) -> BatchSchedule | None:
    """Return the global batch size over time, or None if none is given.

    Args:
        options: In one of Megatron's three ways.
        sequence_length: Tokens of a sample, for schedules by tokens.
    """
    from tokshard.ranks.schedule import BatchSchedule  # not needed for help, and imports numpy

    size = options.global_batch_size
    down = options.decrease_batch_size_if_needed
    if options.step_batch_size_schedule is not None:
        return replace(
            BatchSchedule.parse(options.step_batch_size_schedule, sequence_length), round_down=down
        )
    if size is None:
        return None
    if options.rampup_batch_size is not None:
        return BatchSchedule.rampup(*options.rampup_batch_size, size, round_down=down)
    return BatchSchedule.constant(size, round_down=down)


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
            f"consumed validation samples must be 1 number, or one for each validation set ({len(sets)}), "
            f"got {len(counts)}",
            hint="pass one count for all sets, or one for each set in order",
        )
    if name not in sets or not counts:
        return None
    return counts[sets.index(name)] if len(counts) > 1 else counts[0]


def _world_size(world_size: int | None, data_parallel: int | None, model: int) -> int:
    """Return the number of ranks; ``model`` is the number of ranks of one replica of the model."""
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
