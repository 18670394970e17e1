"""Errors of the command line: a message, a hint, and an exit code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType

import typer

from tokshard.cli import terminal
from tokshard.core.formatting import visible
from tokshard.errors import Cancelled, InputError, StorageError, TokshardError, chain_of, hint_of, known_error

_BUG_EXIT_CODE = 70
_BROKEN_PIPE_EXIT_CODE = 141  # as of a program that SIGPIPE ends


@contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Turn errors inside the block into messages and exit codes."""
    try:
        with _stoppable():
            yield
    except (typer.Exit, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a bug, or a library that panics: the traceback helps
        code = _BUG_EXIT_CODE
        if (known := as_ours(error)) is not None:
            _report(known, as_json=as_json)
            code = known.exit_code
        elif isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # there is nobody to tell
            code = _BROKEN_PIPE_EXIT_CODE
        else:
            terminal.tell("".join(traceback.format_exception(error)).rstrip())
            terminal.tell("tokshard: this is a bug; please report it with the text above and the command")
        raise typer.Exit(code) from None


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line, valid or not, has the option ``--json``.

    Example:
        >>> wants_json(["inspect", "web", "--json"]), wants_json(["inspect", "--", "--json"])
        (True, False)
    """
    words = list(arguments)
    return "--json" in words[: words.index("--") if "--" in words else len(words)]


def as_ours(error: BaseException) -> TokshardError | None:
    """Return an error as a :class:`TokshardError`; None for a closed pipe and for a bug."""
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, _Stopped) else signal.SIGINT
        command = shlex.join(["tokshard", *sys.argv[1:]])
        if sys.argv[1:2] == ["tokenize"]:
            message, hint = "stopped; finished work is kept", f"resume with: {command}"
        else:
            message, hint = "stopped", f"start again with: {command}"
        return Cancelled(message, signal_number=number, hint=hint)
    return known_error(error)


def _report(error: TokshardError, *, as_json: bool) -> None:
    if isinstance(error, InputError | StorageError) and _is_directory_deleted():
        error.message += " (the working directory was deleted)"
        error.hint = "change to an existing directory, or pass absolute paths"
    terminal.tell(f"error: {visible(error.message)}")
    if hint := hint_of(error):
        terminal.tell(f"hint: {visible(hint)}")
    if as_json:
        from tokshard.core.error_report import report_of

        terminal.say_json(report_of(error).to_json())


def _is_directory_deleted() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


class _Stopped(KeyboardInterrupt):
    # No ``Exception``, so that no code takes it for a failure of its own.
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stoppable() -> Iterator[None]:
    """Stop the block in order at the first Ctrl-C or SIGTERM, and end the process at the second one."""
    first = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        first = first or number
        if _is_running(unraisable.__code__, frame):  # an exception would be lost
            stop_later()
            return
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda second, _: os._exit(128 + second))
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        raise _Stopped(first)

    def stop_later() -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(each, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        # The signal came while Python ran a callback that must not raise (of a weak reference, say).
        if isinstance(lost.exc_value, _Stopped):
            stop_later()
        else:
            show(lost)

    show, sys.unraisablehook = sys.unraisablehook, unraisable
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as error:
        # Some code of Python wraps all errors: up to 3.11 the creation of a class, by ``__set_name__``.
        stopped = next((each for each in chain_of(error) if isinstance(each, _Stopped)), None)
        if stopped is None or (stopped is not error and as_ours(error) is not None):
            raise
        previous.clear()  # a second signal ends the process at once until its very end
        raise stopped from None
    finally:
        sys.unraisablehook = show
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_running(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
