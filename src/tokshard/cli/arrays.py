"""Job arrays on the command line of ``tokenize``: their options, their job files, and what they say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import terminal
from tokshard.cli.tokenizeview import show_report
from tokshard.errors import UsageError
from tokshard.tokenization.options import output_prefix

if TYPE_CHECKING:
    from tokshard.tokenization.job_array.report import ArrayReport
    from tokshard.tokenization.report import TokenizeReport

_PANEL = "Job arrays"
_STDIN = "-"
# What is said of the array, and not of the work of a task.
_OWN_OPTIONS = frozenset({"array_task", "tasks", "emit", "image", "as_json", "dry_run"})


class Scheduler(StrEnum):
    """Choices of --emit."""

    slurm = "slurm"
    k8s = "k8s"


ArrayTaskText = Annotated[
    str | None,
    typer.Option(
        "--array-task",
        metavar="I/N|auto|auto/N",
        help="Encode share I of N, from 0/N; auto asks Slurm, Kubernetes or MPI.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Finish = Annotated[
    bool | None,
    typer.Option(
        "--finish/--no-finish",
        help="Only put together what tasks have encoded; or leave that to a later --finish.",
        show_default="the last task does it",
        rich_help_panel=_PANEL,
    ),
]
Emit = Annotated[
    Scheduler | None,
    typer.Option(
        "--emit",
        help="Print a job file that runs this command in --tasks tasks.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks",
        metavar="N",
        min=1,
        help="With --emit and --finish: how many tasks.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="With --emit k8s: the container image.",
        show_default="a placeholder",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class ArrayWish:
    """What is wanted of a job array.

    Attributes:
        array_task: The value of ``--array-task``.
        finish: True to put together, False to leave that to a later run, None for the last task to do it.
        emit: The scheduler that a job file is wanted for.
        tasks: How many tasks there are.
        image: The container image.

    Raises:
        UsageError: The options do not fit together.
    """

    array_task: str | None
    finish: bool | None
    emit: Scheduler | None
    tasks: int | None
    image: str | None

    def __post_init__(self) -> None:
        if self.array_task is not None and (self.finish or self.emit is not None):
            raise UsageError(
                "--array-task encodes a share; --finish and --emit are for runs that encode nothing",
                hint="leave out one of them",
            )
        if self.finish and self.emit is not None:
            raise UsageError("--emit prints a job file and --finish puts parts together: leave out one")
        if self.finish is False and self.array_task is None and self.emit is None:
            raise UsageError("--no-finish has a meaning only with --array-task or --emit")
        if self.emit is not None and self.tasks is None:
            raise UsageError("--emit needs the number of tasks", hint="for example --tasks 64")
        if self.tasks is not None and self.emit is None and not self.finish:
            raise UsageError(
                "--tasks has a meaning only with --emit or --finish; a task says --array-task I/N"
            )
        if self.image is not None and self.emit is not Scheduler.k8s:
            raise UsageError("--image has a meaning only with --emit k8s")


def job_file(context: typer.Context, wish: ArrayWish) -> str:
    """Return the job file that runs a command line in tasks.

    Args:
        context: The command line of ``tokenize``.
        wish: With a scheduler and a number of tasks.

    Raises:
        UsageError: The command cannot be run in tasks.
    """
    from tokshard.storage.paths import is_remote
    from tokshard.tokenization.job_array import jobfiles

    given = context.params
    output = output_prefix(given["inputs"], given["output"])
    if given["workers"] is None:
        raise UsageError("--emit needs to know how many cores a task gets", hint="for example --workers 8")
    if given["as_json"]:
        raise UsageError("--emit prints a job file, which is no JSON: leave out --json")
    if _STDIN in given["inputs"]:
        raise UsageError(
            "standard input can be read once, by one process: its units cannot be dealt to tasks",
            hint="write it to a file that all tasks see",
        )
    if is_remote(output) and given["staging"] is None:
        raise UsageError(
            f"the tasks need a common place to make {output} in before it is uploaded",
            hint="name a directory that all of them see: --staging DIR",
        )
    job = jobfiles.ArrayJob(
        command=("tokshard", *_words(context)),
        name=os.path.basename(output),
        directory=jobfiles.job_directory(),
        tasks=wish.tasks or 1,
        cores=given["workers"],
    )
    if wish.emit is Scheduler.slurm:
        return jobfiles.slurm_script(job)
    return jobfiles.kubernetes_manifest(job, wish.image or jobfiles.IMAGE)


def _words(context: typer.Context) -> list[str]:
    """Return a command line as it was given, in our spellings, without what only makes a job file."""
    words = [str(context.info_name)]
    inputs: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in _OWN_OPTIONS or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            inputs = value
        else:
            words += _option_words(parameter, value)
    if any(one.startswith("-") for one in inputs):
        return [*words, "--", *inputs]
    return [*words[:1], *inputs, *words[1:]]


def _option_words(option: Any, value: Any) -> list[str]:
    """Return the words that give an option this value."""
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    words = []
    for one in value if isinstance(value, list) else [value]:
        text = one.value if isinstance(one, StrEnum) else str(one)
        words += [f"{option.opts[0]}={text}"] if text.startswith("-") else [option.opts[0], text]
    return words


def run_task(wish: ArrayWish, inputs: list[str], output: str | None, **arguments: Any) -> ArrayReport:
    """Be the task of an array that ``--array-task`` names; the arguments are those of the library."""
    from tokshard.tokenization.job_array.job import tokenize_share
    from tokshard.tokenization.job_array.task import parse_array_task

    task = parse_array_task(wish.array_task or "", os.environ)
    return tokenize_share(inputs, output, task=task, finish=wish.finish is None, **arguments)


def finish_array(wish: ArrayWish, inputs: list[str], output: str | None, **arguments: Any) -> TokenizeReport:
    """Put together what the tasks have encoded; the arguments are those of the library."""
    from tokshard.tokenization.job_array.job import finish_tokenization

    return finish_tokenization(inputs, output, tasks=wish.tasks, **arguments)


def show_task(report: ArrayReport) -> None:
    """Print what a task has done, and the output if it has put that together."""
    name = f"task {report.task} of {report.tasks}"
    if report.state == "elsewhere":
        terminal.say(f"{name}: {terminal.safe(report.holder or '')} does all that is left to do")
    if report.state in {"encoded", "published"}:
        counts = (terminal.counted(report.documents, "document"), terminal.counted(report.tokens, "token"))
        before = f"; {terminal.count(report.units_resumed)} were done before" if report.units_resumed else ""
        units = terminal.counted(report.units, "unit")
        terminal.say(f"{name}: {units} encoded, {', '.join(counts)}{before}")
    if report.state == "encoded":
        terminal.say("the task that ends last puts the output together, or the same command with --finish")
    if report.result is not None:
        show_report(report.result)
