"""Option declarations that several commands share: messages, progress, executors, and indexes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from tokshard import RayOptions
from tokshard.core import megatron_defaults
from tokshard.errors import UsageError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_PATTERN = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text means: decimal (kB, MB, GB, TB) or binary (KiB, MiB, ...).

    Raises:
        typer.BadParameter: It is not a size.

    Example:
        >>> parse_bytes("256MB"), parse_bytes("16MiB"), parse_bytes("1_000")
        (256000000, 16777216, 1000)
    """
    match = _PATTERN.match(str(text))
    if match:
        number, unit = match.group(1).replace("_", "").replace(",", ""), match.group(2).lower()
        scale = {**_DECIMAL, **_BINARY}.get(unit.removesuffix("b"))
        if scale is not None:
            value = float(number) * scale if "." in number else int(number) * scale
            if value == int(value):
                return int(value)
    raise typer.BadParameter(f"{text!r} is not a size such as 64MB, 16MiB or 1000000")


def parse_count(text: str) -> int:
    """Return the whole number that a text means: ``10B``, ``2.5M``, ``4k``, ``1_000``.

    Raises:
        typer.BadParameter: It is not such a number.

    Example:
        >>> parse_count("10B"), parse_count("2.5M"), parse_count("1_000")
        (10000000000, 2500000, 1000)
    """
    match = _PATTERN.match(str(text))
    scale = _COUNTS.get(match.group(2).lower()) if match else None
    if match and scale is not None:
        whole, _, fraction = match.group(1).replace("_", "").replace(",", "").partition(".")
        parts = int(10 ** len(fraction))
        if scale % parts == 0 or not int(fraction or "0"):
            return int(whole) * scale + int(fraction or "0") * scale // parts
    raise typer.BadParameter(f"{text!r} is not a whole number such as 1000, 2M or 10B")


def parse_sizes(text: str) -> tuple[int | None, int | None, int | None]:
    """Return the samples of training, validation and testing: ``N[,V[,T]]``, each a count or ``none``.

    Raises:
        typer.BadParameter: It is not such a list.

    Example:
        >>> parse_sizes("10M,2k"), parse_sizes("none")
        ((10000000, 2000, 0), (None, 0, 0))
    """
    words = [word.strip() for word in str(text).split(",")]
    if len(words) > 3:
        raise typer.BadParameter(f"{text!r} has more than three sizes: training, validation, testing")
    if any(re.fullmatch("0[0-9]+", word) for word in words[1:]):
        raise typer.BadParameter(
            f"{text!r} reads as sizes of several splits: write 1000000 or 1M for a million"
        )
    sizes = [None if word.lower() == "none" else parse_count(word) for word in words]
    train, valid, test = [*sizes, 0, 0][:3]
    return train, valid, test


INDEX = "Samples"
SIZE = "How many samples"
TRAINING = "How many samples, by the arguments of a Megatron job"
NAMES = "Names that a Megatron job will look up"
RUN = "Run"
OUTPUT = "Messages"

THREE_WAYS = (
    "--like DESCRIPTION.txt of that job's cache, --tokenizer-identifiers FILE.json, or --megatron 0.19 "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model PATH"
)
NEUTRAL_NOTE = "Megatron will not find these files: nothing was said of the tokenizer of the job"
NEUTRAL_HINT = f"for Megatron give {THREE_WAYS}"


def _count(name: str, text: str, panel: str) -> Any:
    return typer.Option(
        name, parser=parse_count, metavar="N", help=text, show_default=False, rich_help_panel=panel
    )


SequenceLengths = Annotated[
    list[int] | None, _count("--seq-length", "Tokens of a sample; may be repeated.", INDEX)
]
SequenceLength = Annotated[int | None, _count("--seq-length", "Tokens of a sample.", INDEX)]
SplitText = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="TRAIN,VALID,TEST",
        help="Shares of the data.",
        show_default=megatron_defaults.SPLIT,
        rich_help_panel=INDEX,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of all shuffles.",
        show_default=str(megatron_defaults.SEED),
        rich_help_panel=INDEX,
    ),
]
ExtraToken = Annotated[
    bool,
    typer.Option(
        "--add-extra-token/--no-add-extra-token",
        help="Give each sample one more token, the last label.",
        rich_help_panel=INDEX,
    ),
]
DropLastPartial = Annotated[
    bool,
    typer.Option(
        "--drop-last-partial-validation/--no-drop-last-partial-validation",
        help="Drop validation's last, partial sample.",
        rich_help_panel=INDEX,
    ),
]
_SIZES_HELP = "Samples of training, validation, testing; 'none' is one epoch."
NumSamplesList = Annotated[
    list[Any] | None,
    typer.Option(
        "--num-samples",
        parser=parse_sizes,
        metavar="N[,V[,T]]",
        help=f"{_SIZES_HELP} May be repeated.",
        show_default=False,
        rich_help_panel=SIZE,
    ),
]
NumSamples = Annotated[
    Any,
    typer.Option(
        "--num-samples",
        parser=parse_sizes,
        metavar="N[,V[,T]]",
        help=_SIZES_HELP,
        show_default=False,
        rich_help_panel=SIZE,
    ),
]
Surplus = Annotated[
    float | None,
    typer.Option(
        "--surplus",
        metavar="FRACTION",
        help="Megatron's --mid-level-dataset-surplus: how much more is built of each source.",
        show_default=str(megatron_defaults.SURPLUS),
        rich_help_panel=SIZE,
    ),
]
TrainIters = Annotated[int | None, _count("--train-iters", "Steps.", TRAINING)]
TrainSamples = Annotated[int | None, _count("--train-samples", "Samples, instead of steps.", TRAINING)]
GlobalBatchSize = Annotated[int | None, _count("--global-batch-size", "Samples of a step.", TRAINING)]
EvalInterval = Annotated[
    int | None,
    _count("--eval-interval", f"Steps between validations ({megatron_defaults.EVAL_INTERVAL}).", TRAINING),
]
EvalIters = Annotated[
    int | None, _count("--eval-iters", f"Steps of a validation ({megatron_defaults.EVAL_ITERS}).", TRAINING)
]
EvalGlobalBatchSize = Annotated[
    int | None, _count("--eval-global-batch-size", "Samples of a validation step.", TRAINING)
]
StartEvalAtIter = Annotated[
    int | None, _count("--start-eval-at-iter", "Step before which nothing is validated.", TRAINING)
]
FullValidation = Annotated[
    bool,
    typer.Option("--full-validation", help="Validation is one epoch.", rich_help_panel=TRAINING),
]
SkipTrain = Annotated[
    bool, typer.Option("--skip-train", help="The job only validates.", rich_help_panel=TRAINING)
]
Like = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="DESCRIPTION.txt",
        help="Take tokenizer identifiers, and what no option says, from a description that the job wrote.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
