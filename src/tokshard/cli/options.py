"""Options that several commands share: indexes, names, executors and messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tokshard import RayOptions
from tokshard.cli import declarations
from tokshard.cli.declarations import parse_sizes
from tokshard.cli.help_page import MESSAGES
from tokshard.core import megatron_defaults
from tokshard.errors import UsageError

INDEX = "Samples"
SIZE = "Number of samples"
TRAINING = "Number of samples, from the arguments of a Megatron job"
NAMES = "File names that a Megatron job looks up"
RUN = "Run"

INDEXING_OPTIONS = (
    "--seq-length",
    "--split",
    "--seed",
    "--pack",
    "--num-samples",
    "--train-iters",
    "--train-samples",
    "--global-batch-size",
    "--eval-interval",
    "--eval-iters",
    "--like",
    "--tokenizer-identifiers",
    "--megatron",
    "--tokenizer-type",
    "--tokenizer-model",
    "--cache-dir",
)
"""The common options of the commands that build indexes, for their ``COMMON_OPTIONS``."""

THREE_WAYS = (
    "--like DESCRIPTION.txt of that job's cache, --tokenizer-identifiers FILE.json, or --megatron 0.19 "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model PATH"
)
NEUTRAL_NOTE = "Megatron will not find these files: the job's tokenizer was not specified"
NEUTRAL_HINT = f"for Megatron pass {THREE_WAYS}"


SequenceLengths = Annotated[
    list[int] | None,
    declarations.count("--seq-length", help="Build samples of N tokens.", group=INDEX),
]
SequenceLength = Annotated[
    int | None,
    declarations.count("--seq-length", help="Build samples of N tokens.", group=INDEX),
]
SplitText = Annotated[
    str | None,
    declarations.text(
        "--split",
        metavar="TRAIN,VALID,TEST",
        help="Divide the documents by these weights.",
        default=megatron_defaults.SPLIT,
        group=INDEX,
    ),
]
Seed = Annotated[
    int | None,
    declarations.integer(
        "--seed",
        help="Seed all shuffles with N.",
        default=str(megatron_defaults.SEED),
        group=INDEX,
    ),
]
ExtraToken = Annotated[
    bool,
    declarations.switch(
        "--add-extra-token/--no-add-extra-token",
        help="Give each sample one more token for the last label.",
        group=INDEX,
    ),
]
DropLastPartial = Annotated[
    bool,
    declarations.switch(
        "--drop-last-partial-validation/--no-drop-last-partial-validation",
        help="Drop the last validation sample if it is incomplete.",
        group=INDEX,
    ),
]
PackChoice = Literal["concat", "best-fit"]


def pack(**more: Any) -> Any:
    """Return the declaration of ``--pack``."""
    return declarations.choice(
        PackChoice,
        "--pack",
        help="Cut samples from concatenated documents, or pack whole documents into samples.",
        group=INDEX,
        **more,
    )


Pack = Annotated[PackChoice, pack()]
MaxDocumentsPerSample = Annotated[
    int | None,
    declarations.integer(
        "--max-documents-per-sample",
        help="Pack at most N documents into a sample.",
        default="no limit",
        group=INDEX,
    ),
]
PadMultiple = Annotated[
    int | None,
    declarations.integer(
        "--pad-multiple",
        metavar="TOKENS",
        help="Reserve room in packed samples to pad each document to a multiple of TOKENS (2 x "
        "context-parallel size), for trainers that pad documents; Megatron itself does not.",
        default="no padding of documents",
        group=INDEX,
    ),
]
_SIZES_HELP = "Build N training, V validation and T test samples, such as 10M,2k; none is one epoch."
NumSamplesList = Annotated[
    list[Any] | None,
    declarations.text("--num-samples", parser=parse_sizes, metavar="N[,V[,T]]", help=_SIZES_HELP, group=SIZE),
]
NumSamples = Annotated[
    Any,
    declarations.text("--num-samples", parser=parse_sizes, metavar="N[,V[,T]]", help=_SIZES_HELP, group=SIZE),
]
Surplus = Annotated[
    float | None,
    declarations.number(
        "--surplus",
        metavar="FRACTION",
        help="Build this fraction more samples of each dataset than the blend draws, as Megatron's "
        "--mid-level-dataset-surplus does.",
        default=str(megatron_defaults.SURPLUS),
        group=SIZE,
    ),
]
TrainIters = Annotated[
    int | None, declarations.count("--train-iters", help="Train for N steps.", group=TRAINING)
]
TrainSamples = Annotated[
    int | None,
    declarations.count(
        "--train-samples", help="Train on N samples, instead of --train-iters.", group=TRAINING
    ),
]
GlobalBatchSize = Annotated[
    int | None,
    declarations.count("--global-batch-size", help="Read N samples in each training step.", group=TRAINING),
]
EvalInterval = Annotated[
    int | None,
    declarations.count(
        "--eval-interval",
        help="Validate every N steps.",
        default=f"{megatron_defaults.EVAL_INTERVAL} with --megatron 0.15, else required",
        group=TRAINING,
    ),
]
EvalIters = Annotated[
    int | None,
    declarations.count(
        "--eval-iters",
        help="Read N steps in each validation.",
        default=str(megatron_defaults.EVAL_ITERS),
        group=TRAINING,
    ),
]
EvalGlobalBatchSize = Annotated[
    int | None,
    declarations.count(
        "--eval-global-batch-size",
        help="Read N samples in each validation step.",
        default="as --global-batch-size",
        group=TRAINING,
    ),
]
StartEvalAtIter = Annotated[
    int | None,
    declarations.count("--start-eval-at-iter", help="Do not validate before step N.", group=TRAINING),
]
FullValidation = Annotated[
    bool,
    declarations.switch("--full-validation", help="Validate on exactly one epoch.", group=TRAINING),
]
SkipTrain = Annotated[
    bool,
    declarations.switch("--skip-train", help="Size the data for a job that only validates.", group=TRAINING),
]
Like = Annotated[
    str | None,
    declarations.text(
        "--like",
        metavar="DESCRIPTION.txt",
        help="Take the tokenizer identifiers, and settings not given here, from a description in the job's "
        "cache.",
        group=NAMES,
    ),
]
TokenizerIdentifiers = Annotated[
    str | None,
    declarations.text(
        "--tokenizer-identifiers",
        metavar="FILE.json",
        help="Read the tokenizer identifiers from the output of `python -m "
        "tokshard.dump_tokenizer_identifiers`.",
        group=NAMES,
    ),
]
MegatronVersion = Annotated[
    str | None,
    declarations.text(
        "--megatron",
        metavar="VERSION",
        help="Use the file names of this Megatron Core version: 0.15, 0.16, 0.17, 0.18, 0.19 or "
        "main-20260822.",
        group=NAMES,
    ),
]
TokenizerType = Annotated[
    str | None,
    declarations.text(
        "--tokenizer-type",
        metavar="TYPE",
        help="Name the job's tokenizer type: HuggingFaceTokenizer or NullTokenizer. Requires --megatron.",
        default="HuggingFaceTokenizer",
        group=NAMES,
    ),
]
TokenizerModel = Annotated[
    str | None,
    declarations.text(
        "--tokenizer-model",
        metavar="PATH",
        help="Set the job's tokenizer model, written exactly as in the job. Requires --megatron.",
        group=NAMES,
    ),
]
VocabSize = Annotated[
    int | None,
    declarations.count("--vocab-size", help="Set the vocabulary size of a NullTokenizer.", group=NAMES),
]
LocalTokenizer = Annotated[
    str | None,
    declarations.text(
        "--tokenizer",
        metavar="PATH",
        help="Compare the datasets with this copy of the job's tokenizer.",
        default="the path that the job uses, if it can be read here",
        group=NAMES,
    ),
]
AllowTokenizerMismatch = Annotated[
    bool,
    declarations.switch(
        "--allow-tokenizer-mismatch",
        help="Allow datasets with different tokenizers, or not the job's tokenizer, and record the mismatch.",
        group=RUN,
    ),
]
PathAs = Annotated[
    list[str] | None,
    declarations.text(
        "--path-as",
        metavar="LOCAL=TRAINING",
        help="Record data below LOCAL under the path TRAINING, which the job uses.",
        group=NAMES,
    ),
]
Variables = Annotated[
    list[str] | None,
    declarations.text(
        "--set",
        metavar="NAME=VALUE",
        help="Set a variable of the launch script's environment, for example SLURM_NNODES=8.",
        group=NAMES,
    ),
]
Iteration = Annotated[
    int | None,
    declarations.integer(
        "--iteration",
        help="The iteration of the checkpoint that the job resumes from. With --phase-transition-iterations, "
        "it decides the number of samples.",
        default="0",
        group=NAMES,
    ),
]
Rebuild = Annotated[
    bool,
    declarations.switch(
        "--rebuild", help="Replace files that are stale, damaged or from another program.", group=RUN
    ),
]
Workers = Annotated[
    int | None,
    declarations.integer("--workers", help="Use N threads.", default="all cores", group=RUN),
]
LockChoice = Literal["flock", "none"]
Lock = Annotated[
    LockChoice,
    declarations.choice(
        LockChoice,
        "--lock",
        help="Lock the output with flock, or not at all (none): for a file system that refuses locks, if "
        "only one run writes this output at a time.",
        group=RUN,
    ),
]
Force = Annotated[bool, declarations.switch("--force", help="Replace an existing output.", group=RUN)]
DryRun = Annotated[
    bool, declarations.switch("--dry-run", help="Print what would be done, and stop.", group=RUN)
]
AsJson = Annotated[bool, declarations.switch("--json", help="Print the result as JSON.", group=MESSAGES)]
Quiet = Annotated[bool, declarations.switch("--quiet", "-q", help="Print only errors.", group=MESSAGES)]
NoProgress = Annotated[
    bool, declarations.switch("--no-progress", help="Hide the progress bar.", group=MESSAGES)
]

CLUSTER = "Ray cluster"

Executor = Literal["local", "ray"]

ExecutorChoice = Annotated[
    Executor,
    declarations.choice(
        Executor, "--executor", help="Run on this machine or on a Ray cluster.", group=CLUSTER
    ),
]
RayAddress = Annotated[
    str | None,
    declarations.text(
        "--ray-address",
        metavar="auto|HOST:PORT",
        help="Connect to this cluster; auto is the one of this machine.",
        default="$RAY_ADDRESS, or auto",
        group=CLUSTER,
    ),
]
RayCpusPerTask = Annotated[
    float | None,
    declarations.number(
        "--ray-cpus-per-task",
        metavar="N",
        help="Reserve N CPUs for each task.",
        default=f"{RayOptions.cpus_per_task:g}",
        group=CLUSTER,
    ),
]
RayRetries = Annotated[
    int | None,
    declarations.integer(
        "--ray-retries",
        help="Retry work that was lost with its node up to N times.",
        default=str(RayOptions.retries),
        group=CLUSTER,
    ),
]


def parse_path_as(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (path here, path at training time) of ``--path-as``.

    Raises:
        UsageError: The form of a pair is invalid.

    Example:
        >>> parse_path_as(["out=/data/v1"])
        (('out', '/data/v1'),)
    """
    return _parse_pairs("--path-as", "LOCAL=TRAINING", "out=/data/v1", pairs)


