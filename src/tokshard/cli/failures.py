"""Errors of the command line: a message, a hint, and an exit code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any

import typer

from tokshard.cli import terminal
from tokshard.core.codec import Document, Key
from tokshard.core.formatting import visible
from tokshard.errors import Cancelled, StorageError, TokshardError, UsageError

BUG_EXIT_CODE = 70
_BROKEN_PIPE_EXIT_CODE = 141  # as of a program that SIGPIPE ends
PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of the option parser's errors: typer has no public name for it."""


@dataclass(frozen=True)
class MissingUnitsDetail:
    """Units of one input that are not finished."""

    input: Annotated[str, Key("input", "The input.")]
    units: Annotated[tuple[int, ...], Key("units", "The numbers of the units.", minimum=0)]
    open_from: Annotated[
        int | None,
        Key(
            "open_from",
            "The first unit that may exist or not, of a compressed input that nobody has read to its end.",
            minimum=0,
        ),
    ]


@dataclass(frozen=True)
class Problem:
    """An error, in a document or an event."""

    error: Annotated[str, Key("error", "The class of the error in `tokshard.errors`, or that of a bug.")]
    message: Annotated[str, Key("message", "One sentence that names what, where and the value.")]
    hint: Annotated[str | None, Key("hint", "What to do next.")]
    exit_code: Annotated[int, Key("exit_code", "The exit code of the command.", minimum=1, maximum=255)]
    path: Annotated[str | None, Key("path", "The file.", omit_none=True)] = None
    line: Annotated[int | None, Key("line", "The line or row, from 1.", minimum=1, omit_none=True)] = None
    offset: Annotated[int | None, Key("offset", "The byte offset.", minimum=0, omit_none=True)] = None
    reason: Annotated[
        str | None, Key("reason", "The reason of a bad record: docs/bad-records.md.", omit_none=True)
    ] = None
    field: Annotated[str | None, Key("field", "The field of a format.", omit_none=True)] = None
    differences: Annotated[
        tuple[str, ...] | None,
        Key("differences", "What differs from the run that cannot be resumed.", omit_none=True),
    ] = None
    missing: Annotated[
        tuple[MissingUnitsDetail, ...] | None,
        Key("missing", "The units of a job array that are not finished.", omit_none=True),
    ] = None
    tasks: Annotated[
        tuple[int, ...] | None,
        Key("tasks", "With `--tasks`: the tasks of the array with missing units.", minimum=0, omit_none=True),
    ] = None


@dataclass(frozen=True)
class ErrorReport(Problem, Document):
    """An error of any command with `--json`, on stdout where the result would have been."""

    SCHEMA = "tokshard.error/1"


@contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Turn errors inside the block into messages and exit codes."""
    try:
        with _stoppable():
            yield
    except (typer.Exit, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a bug, or a library that panics: the traceback helps
        if (known := as_ours(error)) is not None:
            _report(known, as_json=as_json)
        elif isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # there is nobody to tell
        else:
            terminal.tell("".join(traceback.format_exception(error)).rstrip())
            terminal.tell("tokshard: this is a bug; please report it with the text above and the command")
        raise typer.Exit(exit_code_of(error)) from None


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, be it a good one or not.

    Example:
        >>> wants_json(["inspect", "web", "--json"]), wants_json(["inspect", "--", "--json"])
        (True, False)
    """
    words = list(arguments)
    return "--json" in words[: words.index("--") if "--" in words else len(words)]


def report_parser(error: Any, *, as_json: bool) -> int:
    """Report an error of the option parser; return the exit code."""
    error.show()
    if not as_json:
        return UsageError.exit_code
    command = error.ctx.command_path if error.ctx is not None else "tokshard"
    ours = UsageError(error.format_message(), hint=f"see {command} --help")
    try:
        with reported():
            terminal.say_json(ErrorReport(**details_of(ours)).to_json())
    except typer.Exit as stop:
        return stop.exit_code
    return ours.exit_code


def as_ours(error: BaseException) -> TokshardError | None:
    """Return what an error is in our words; None for a reader of our output who left, and for a bug."""
    if isinstance(error, TokshardError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return _cancelled(error.number if isinstance(error, _Stopped) else signal.SIGINT)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        # Reading what we wrote ourselves failed: an I/O error, or a file that went away meanwhile.
        return StorageError("read", str(error.filename or "a file"), error)
    return None


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ends by an error.

    Example:
        >>> exit_code_of(KeyboardInterrupt()), exit_code_of(RuntimeError())
        (130, 70)
    """
    if (known := as_ours(error)) is not None:
        return known.exit_code
    return _BROKEN_PIPE_EXIT_CODE if isinstance(error, BrokenPipeError) else BUG_EXIT_CODE


def details_of(error: TokshardError) -> dict[str, Any]:
    """Return everything that an error says, as the fields of a :class:`Problem`."""
    value: dict[str, Any] = {
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    for name in ("path", "line", "offset", "reason", "field", "differences", "tasks"):
        value[name] = getattr(error, name, None)
    missing = getattr(error, "missing", None)
    if missing is not None:
        value["missing"] = tuple(
            MissingUnitsDetail(units["input"], tuple(units["units"]), units["open_from"]) for units in missing
        )
    return value


def command_line() -> str:
    """Return the command that is running, as it can be typed again."""
    return shlex.join(["tokshard", *sys.argv[1:]])


def _report(error: TokshardError, *, as_json: bool) -> None:
    terminal.tell(f"error: {visible(error.message)}")
    if error.hint:
        terminal.tell(f"hint: {visible(error.hint)}")
    if as_json:
        terminal.say_json(ErrorReport(**details_of(error)).to_json())


def _cancelled(number: int) -> Cancelled:
    return Cancelled(
        "stopped; finished work is kept", signal_number=number, hint=f"resume with: {command_line()}"
    )


class _Stopped(KeyboardInterrupt):
    # No ``Exception``, so that no code takes it for a failure of its own.
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stoppable() -> Iterator[None]:
    # The first Ctrl-C or SIGTERM ends the block in order, and the second at once.
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda second, _: os._exit(128 + second))
        raise _Stopped(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped:
        previous.clear()  # a second signal ends the process at once until its very end
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
