"""Job arrays on the command line of ``tokenize``: their options, their command lines, and their reports."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import terminal
from tokshard.cli.tokenizeview import show_report

if TYPE_CHECKING:
    from tokshard import ArrayTaskReport

_PANEL = "Job arrays"
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


def command_words(context: typer.Context) -> list[str]:
    """Return a command line as it was given, in our spellings, without the options of the job file."""
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
    if any(name.startswith("-") for name in inputs):
        return [*words, "--", *inputs]
    return [*words[:1], *inputs, *words[1:]]


def _option_words(option: Any, value: Any) -> list[str]:
    """Return the words that give an option this value."""
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    words = []
    for item in value if isinstance(value, list) else [value]:
        text = item.value if isinstance(item, StrEnum) else str(item)
        words += [f"{option.opts[0]}={text}"] if text.startswith("-") else [option.opts[0], text]
    return words


def show_task(report: ArrayTaskReport) -> None:
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
