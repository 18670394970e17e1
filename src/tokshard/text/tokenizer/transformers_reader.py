"""Reading of tokenizer directories by transformers, in a process of its own.

The program :mod:`tokshard.export_with_transformers` and the files of the directory are written to the
standard input of a Python: that of tokshard, or one that the user names. The other environment needs neither
tokshard nor a file of this machine.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokshard.core.formatting import visible
from tokshard.errors import MissingExtraError, TokenizerError, UsageError

TIMEOUT_SECONDS = 300
"""The longest time until a Python answers. The import of transformers from a network disk takes a minute."""

_PROGRAM: Final = "export_with_transformers"
_SHOWN_CHARACTERS: Final = 300
_HINT: Final = (
    "pass --transformers with a command that starts a Python that has transformers, such as "
    "/envs/train/bin/python"
)


# The last reading, by the command and the files: a command may load a tokenizer several times.
_last: dict[str, dict[str, Any]] = {}


def read_with_transformers(
    files: Mapping[str, bytes], python: str | None, *, place: str, setting: str
) -> dict[str, Any]:
    """Return what AutoTokenizer of transformers loads from the files of a directory.

    Keys: ``definition`` in the form of tokenizer.json, ``size`` (number of tokens, added ones included),
    ``eos_token`` (EOS or else SEP; None if there is neither), ``transformers`` (its version) and
    ``splits_special_tokens`` (whether text that spells a special token is encoded as ordinary text).

    Args:
        files: The contents of the files by name.
        python: A command that runs the Python program on its standard input; None for the Python of tokshard.
        place: The directory, for messages.
        setting: What makes transformers necessary, for messages.

    Raises:
        UsageError: ``python`` is not a command.
        MissingExtraError: ``python`` is None, and transformers is not installed.
        TokenizerError: The command fails, or transformers cannot load the directory.
    """
    command = _command(python, place, setting)
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    request = json.dumps({"files": encoded})
    key = hashlib.sha256(f"{command}{request}".encode()).hexdigest()
    if key not in _last:
        answer = _answer_of(command, request)
        _check(answer, place)
        _last.clear()
        _last[key] = answer
    return _last[key]


def _command(python: str | None, place: str, setting: str) -> list[str]:
    if python is None:
        if importlib.util.find_spec("transformers") is None:
            raise MissingExtraError(
                f"the tokenizer directory {place} ({setting})",
                "transformers",
                hint="pip install transformers; tokshard tokenize also accepts --transformers PYTHON, the "
                "Python of the training environment",
            )
        return [sys.executable]
    try:
        words = shlex.split(python)
    except ValueError as error:
        raise UsageError(f"--transformers must be a command, got {python!r}: {error}", hint=_HINT) from error
    if not words:
        raise UsageError(f"--transformers must be a command, got {python!r}", hint=_HINT)
    return words


def _answer_of(command: Sequence[str], request: str) -> dict[str, Any]:
    shown = shlex.join(command)
    try:
        with subprocess.Popen(  # noqa: S603 - the command that the user named
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as process:
            try:
                output, errors = process.communicate(_script(request), timeout=TIMEOUT_SECONDS)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired as error:
        raise TokenizerError(
            f"the command {shown} did not answer within {TIMEOUT_SECONDS} s", hint=_HINT
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TokenizerError(f"cannot run {command[0]}: {reason}", hint=_HINT) from error
    # Containers and libraries print lines of their own.
    answers = [answer for line in output.splitlines() if (answer := _answer(line)) is not None]
    if len(answers) != 1:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        reason = f": {_excerpt(lines[-1])}" if lines else ""
        raise TokenizerError(
            f"the command {shown} printed no answer (exit code {process.returncode}){reason}", hint=_HINT
        )
    return answers[0]


def _script(request: str) -> bytes:
    # Python reads its program from the standard input up to the end, so the request is part of it.
    program = importlib.resources.files("tokshard").joinpath(f"{_PROGRAM}.py").read_bytes()
    return (
        "import base64, io, sys\n"
        "sys.path[:] = filter(None, sys.path)  # nothing of the current directory is imported\n"
        f"sys.stdin = io.StringIO(base64.b64decode({base64.b64encode(request.encode())!r}).decode())\n"
        f"exec(compile(base64.b64decode({base64.b64encode(program)!r}), '{_PROGRAM}.py', 'exec'))\n"
    ).encode()


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("tokshard") == _PROGRAM else None


def _check(answer: dict[str, Any], place: str) -> None:
    match answer:
        case {"error": str(error)} if "No module named 'transformers'" in error:
            raise TokenizerError(
                f"cannot read the tokenizer directory {place}: {_excerpt(error)}", hint=_HINT
            )
        case {"error": str(error)}:
            raise TokenizerError(
                f"transformers cannot load the tokenizer directory {place}: {_excerpt(error)}",
                hint="correct the files of the directory: a training job fails with them as well; or pass "
                "its tokenizer.json in a directory of its own",
            )
        case {"definition": dict(), "size": int(), "transformers": str()}:
            return
    raise TokenizerError(f"cannot read the tokenizer directory {place}: the answer is incomplete", hint=_HINT)


def _excerpt(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return visible(lines[0][:_SHOWN_CHARACTERS]) if lines else ""
