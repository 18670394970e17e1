"""The ``tokshard`` command: its subcommands, each imported when it is called, and Megatron's spellings.

Importing this module must stay light: the list of commands imports none of them.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tokshard.cli import failures, terminal
from tokshard.errors import UsageError
from tokshard.version import __version__

_MEGATRON_PRESET = "megatron"

# Options of preprocess_data.py that change nothing here, with the number of values each takes.
_IGNORED = {"--log-interval": 1, "--keep-sequential-samples": 0}


def translate_megatron_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line in our own spellings.

    Only ``tokenize`` with ``--preset megatron`` is changed; everything else is returned as it is.

    Raises:
        UsageError: An option of preprocess_data.py that has no equal here.

    Example:
        >>> translate_megatron_options(["tokenize", "--preset=megatron", "--json-keys", "a", "b"])
        ['tokenize', '--preset=megatron', '--field', 'a', '--field', 'b']
    """
    words = list(arguments)
    if words[:1] != ["tokenize"] or not _has_preset(words):
        return words
    result = []
    position = 0
    while position < len(words):
        name, separator, value = words[position].partition("=")
        position += 1
        if name not in _TRANSLATIONS and name not in _IGNORED:
            result.append(words[position - 1])
            continue
        values = [value] if separator else []
        wanted = _IGNORED.get(name, 1)
        while position < len(words) and not words[position].startswith("--"):
            if len(values) >= wanted and name != "--json-keys":
                break
            values.append(words[position])
            position += 1
        if name in _TRANSLATIONS:
            result += _TRANSLATIONS[name](values)
    return result


def _has_preset(words: Sequence[str]) -> bool:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(
        word == f"--preset={_MEGATRON_PRESET}" or (word == "--preset" and value == _MEGATRON_PRESET)
        for word, value in pairs
    )


def _tokenizer_type(values: list[str]) -> list[str]:
    if values != ["HuggingFaceTokenizer"]:
        _refuse(f"--tokenizer-type {' '.join(values)}", "only HuggingFaceTokenizer has an equal here")
    return []


def _partitions(values: list[str]) -> list[str]:
    if values != ["1"]:
        _refuse(
            f"--partitions {' '.join(values)}",
            "Megatron deals lines round-robin to partitions; tokshard keeps the order of the input and "
            "uses all cores without them: leave the option out",
        )
    return []


def _split_sentences(_: list[str]) -> list[str]:
    _refuse(
        "--split-sentences", "split the text beforehand: a list of texts is a document of several sequences"
    )
    return []


def _refuse(option: str, why: str) -> None:
    raise UsageError(f"{option} has no equal in tokshard", hint=why)


_TRANSLATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "--input": lambda values: values,
    "--output-prefix": lambda values: ["--output", *values],
    "--json-keys": lambda values: [word for value in values for word in ("--field", value)],
    "--tokenizer-type": _tokenizer_type,
    "--tokenizer-model": lambda values: ["--tokenizer", *values],
    "--partitions": _partitions,
    "--split-sentences": _split_sentences,
}


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
            return translate_megatron_options(sys.argv[1:])
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
