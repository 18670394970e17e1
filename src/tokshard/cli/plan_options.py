"""Declarations of the options of ``shard-plan``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tokshard.cli import options
from tokshard.cli.options import parse_bytes, parse_count

_SAMPLES = "Samples"
_RANKS = "Ranks"
_BATCHES = "Batches and steps"
_ORDER = "Order"
_EVALUATION = "Validation and testing"
_GOING_ON = "Going on from a plan"
_LOOKING_AHEAD = "What it will read"


def _number(*names: str, text: str, panel: str, shown: str | bool = True) -> Any:
    return typer.Option(
        *names, parser=parse_count, metavar="N", help=text, show_default=shown, rich_help_panel=panel
    )


def _choice(name: str, text: str, panel: str, *, shown: str | bool = True) -> Any:
    return typer.Option(name, help=text, show_default=shown, rich_help_panel=panel)


def _text(name: str, metavar: str, text: str, panel: str, *, shown: str | bool = True) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=shown, rich_help_panel=panel)


def _switch(name: str, text: str, panel: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


Output = Annotated[
    str,
    typer.Option(
        "--output", "-o", metavar="PLAN", help="Write plan.json and rank-*.json here.", show_default=False
    ),
]
Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="A blend (directory or blend.json), or built indexes; with --documents datasets.",
        show_default=False,
    ),
]
FromPlan = Annotated[
    str | None,
    _text(
        "--from",
        "PLAN",
        "Go on from this plan after --consumed-samples; what is not given stays as it is.",
        _GOING_ON,
    ),
]
Blend = Annotated[
    str | None,
    _text(
        "--blend",
        "NEW",
        "With other weights: a blend, or a recipe, or words such as '0.7 data/web 0.3 data/code'.",
        _GOING_ON,
    ),
]
Moved = Annotated[
    list[str] | None,
    _text(
        "--moved",
        "OLD=NEW",
        "Data of the plan that lay below OLD lies below NEW; may be repeated.",
        _GOING_ON,
    ),
]
Documents = Annotated[bool, _switch("--documents", "The samples are the documents.", _SAMPLES)]
Split = Annotated[
    str | None,
    _text(
        "--split",
        "NAMES",
        "Only these: train,valid,test. Of documents also shares, such as 98,1,1.",
        _SAMPLES,
        shown="all; of documents train",
    ),
]
PathAs = Annotated[
    list[str] | None,
    _text(
        "--path-as",
        "LOCAL=TRAINING",
        "The data that an index names TRAINING lies at LOCAL; may be repeated.",
        _SAMPLES,
    ),
]
Digests = Annotated[
    bool,
    _switch(
        "--digests/--no-digests", "Read .idx files whole to see that indexes were made from them.", _SAMPLES
    ),
]
WorldSize = Annotated[int | None, _number("--world-size", text="All ranks.", panel=_RANKS)]
DataParallel = Annotated[
    int | None, _number("--data-parallel", text="Ranks that read different samples, instead.", panel=_RANKS)
]
TensorParallel = Annotated[
    int,
    _number("--tensor-parallel", "--tensor-model-parallel-size", text="Tensor.", panel=_RANKS),
]
PipelineParallel = Annotated[
    int,
    _number("--pipeline-parallel", "--pipeline-model-parallel-size", text="Pipeline.", panel=_RANKS),
]
ContextParallel = Annotated[
    int, _number("--context-parallel", "--context-parallel-size", text="Context.", panel=_RANKS)
]
ExpertParallel = Annotated[
    int,
    _number("--expert-parallel", "--expert-model-parallel-size", text="Expert.", panel=_RANKS),
]
ExpertTensorParallel = Annotated[
    int | None,
    _number(
        "--expert-tensor-parallel",
        "--expert-tensor-parallel-size",
        text="Tensor, of expert layers.",
        panel=_RANKS,
        shown="as tensor",
    ),
]
VirtualPipeline = Annotated[
    int | None,
    _number(
        "--virtual-pipeline",
        "--virtual-pipeline-model-parallel-size",
        text="Model chunks of a rank.",
        panel=_RANKS,
    ),
]
MtpStages = Annotated[
    str | None,
    _text(
        "--mtp-stages", "N,...", "Pipeline stages with multi-token prediction: they read every field.", _RANKS
    ),
]
Order = Annotated[str, _choice("--order", "Dimensions from the fastest.", _RANKS)]
MicroBatchSize = Annotated[
    int, _number("--micro-batch-size", text="Samples of a rank at a time.", panel=_BATCHES)
]
GlobalBatchSize = Annotated[
    int | None,
    _number(
        "--global-batch-size", text="Samples of a step.", panel=_BATCHES, shown="micro batch x data-parallel"
    ),
]
StepBatchSizeSchedule = Annotated[
    str | None,
    _text(
        "--step-batch-size-schedule",
        "'N:SIZE ...'",
        "Samples of a step from N tokens on (documents: N samples); Megatron since 0.18.",
        _BATCHES,
    ),
]
RampupBatchSize = Annotated[
    tuple[int, int, int] | None,
    _text(
        "--rampup-batch-size",
        "START INCREMENT SAMPLES",
        "Grow to the global batch size; Megatron up to 0.17.",
        _BATCHES,
    ),
]
DecreaseBatchSizeIfNeeded = Annotated[
    bool,
    _switch("--decrease-batch-size-if-needed", "Round sizes down that the ranks do not divide.", _BATCHES),
]
Steps = Annotated[
    int | None,
    _number(
        "--steps", "--train-iters", text="Steps of training.", panel=_BATCHES, shown="what the epochs fill"
    ),
]
Epochs = Annotated[
    int | None, _number("--epochs", text="How often training data is read.", panel=_BATCHES, shown="1")
]
ConsumedSamples = Annotated[
    int, _number("--consumed-samples", text="Read before by all ranks.", panel=_BATCHES)
]
Mode = Annotated[str, _choice("--mode", "single, cyclic, contiguous, sequential or chunked.", _ORDER)]
DataSharding = Annotated[
    bool, _switch("--data-sharding/--no-data-sharding", "cyclic: each rank has samples of its own.", _ORDER)
]
EqualCounts = Annotated[
    bool,
    _switch("--equal-counts", "cyclic without sharding: cut what Megatron gives to some ranks only.", _ORDER),
]
Shuffle = Annotated[str, _choice("--shuffle", "none, shards, samples or blocks.", _ORDER)]
ShuffleBlock = Annotated[int, _number("--shuffle-block", text="Samples of a block.", panel=_ORDER)]
ShufflePerEpoch = Annotated[bool, _switch("--shuffle-per-epoch", "Shuffle each epoch anew.", _ORDER)]
Tail = Annotated[str, _choice("--tail", "What fills no batch: drop, pad or error.", _ORDER)]
Seed = Annotated[int, _number("--seed", text="Of shuffles and buckets.", panel=_ORDER)]
BucketBuffer = Annotated[
    int | None, _number("--bucket-buffer", text="Sort so many samples at a time.", panel=_ORDER)
]
BucketPack = Annotated[
    int | None,
    _number(
        "--bucket-pack",
        text="So many similar samples come together.",
        panel=_ORDER,
        shown="micro batch x data-parallel",
    ),
]
BucketBy = Annotated[
    str | None,
    _choice(
        "--bucket-by",
        "Of documents length or sequences, else pieces (of documents).",
        _ORDER,
        shown="length, or pieces",
    ),
]
DocumentBoundaries = Annotated[
    bool,
    _switch(
        "--document-boundaries", "Attention ends with documents: every stage reads their boundaries.", _ORDER
    ),
]
EvalGlobalBatchSize = Annotated[
    int | None,
    _number("--eval-global-batch-size", text="Samples of a step.", panel=_EVALUATION, shown="as training"),
]
EvalMicroBatchSize = Annotated[
    int | None,
    _number(
        "--eval-micro-batch-size", text="Samples of a rank at a time.", panel=_EVALUATION, shown="as training"
    ),
]
FullValidation = Annotated[
    bool, _switch("--full-validation", "All of validation, one sample a rank.", _EVALUATION)
]
ConsumedValidSamples = Annotated[
    list[int] | None,
    _number(
        "--consumed-valid-samples",
        text="Read before; once for all sets, or for each.",
        panel=_EVALUATION,
        shown="0",
    ),
]
Simulate = Annotated[
    bool,
    _switch(
        "--simulate",
        "Count samples, documents, bytes, pages and open files of steps, ranks and nodes.",
        _LOOKING_AHEAD,
    ),
]
Staging = Annotated[
    str | None,
    _text(
        "--staging",
        "DIR",
        "Write for each node the files and byte ranges that it reads: for rsync or s5cmd.",
        _LOOKING_AHEAD,
    ),
]
SimulateSteps = Annotated[int, _number("--simulate-steps", text="In so many steps.", panel=_LOOKING_AHEAD)]
SimulateStream = Annotated[str, _choice("--simulate-stream", "Of this stream.", _LOOKING_AHEAD)]
RanksPerNode = Annotated[
    int, _number("--ranks-per-node", text="Neighbouring ranks of a node.", panel=_LOOKING_AHEAD)
]
Bandwidth = Annotated[
    int | None,
    typer.Option(
        "--bandwidth",
        parser=parse_bytes,
        metavar="SIZE",
        help="What a node gets from storage in a second, such as 2GB: adds times.",
        show_default=False,
        rich_help_panel=_LOOKING_AHEAD,
    ),
]
StagingRemote = Annotated[
    str | None,
    _text(
        "--staging-remote",
        "URL",
        "Where / lies in an object store, such as s3://bucket/cluster: adds lists for s5cmd.",
        _LOOKING_AHEAD,
    ),
]
Packed = Annotated[bool, _switch("--packed", "Put all ranks' manifests into one file.", options.RUN)]
Force = Annotated[bool, _switch("--force", "Replace another plan.", options.RUN)]
DryRun = Annotated[bool, _switch("--dry-run", "Plan and check, and write nothing.", options.RUN)]
