"""Option declarations that several commands share: messages, progress, executors, and indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli.quantities import parse_count, parse_sizes
from tokshard.cluster.options import DEFAULT_CPUS_PER_TASK, DEFAULT_RETRIES, RayOptions
from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes, TrainingArguments, training_sizes

if TYPE_CHECKING:
    from tokshard.index_cache.likeness import Likeness
    from tokshard.tokenization.workers.ray import RayExecutor

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
        show_default="969, 30, 1",
        rich_help_panel=INDEX,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of all shuffles.", show_default="1234", rich_help_panel=INDEX),
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
        show_default="0.005",
        rich_help_panel=SIZE,
    ),
]
TrainIters = Annotated[int | None, _count("--train-iters", "Steps.", TRAINING)]
TrainSamples = Annotated[int | None, _count("--train-samples", "Samples, instead of steps.", TRAINING)]
GlobalBatchSize = Annotated[int | None, _count("--global-batch-size", "Samples of a step.", TRAINING)]
EvalInterval = Annotated[int | None, _count("--eval-interval", "Steps between validations (1000).", TRAINING)]
EvalIters = Annotated[int | None, _count("--eval-iters", "Steps of a validation (100).", TRAINING)]
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
        help="What scripts/dump_tokenizer_identifiers.py printed.",
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
        show_default=f"{DEFAULT_CPUS_PER_TASK:g}",
        rich_help_panel=CLUSTER,
    ),
]
RayRetries = Annotated[
    int | None,
    typer.Option(
        "--ray-retries",
        metavar="N",
        help="How often work that was lost with its node is given out again.",
        show_default=str(DEFAULT_RETRIES),
        rich_help_panel=CLUSTER,
    ),
]


def given_training_sizes(
    *,
    train_iters: int | None,
    train_samples: int | None,
    global_batch_size: int | None,
    eval_interval: int | None,
    eval_iters: int | None,
    **others: Any,
) -> Sizes | None:
    """Return the sizes that the training arguments make; None if no such argument is given.

    Raises:
        UsageError: They are not complete.
    """
    given = {"train_iters": train_iters, "train_samples": train_samples, **others}
    if train_iters is None and train_samples is None:
        options = {
            "global_batch_size": global_batch_size,
            "eval_interval": eval_interval,
            "eval_iters": eval_iters,
        }
        for name, value in {**options, **others}.items():
            if value not in (None, False):
                raise UsageError(
                    f"--{name.replace('_', '-')} needs --train-iters or --train-samples",
                    hint="give the arguments of the job as it will be started",
                )
        return None
    if global_batch_size is None:
        raise UsageError("the sizes of a job need --global-batch-size")
    if eval_interval is not None:
        given["eval_interval"] = eval_interval
    if eval_iters is not None:
        given["eval_iters"] = eval_iters
    return training_sizes(TrainingArguments(global_batch_size=global_batch_size, **given))


def training_words(**given: Any) -> list[str]:
    """Return the training arguments that are given, as words of a launch command.

    Example:
        >>> training_words(train_iters=50, eval_iters=None, skip_train=True)
        ['--train-iters', '50', '--skip-train']
    """
    words = []
    for name, value in given.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def check_path_as(pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> None:
    """Refuse pairs of ``--path-as`` that change nothing: the names would not be those that are meant.

    Args:
        pairs: See :func:`parse_path_as`.
        paths: The datasets and the cache, as they are written.

    Raises:
        UsageError: There is one.
    """
    for local, training in pairs:
        root = local.rstrip("/") + "/"
        if not any(path == local or path.startswith(root) for path in paths):
            raise UsageError(
                f"--path-as {local}={training} changes nothing: no dataset is written so",
                hint="for example data/web is not under ./data",
            )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """What is said about the tokenizer of the training job, on which the names of cache files depend."""

    like: str | None = None
    tokenizer_identifiers: str | None = None
    megatron: str | None = None
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        ways = {
            "--like": self.like,
            "--tokenizer-identifiers": self.tokenizer_identifiers,
            "--megatron": self.megatron,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} say the same thing: give one of them")
        details = {
            "--tokenizer-type": self.tokenizer_type,
            "--tokenizer-model": self.tokenizer_model,
            "--vocab-size": self.vocab_size,
        }
        for name, value in details.items():
            if value is not None and self.megatron is None:
                raise UsageError(
                    f"{name} is of no use without --megatron",
                    hint="the names of Megatron's cache files depend on its version",
                )

    def likeness(self) -> Likeness | None:
        """Return what the description that ``--like`` names tells of its job.

        Raises:
            InputError: It cannot be read, or is no description.
        """
        from tokshard.index_cache.likeness import read_likeness

        return None if self.like is None else read_likeness(self.like)

    def identifiers(self) -> dict[str, Any] | None:
        """Return the tokenizer's identifiers; None if nothing is said about it.

        Raises:
            InputError: A file cannot be read or holds none.
            UsageError: There is no such preset.
        """
        from tokshard.index_cache import identifiers

        if (likeness := self.likeness()) is not None:
            return likeness.tokenizer
        if self.tokenizer_identifiers is not None:
            return identifiers.read_identifiers(self.tokenizer_identifiers)
        if self.megatron is None:
            return None
        details = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        return identifiers.megatron_identifiers(
            self.megatron,
            self.tokenizer_type or identifiers.HUGGING_FACE,
            self.tokenizer_model,
            **details,
        )


def neutral_identifiers(prefix: str) -> dict[str, Any]:
    """Return identifiers of our own for data whose job is not known: no Megatron has such names.

    Args:
        prefix: A dataset, of whose manifest the tokenizer's identity is taken where it has one.
    """
    from tokshard.dataset.manifest import read_manifest
    from tokshard.index_cache.identifiers import NEUTRAL

    manifest = read_manifest(prefix)
    identity = manifest.tokenizer if manifest is not None else None
    return {"class": NEUTRAL, **({"kind": identity.kind, "sha256": identity.sha256} if identity else {})}


def ray_options(
    executor: ExecutorKind,
    address: str | None,
    cpus_per_task: float | None,
    retries: int | None,
    *,
    workers: int | None,
) -> RayOptions | None:
    """Return which Ray cluster to use; None for this machine.

    Args:
        executor: The value of ``--executor``.
        address: The value of ``--ray-address``, if given.
        cpus_per_task: The value of ``--ray-cpus-per-task``, if given.
        retries: The value of ``--ray-retries``, if given.
        workers: With Ray the most tasks at a time.

    Raises:
        UsageError: A value cannot be meant, or is for a cluster that is not to be used.
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
        cpus_per_task=DEFAULT_CPUS_PER_TASK if cpus_per_task is None else cpus_per_task,
        retries=DEFAULT_RETRIES if retries is None else retries,
        tasks=workers,
    )


def ray_executor(options: RayOptions | None, *, alone: bool) -> RayExecutor | None:
    """Return what encodes on a Ray cluster; None for this machine.

    Args:
        options: Which cluster.
        alone: Whether nothing is said of job arrays, which divide the work in another way.

    Raises:
        UsageError: Something is.
    """
    if options is None:
        return None
    if not alone:
        raise UsageError(
            "--executor ray and the options of job arrays are two ways to divide the work",
            hint="leave out one of them",
        )
    from tokshard.tokenization.workers.ray import RayExecutor

    return RayExecutor(options)
