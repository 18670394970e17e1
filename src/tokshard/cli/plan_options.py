"""Declarations of the options of ``shard-plan``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tokshard.cli import options
from tokshard.cli.declarations import choice, count, parse_count, switch, text

COMMON_OPTIONS = (
    "--output",
    "--documents",
    "--split",
    "--world-size",
    "--data-parallel",
    "--tensor-parallel",
    "--pipeline-parallel",
    "--context-parallel",
    "--micro-batch-size",
    "--global-batch-size",
    "--steps",
    "--epochs",
    "--consumed-samples",
    "--mode",
    "--shuffle",
    "--tail",
    "--seed",
    "--from",
    "--force",
    "--dry-run",
)

_DATA = "Data"
_RANKS = "Ranks"
_BATCHES = "Batches and steps"
_ORDER = "Order"
_EVALUATION = "Validation and testing"
_CONTINUE = "Continue a plan"

Output = Annotated[str, text("--output", "-o", metavar="PLAN", help="Write the plan to this directory.")]
Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="A blend (its directory or blend.json), datasets with built indexes, or datasets with "
        "--documents.",
        show_default=False,
    ),
]
FromPlan = Annotated[
    str | None,
    text(
        "--from",
        metavar="PLAN",
        help="Continue this plan after --consumed-samples. Options that are not passed keep its values.",
        group=_CONTINUE,
    ),
]
Blend = Annotated[
    str | None,
    text(
        "--blend",
        metavar="NEW",
        help="Continue with a new blend: a directory, a recipe or words such as '0.7 data/web 0.3 "
        "data/code'.",
        group=_CONTINUE,
    ),
]
Moved = Annotated[
    list[str] | None,
    text(
        "--moved",
        metavar="OLD=NEW",
        help="Read the plan's data below OLD from NEW.",
        group=_CONTINUE,
    ),
]
Documents = Annotated[
    bool,
    switch("--documents", help="Use whole documents as samples.", group=_DATA),
]
Split = Annotated[
    str | None,
    text(
        "--split",
        metavar="NAMES",
        help="Plan only these splits, such as train,valid. With --documents also weights, such as 98,1,1.",
        group=_DATA,
        default="all; with --documents train",
    ),
]
PathAs = Annotated[
    list[str] | None,
    text(
        "--path-as",
        metavar="LOCAL=TRAINING",
        help="Read data from LOCAL if an index records it under TRAINING.",
        group=_DATA,
    ),
]
Digests = Annotated[
    bool,
    switch(
        "--digests/--no-digests",
        help="Read .idx files completely to check that indexes were built from them.",
        group=_DATA,
    ),
]
AllowTokenizerMismatch = Annotated[
    bool,
    switch(
        "--allow-tokenizer-mismatch",
        help="Allow datasets with different tokenizers, and record the mismatch in the plan.",
        group=_DATA,
    ),
]
WorldSize = Annotated[
    int | None, count("--world-size", help="Plan for N ranks (GPUs) in total.", group=_RANKS)
]
DataParallel = Annotated[
    int | None,
    count("--data-parallel", help="Plan for N data-parallel ranks, instead of --world-size.", group=_RANKS),
]
TensorParallel = Annotated[
    int,
    count(
        "--tensor-parallel",
        "--tensor-model-parallel-size",
        help="Set the tensor-parallel size.",
        group=_RANKS,
    ),
]
PipelineParallel = Annotated[
    int,
    count(
        "--pipeline-parallel",
        "--pipeline-model-parallel-size",
        help="Set the number of pipeline stages.",
        group=_RANKS,
    ),
]
ContextParallel = Annotated[
    int,
    count(
        "--context-parallel", "--context-parallel-size", help="Set the context-parallel size.", group=_RANKS
    ),
]
MtpStages = Annotated[
    str | None,
    text(
        "--mtp-stages",
        metavar="N,...",
        help="Name the pipeline stages with multi-token prediction, which read every field.",
        group=_RANKS,
    ),
]
Order = Annotated[
    str,
    text("--order", metavar="DIMENSIONS", help="Number ranks in this order, fastest first.", group=_RANKS),
]
MicroBatchSize = Annotated[
    int, count("--micro-batch-size", help="Read N samples per rank and micro-batch.", group=_BATCHES)
]
GlobalBatchSize = Annotated[
    int | None,
    count(
        "--global-batch-size",
        help="Read N samples per step.",
        group=_BATCHES,
        default="micro-batch x data-parallel",
    ),
]
StepBatchSizeSchedule = Annotated[
    str | None,
    text(
        "--step-batch-size-schedule",
        metavar="'N:SIZE ...'",
        help="Read SIZE samples per step once N tokens are consumed (with --documents: N samples), "
        "as Megatron since 0.18.",
        group=_BATCHES,
    ),
]
RampupBatchSize = Annotated[
    tuple[int, int, int] | None,
    text(
        "--rampup-batch-size",
        metavar="START INCREMENT SAMPLES",
        help="Grow to --global-batch-size over the first SAMPLES samples, as Megatron up to 0.17.",
        group=_BATCHES,
        parser=parse_count,
    ),
]
DecreaseBatchSizeIfNeeded = Annotated[
    bool,
    switch(
        "--decrease-batch-size-if-needed",
        help="Round batch sizes down to a multiple of micro-batch x data-parallel.",
        group=_BATCHES,
    ),
]
Steps = Annotated[
    int | None,
    count("--steps", "--train-iters", help="Train for N steps.", group=_BATCHES, default="all of --epochs"),
]
Epochs = Annotated[
    int | None, count("--epochs", help="Read the training data N times.", group=_BATCHES, default="1")
]
ConsumedSamples = Annotated[
    int,
    count(
        "--consumed-samples",
        help="Start after N samples that were already consumed, summed over all ranks.",
        group=_BATCHES,
    ),
]
Mode = Annotated[
    str,
    choice(
        Literal["single", "cyclic", "contiguous", "sequential", "chunked"],
        "--mode",
        help="Assign samples to data-parallel ranks in this pattern; single is Megatron's.",
        group=_ORDER,
    ),
]
DataSharding = Annotated[
    bool,
    switch(
        "--data-sharding/--no-data-sharding",
        help="With --mode cyclic: give each rank its own block of samples.",
        group=_ORDER,
    ),
]
EqualCounts = Annotated[
    bool,
    switch(
        "--equal-counts",
        help="With --mode cyclic --no-data-sharding: drop the batches that only some ranks would get.",
        group=_ORDER,
    ),
]
Shuffle = Annotated[
    str,
    choice(
        Literal["none", "shards", "samples", "windows"],
        "--shuffle",
        help="Shuffle whole datasets (shards), samples, or blocks of consecutive samples and then samples "
        "within windows of blocks (windows).",
        group=_ORDER,
    ),
]
ShuffleBlock = Annotated[
    int | None,
    count(
        "--shuffle-block",
        help="With --shuffle windows: shuffle blocks of N samples.",
        group=_ORDER,
        default="256",
    ),
]
ShuffleWindow = Annotated[
    int | None,
    count(
        "--shuffle-window",
        help="With --shuffle windows: shuffle samples within windows of N blocks.",
        group=_ORDER,
        default="4096",
    ),
]
ShufflePerEpoch = Annotated[
    bool, switch("--shuffle-per-epoch", help="Use a new shuffle in each epoch.", group=_ORDER)
]
Tail = Annotated[
    str,
    choice(
        Literal["drop", "pad"],
        "--tail",
        help="Drop the incomplete final batch, or pad it with repeated samples.",
        group=_ORDER,
    ),
]
Seed = Annotated[int, count("--seed", help="Seed shuffles and bucketing with N.", group=_ORDER)]
BucketBuffer = Annotated[
    int | None,
    count(
        "--bucket-buffer", help="Group samples of similar length within windows of N samples.", group=_ORDER
    ),
]
BucketPack = Annotated[
    int | None,
    count(
        "--bucket-pack",
        help="With --bucket-buffer: keep N similar samples together.",
        group=_ORDER,
        default="micro-batch x data-parallel",
    ),
]
BucketBy = Annotated[
    str | None,
    choice(
        Literal["length", "sequences", "pieces"],
        "--bucket-by",
        help="With --bucket-buffer: sort documents by length (tokens) or sequences, indexed samples "
        "by pieces of documents.",
        group=_ORDER,
        default="length, or pieces",
    ),
]
DocumentBoundaries = Annotated[
    bool,
    switch(
        "--document-boundaries",
        help="Let every pipeline stage read document boundaries, for attention within documents.",
        group=_ORDER,
    ),
]
EvalGlobalBatchSize = Annotated[
    int | None,
    count(
        "--eval-global-batch-size",
        help="Read N samples per validation step.",
        group=_EVALUATION,
        default="as in training",
    ),
]
EvalMicroBatchSize = Annotated[
    int | None,
    count(
        "--eval-micro-batch-size",
        help="Read N samples per rank and validation micro-batch.",
        group=_EVALUATION,
        default="as in training",
    ),
]
FullValidation = Annotated[
    bool,
    switch(
        "--full-validation", help="Validate on all samples, one sample per rank at a time.", group=_EVALUATION
    ),
]
ConsumedValidSamples = Annotated[
    list[int] | None,
    count(
        "--consumed-valid-samples",
        help="Start validation after N consumed samples, for all validation sets or once for each set.",
        group=_EVALUATION,
        default="0",
    ),
]
Force = Annotated[bool, switch("--force", help="Replace another plan at PLAN.", group=options.RUN)]
DryRun = Annotated[bool, switch("--dry-run", help="Plan and check, but write nothing.", group=options.RUN)]
