"""The subcommands by their names: each is imported when it is called, and the list of them needs none."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Entry:
    """A subcommand.

    Attributes:
        module: The module of this package that has a function of the same name.
        summary: What it does, in one line: the first of the function's docstring.
        settings: More settings of its context.
    """

    module: str
    summary: str
    settings: dict[str, Any] = field(default_factory=dict)


COMMANDS = {
    "tokenize": Entry("tokenize", "Turn text into a Megatron indexed dataset."),
    "merge": Entry("merge", "Concatenate indexed datasets. The output is byte-identical to Megatron's."),
    "build-indices": Entry(
        "build_indices",
        "Build the document, sample and shuffle indexes that a Megatron job would build at its start.",
    ),
    "blend": Entry(
        "blend",
        "Mix datasets: build all their indexes, the order of the blend, and a certificate of what it holds.",
    ),
    "shard-plan": Entry(
        "shard_plan",
        "Plan which samples every rank of a job reads: the same number of steps everywhere, nothing twice.",
    ),
    "diff": Entry(
        "diff",
        "Compare two plans, blends or index caches: where they part, and which samples move, come and go.",
    ),
    "doctor": Entry(
        "doctor",
        "Say what a Megatron job will find in its cache of indexes, and what its data arguments will do.",
        {"ignore_unknown_options": True},
    ),
    "verify": Entry("verify", "Verify a dataset, index cache, blend or plan against its recorded digests."),
    "trace": Entry(
        "trace",
        "Trace a step back to its files and lines, or a line to every sample, step and rank that reads it.",
    ),
    "inspect": Entry(
        "inspect",
        "Inspect a dataset, index cache, blend, plan or tokenizer.",
    ),
}
"""In the order of the data's way."""


class CommandGroup(TyperGroup):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of the class above
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as above
        """Return a command, or None where there is none of this name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        function = getattr(import_module(f"tokshard.cli.{entry.module}"), entry.module)
        command.command(cmd_name, context_settings={**HELP_NAMES, **entry.settings})(function)
        return typer.main.get_command(command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as above
        """Write the table of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])
