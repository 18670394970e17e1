"""The ``tokshard`` command: its subcommands, each imported when it is called.

Importing this module must stay light: the list of commands imports none of them.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tokshard.cli import failures, help_page, megatron_options, terminal
from tokshard.errors import UsageError
from tokshard.version import __version__


@dataclass(frozen=True, slots=True)
class Entry:
    """A subcommand.

    Attributes:
        module: The module of this package that has a function of the same name.
        summary: The first line of that function's docstring.
        settings: More settings of its context.
    """

    module: str
    summary: str
    settings: dict[str, Any] = field(default_factory=dict)


COMMANDS = {
    "tokenize": Entry("tokenize", "Tokenize text into a Megatron indexed dataset."),
    "merge": Entry(
        "merge",
        "Concatenate indexed datasets, byte-identical to Megatron's merge, or shuffle their documents.",
    ),
    "export": Entry("export", "Export a dataset or samples in the format of another trainer."),
    "convert": Entry(
        "convert", "Convert token files of nanogpt, OLMo-core or datatrove into an indexed dataset."
    ),
    "build-indices": Entry(
        "build_indices", "Build the sample indexes that a Megatron job would build when it starts."
    ),
    "blend": Entry("blend", "Mix datasets by weight: build their indexes and the order of the blend."),
    "shard-plan": Entry("shard_plan", "Plan which samples each rank of a training job reads at each step."),
    "replan": Entry(
        "replan", "Continue a plan with another number of GPUs, other batch sizes or a new blend."
    ),
    "diff": Entry(
        "diff",
        "Compare two plans, blends or index caches: the fields, the first difference, and counts per "
        "dataset.",
    ),
    "doctor": Entry(
        "doctor",
        "Check a Megatron launch script: what its data arguments will do, and which cached indexes it "
        "will find.",
        {"ignore_unknown_options": True},
    ),
    "verify": Entry(
        "verify", "Verify a dataset, index cache, blend, plan or export against its recorded digests."
    ),
    "trace": Entry(
        "trace", "Trace a training step to its source files and lines, or a line to every step that reads it."
    ),
    "inspect": Entry("inspect", "Inspect a dataset, index cache, blend, plan or tokenizer."),
}
"""The commands that read or write data, in the order of a project."""


class CommandGroup(TyperGroup):
    """The whole command line; it imports one command at a time."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += help_page.help_options()

    def summaries(self) -> dict[str, str]:
        """Return the summary of each command."""
        return {name: entry.summary for name, entry in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of the class above
        """Return the names of all commands."""
        return list(self.summaries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as above
        """Return a command, or None if there is none of this name."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else _load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, and its arguments."""
        name = args[0]
        if not ctx.resilient_parsing and name not in self.summaries():
            from tokshard.cli.parser_errors import closest

            options = (option for each in self.params for option in each.opts)
            found = closest(name, [*self.summaries(), *options])
            hint = f"run `tokshard {found}`" if found else "run `tokshard --help` to list the commands"
            raise UsageError(f'unknown command "{name}"', hint=hint)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ARG002 - as above
        """Return the options or commands that a text can be completed to, without importing a command."""
        commands = [TyperCommand(name, short_help=text) for name, text in self.summaries().items()]
        group = TyperGroup(params=self.params, commands=commands)
        return group.shell_complete(typer.Context(group), incomplete)

    def main(self, args: Sequence[str] | None = None, *_: Any, **settings: Any) -> NoReturn:
        """Run a command line and exit, with messages and exit codes of our own."""
        words = list(sys.argv[1:] if args is None else args)
        settings |= {"prog_name": "tokshard", "standalone_mode": False}
        try:
            # The outer one is for an error document that cannot be written.
            with failures.reported(), failures.reported(as_json=failures.wants_json(words)):
                code = self._run(megatron_options.translate(words) or ["--help"], settings)
        except typer.Exit as stop:
            code = stop.exit_code
        sys.exit(code)

    def _run(self, words: list[str], settings: dict[str, Any]) -> Any:
        try:
            return super().main(words, **settings)
        except typer.TyperException as error:
            from tokshard.cli.parser_errors import explained

            raise explained(error, self.get_command(None, words[0]) or self, words) from None


def _load(name: str, entry: Entry) -> Any:
    from tokshard.cli.generate import command

    module = import_module(f"tokshard.cli.{entry.module}")
    return command(name, getattr(module, entry.module), entry.settings)


# Without rich: its import is most of the time that the list of commands would take.
app = typer.Typer(
    name="tokshard",
    cls=CommandGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"tokshard {__version__}")
        raise typer.Exit


_ROOT_HELP = """Prepare pre-training data: raw text to the samples that each rank of a Megatron job reads.

Examples:
    tokshard tokenize sample_data/stories.jsonl -o stories \\
        --tokenizer sample_data/tokenizer.json
    tokshard inspect stories
    tokshard blend 1 stories --split 1,0,0 --seq-length 256 \\
        --num-samples 1k -o mix
    tokshard shard-plan mix --data-parallel 8 -o plan
    tokshard inspect plan --rank 3 --step 10
"""


@app.callback(help=_ROOT_HELP, add_help_option=False)
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the version.",
            rich_help_panel=help_page.MESSAGES,
        ),
    ] = False,
) -> None:
    """Parse the options before the subcommand."""


def main() -> None:
    """Run the command line."""
    atexit.register(gc.freeze)  # else what ends with the process anyway is searched for garbage, for 0.1 s
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here uses numpy's BLAS and its threads
    terminal.open_closed_streams()
    app()
