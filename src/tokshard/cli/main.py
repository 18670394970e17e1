"""The ``tokshard`` command. Importing it must stay light: subcommands import what they need when run."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Annotated

import typer

from tokshard.cli import failures, megatron, terminal
from tokshard.cli.commands import HELP_NAMES, CommandGroup
from tokshard.version import __version__

# Without rich: its import is most of the time that the list of commands would take.
app = typer.Typer(
    name="tokshard",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokshard {__version__}")
        raise typer.Exit


_HELP = """From raw text to the token shards that each rank of a pre-training job reads.

\b
Examples:
  tokshard tokenize corpus.jsonl --tokenizer tokenizer.json
  tokshard blend 0.7 data/web 0.3 data/books --seq-length 4096 --num-samples 1M -o mix
  tokshard inspect corpus
"""


@app.callback(help=_HELP)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take what stands before a subcommand."""


def main() -> None:
    """Run the command line."""
    atexit.register(gc.freeze)  # else what ends with the process anyway is searched for garbage, for 0.1 s
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here uses numpy's BLAS and its threads
    terminal.open_closed_streams()
    as_json = failures.wants_json(sys.argv[1:])
    arguments = _arguments(as_json=as_json)
    try:
        sys.exit(app(args=arguments, prog_name="tokshard", standalone_mode=False))
    except failures.PARSER_ERROR as error:
        sys.exit(failures.report_parser(error, as_json=as_json))


def _arguments(*, as_json: bool) -> list[str]:
    try:
        with failures.reported(as_json=as_json):
            return megatron.translate(sys.argv[1:])
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
