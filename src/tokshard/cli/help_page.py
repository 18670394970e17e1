"""Help of commands: plain text that fits the terminal, with the common options first.

The option parser provides the options; this module alone decides on the layout.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from tokshard.cli import terminal
from tokshard.core.formatting import counted
from tokshard.core.options import RUN

MESSAGES = "Messages and help"
"""The group of options that is always common, and the last one."""

_NARROWEST, _WIDEST = 60, 110
_NARROW_COLUMN, _WIDE_COLUMN = 30, 36
_WIDE = 100
_OPTIONS = "Options"
_HELP_ALL = "--help-all"
_EXAMPLES = "\n\nExamples:\n"
_FEWEST_RARE = 4
"""Fewer rare options are worth no second page."""
_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_NO_BREAK = "\x00"


class OptionParameter(TyperOption):
    """An option of a command."""

    is_rare = False
    """Whether ``--help-all`` alone shows it."""


class Command(TyperCommand):
    """A command with our help."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += help_options()


def help_options() -> list[Any]:
    """Return the options ``-h`` and ``--help-all`` of a command."""

    def show(ctx: Any, option: Any, passed: bool) -> None:
        if passed and not ctx.resilient_parsing:
            terminal.say(page(ctx, everything=option.opts == [_HELP_ALL]))
            raise typer.Exit

    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": show}
    settings["rich_help_panel"] = MESSAGES
    return [
        TyperOption(param_decls=["-h", "--help"], help="Print help.", **settings),
        TyperOption(param_decls=[_HELP_ALL], help="Print help with all options.", **settings),
    ]


def page(ctx: Any, *, everything: bool = False) -> str:
    """Return the help of a command.

    Args:
        ctx: The context of the command.
        everything: Whether rare options are listed, too.
    """
    writer = _Writer()
    command = ctx.command
    about, _, examples = (command.help or "").partition(_EXAMPLES)
    for paragraph in about.split("\n\n"):
        writer.paragraph(paragraph)
    options = options_of(command)
    common = common_options(command)
    shown = options if everything else common
    if len(common) == len(options):
        shown = [option for option in shown if option.opts != [_HELP_ALL]]
    writer.usage(ctx.command_path, command)
    writer.table("Arguments", [(_argument(each), each.help) for each in _arguments(command)])
    if (commands := getattr(command, "summaries", None)) is not None:
        writer.table("Commands", list(commands().items()))
    for title in dict.fromkeys(map(_title, options)):
        writer.table(title, [_row(option, aliases=everything) for option in shown if _title(option) == title])
    if examples:
        writer.heading("Examples")
        writer.lines += textwrap.indent(textwrap.dedent(examples).rstrip(), "  ").split("\n")
    if not everything and len(common) < len(options):
        more = counted(len(options) - len(common), "more option")
        writer.paragraph(f"{more}: run `{ctx.command_path} {_HELP_ALL}`.")
    return "\n".join(writer.lines).strip()


def names_of(option: Any) -> list[str]:
    """Return all names of an option, those that switch it off included."""
    return [*option.opts, *option.secondary_opts]


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument" and not each.hidden]


def options_of(command: Any) -> list[Any]:
    """Return the visible options of a command: those without a title first, those that many share last."""
    found = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    return sorted(found, key=lambda option: {None: -1, RUN: 1, MESSAGES: 2}.get(option.rich_help_panel, 0))


def common_options(command: Any) -> list[Any]:
    """Return the options that ``--help`` shows."""
    options = options_of(command)
    common = [option for option in options if not getattr(option, "is_rare", False)]
    return options if len(options) - len(common) < _FEWEST_RARE else common


def _title(option: Any) -> str:
    return option.rich_help_panel or _OPTIONS


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _row(option: Any, *, aliases: bool) -> tuple[str, str]:
    short = [name for name in option.opts if not name.startswith("--")]
    main, *others = [name for name in option.opts if name.startswith("--")]
    names = f"{short[0]}, {main}" if short else f"    {main}"
    if option.secondary_opts:
        names += f" / {option.secondary_opts[0]}"
    if not option.is_flag:
        names += f" {option.metavar or option.name.upper()}"
    sentences = [option.help]
    if option.multiple:
        sentences.append("Can be repeated.")
    if isinstance(option.show_default, str):
        sentences.append(f"[default: {option.show_default}]")
    if aliases and others:
        sentences.append(f"[alias: {', '.join(others)}]")
    return names, " ".join(sentences)


class _Writer:
    """Lines of help, as wide as the terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
        self._column = _WIDE_COLUMN if self._width >= _WIDE else _NARROW_COLUMN
        self._styled = (
            sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )

    def paragraph(self, text: str) -> None:
        """Write a paragraph after an empty line."""
        self.lines += ["", *_wrapped(text, self._width)]

    def heading(self, title: str) -> None:
        """Write a title after an empty line."""
        self.lines += ["", self._style(f"{title}:", _BOLD)]

    def usage(self, path: str, command: Any) -> None:
        """Write the line that shows how a command is called."""
        required = [option for option in options_of(command) if option.required]
        words = ["[OPTIONS]", *(f"{option.opts[0]}{_NO_BREAK}{option.metavar}" for option in required)]
        for argument in _arguments(command):
            shown = _argument(argument)
            words.append(shown if argument.required or shown.startswith("[") else f"[{shown}]")
        if hasattr(command, "summaries"):
            words.append("COMMAND ...")
        indent = " " * len(f"Usage: {path} ")
        first, *rest = _wrapped(" ".join(words), self._width - len(indent))
        self.lines += [
            "",
            f"{self._style('Usage:', _BOLD)} {path} {first}",
            *(indent + line for line in rest),
        ]

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Write names with their descriptions in a column beside them."""
        if not rows:
            return
        self.heading(title)
        widest = max(len(name) for name, _ in rows) + 4
        column = min(widest, self._column) if title in {"Arguments", "Commands"} else self._column
        for name, text in rows:
            described = _wrapped(text, self._width - column)
            label = f"  {self._style(name, _CYAN)}"
            if len(name) + 4 <= column:
                self.lines.append(f"{label}{' ' * (column - 2 - len(name))}{described.pop(0)}")
            else:
                self.lines.append(label)
            self.lines += [" " * column + line for line in described]

    def _style(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._styled else text


def _wrapped(text: str, width: int) -> list[str]:
    def kept_together(remark: re.Match[str]) -> str:
        return remark[0].replace(" ", _NO_BREAK) if len(remark[0]) <= width else remark[0]

    # Remarks such as [default: 64 MB] stay on one line where they fit one.
    text = re.sub(r"\[\w+: .*?\](?= |$)", kept_together, " ".join(text.split()))
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]
