"""The standard streams: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, TextIO

from tokshard.errors import StorageError

_ENCODING_ERRORS = "backslashreplace"
_LABEL = re.compile(r" *(error|warning|hint|note):(?= )")
_COLORS = {"error": "1;31", "warning": "1;33", "hint": "1;36", "note": "1"}
"""The parameters of the escape sequence that colors each label."""


def open_closed_streams() -> None:
    """Put /dev/null where a standard stream is closed, so that no file of ours gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def say(text: str) -> None:
    """Print a line of results to stdout.

    Raises:
        BrokenPipeError: The reader of a pipe has ended.
        StorageError: It cannot be written, for example to a full disk.
    """
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        # Without its number: the option parser would exit with 1.
        raise BrokenPipeError from None
    except OSError as error:
        _silence(1)
        raise StorageError("write", "standard output", error) from error


def tell(text: str, end: str = "\n") -> None:
    """Print a line that is not a result to stderr; if that fails, there is nobody to tell."""
    try:
        _write(sys.stderr, colored(text, sys.stderr), end)
    except OSError:
        _silence(2)


def colored(line: str, stream: TextIO) -> str:
    """Return a line with its first label, for example ``error:``, in color if the stream shows colors."""
    label = _LABEL.match(line)
    if label is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return line
    return f"\x1b[{_COLORS[label[1]]}m{label[0]}\x1b[0m{line[label.end() :]}"


def _silence(descriptor: int) -> None:
    # Otherwise Python would try to write what is still buffered again at its end and exit with 120.
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, _ENCODING_ERRORS).decode(encoding) + end)
    stream.flush()


def say_json(value: dict[str, Any]) -> None:
    """Print one JSON document to stdout (ASCII, so that it survives any locale)."""
    say(json.dumps(value, indent=2))