TokenizerIdentifiers = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-identifiers",
        metavar="FILE.json",
        help="Output of `python -m tokshard.dump_tokenizer_identifiers`.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
MegatronVersion = Annotated[
    str | None,
    typer.Option(
        "--megatron",
        metavar="VERSION",
        help="Megatron Core of the job: 0.15, 0.16, 0.17, 0.18, 0.19 or main-20260822.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
TokenizerType = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-type",
        metavar="TYPE",
        help="HuggingFaceTokenizer or NullTokenizer.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
TokenizerModel = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-model",
        metavar="PATH",
        help="As the job names it.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
VocabSize = Annotated[int | None, _count("--vocab-size", "Of a NullTokenizer.", NAMES)]
PathAs = Annotated[
    list[str] | None,
    typer.Option(
        "--path-as",
        metavar="LOCAL=TRAINING",
        help="The job names data at LOCAL as TRAINING; may be repeated.",
        show_default=False,
        rich_help_panel=NAMES,
    ),
]
LogJson = Annotated[
    str | None,
    typer.Option(
        "--log-json",
        metavar="FILE",
        help="Append what happens to FILE, one event in JSON on each line; - is stderr.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
AssertHit = Annotated[
    bool,
    typer.Option(
        "--assert-hit",
        help="Build nothing; exit with 1 unless everything is there and fresh.",
        rich_help_panel=RUN,
    ),
]
Rebuild = Annotated[
    bool, typer.Option("--rebuild", help="Replace what is stale, damaged or not ours.", rich_help_panel=RUN)
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Threads.", show_default="all cores", rich_help_panel=RUN)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=OUTPUT)]
NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="Draw no progress bar.", rich_help_panel=OUTPUT)
]

CLUSTER = "Ray cluster"


class ExecutorKind(StrEnum):
    """Choices of --executor."""

    local = "local"
    ray = "ray"


ExecutorChoice = Annotated[
    ExecutorKind,
    typer.Option(
        "--executor", help="Where the work is done: here, or on a Ray cluster.", rich_help_panel=CLUSTER
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="auto|HOST:PORT",
        help="The cluster.",
        show_default="RAY_ADDRESS, or auto: that of this machine",
        rich_help_panel=CLUSTER,
    ),
]
RayCpusPerTask = Annotated[
    float | None,
    typer.Option(
        "--ray-cpus-per-task",
        metavar="N",
        help="CPUs of each task.",
        show_default=f"{RayOptions.cpus_per_task:g}",
        rich_help_panel=CLUSTER,
    ),
]
RayRetries = Annotated[
    int | None,
    typer.Option(
        "--ray-retries",
        metavar="N",
        help="How often work that was lost with its node is given out again.",
        show_default=str(RayOptions.retries),
        rich_help_panel=CLUSTER,
    ),
]


def parse_path_as(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (path here, path at training time) of ``--path-as``.

    Raises:
        UsageError: One of them is no such pair.

    Example:
        >>> parse_path_as(["out=/data/v1"])
        (('out', '/data/v1'),)
    """
    found = []
    for pair in pairs or []:
        local, separator, training = pair.partition("=")
        if not (local and separator and training):
            raise UsageError(
                f"--path-as {pair!r} is not LOCAL=TRAINING", hint="for example --path-as out=/data/v1"
            )
        found.append((local, training))
    return tuple(found)


def ray_options(
    executor: ExecutorKind,
    address: str | None,
    cpus_per_task: float | None,
    retries: int | None,
    *,
    workers: int | None,
) -> RayOptions | None:
    """Return which Ray cluster to use; None for this machine.

    Raises:
        UsageError: A value is invalid, or is for a cluster that is not used.
    """
    given = {"--ray-address": address, "--ray-cpus-per-task": cpus_per_task, "--ray-retries": retries}
    if executor is ExecutorKind.local:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} has a meaning only with --executor ray")
        return None
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is less than 1")
    return RayOptions(
        address=address,
        cpus_per_task=RayOptions.cpus_per_task if cpus_per_task is None else cpus_per_task,
        retries=RayOptions.retries if retries is None else retries,
        tasks=workers,
    )