def parse_moved(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (old path, new path) of ``--moved``.

    Raises:
        UsageError: The form of a pair is invalid.
    """
    return _parse_pairs("--moved", "OLD=NEW", "/scratch/data=/mnt/data", pairs)


def parse_variables(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (name, value) of ``--set``; values may be empty.

    Raises:
        UsageError: The form of a pair is invalid.

    Example:
        >>> parse_variables(["SLURM_NNODES=8", "EXTRA="])
        (('SLURM_NNODES', '8'), ('EXTRA', ''))
    """
    found = []
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not (separator and name.isidentifier()):
            raise UsageError(
                f"--set must be NAME=VALUE, got {pair!r}", hint="pass a pair such as --set SLURM_NNODES=8"
            )
        found.append((name, value))
    return tuple(found)


def _parse_pairs(
    option: str, form: str, example: str, pairs: list[str] | None
) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in pairs or []:
        first, separator, second = pair.partition("=")
        if not (first and separator and second):
            raise UsageError(
                f"{option} must be {form}, got {pair!r}", hint=f"pass a pair such as {option} {example}"
            )
        found.append((first, second))
    return tuple(found)


def ray_options(
    executor: Executor,
    address: str | None,
    cpus_per_task: float | None,
    retries: int | None,
    *,
    workers: int | None,
) -> RayOptions | None:
    """Return the options of the Ray cluster, or None to run on this machine.

    Raises:
        UsageError: A value is invalid, or requires ``--executor ray``.
    """
    given = {"--ray-address": address, "--ray-cpus-per-task": cpus_per_task, "--ray-retries": retries}
    if executor == "local":
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} requires --executor ray")
        return None
    if workers is not None and workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")
    return RayOptions(
        address=address,
        cpus_per_task=RayOptions.cpus_per_task if cpus_per_task is None else cpus_per_task,
        retries=RayOptions.retries if retries is None else retries,
        tasks=workers,
    )
