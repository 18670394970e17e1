"""Runs ``tokshard.encode_with_transformers`` in a Python that has transformers, here or elsewhere."""

from __future__ import annotations

import base64
import importlib.resources
import json
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

from tokshard.errors import TokenizerError

_MARK = "tokshard"
_SHOWN_CHARACTERS = 300


def answers(command: Sequence[str], requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to requests, see :mod:`tokshard.encode_with_transformers`.

    Args:
        command: A command that runs the Python program on its standard input, for example
            ``["docker", "run", "-i", "image", "python"]``. The program and the requests are written there,
            so the other environment needs no file and no option.
        requests: The requests, in order.

    Raises:
        TokenizerError: The command cannot be run, or ended without an answer to each request.
    """
    lines = [json.dumps(request) for request in requests]
    try:
        done = subprocess.run(  # noqa: S603 - the command that the user named
            command, input=_script("\n".join(lines)), capture_output=True, check=False
        )
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"cannot run {command[0]}: {getattr(error, 'strerror', None) or error}", hint=_HINT
        ) from error
    found = [answer for line in done.stdout.splitlines() if (answer := _answer(line)) is not None]
    if len(found) != len(lines):
        reason = done.stderr.decode("utf-8", "replace").strip()[-_SHOWN_CHARACTERS:]
        raise TokenizerError(
            f"{' '.join(command)} ended with exit code {done.returncode} after {len(found)} of {len(lines)} "
            f"answers: {reason or 'no message'}",
            hint=_HINT,
        )
    return found


_HINT = "pass a command that starts a Python with transformers, such as /envs/train/bin/python"


def _script(requests: str) -> bytes:
    # Python reads its program from the standard input up to the end, so the requests are part of it.
    program = importlib.resources.files("tokshard").joinpath("encode_with_transformers.py").read_bytes()
    parts = [base64.b64encode(part).decode() for part in (requests.encode(), program)]
    return (
        "import base64, io, sys\n"
        f"sys.stdin = io.StringIO(base64.b64decode({parts[0]!r}).decode())\n"
        f"exec(compile(base64.b64decode({parts[1]!r}), 'encode_with_transformers.py', 'exec'))\n"
    ).encode()


def _answer(line: bytes) -> dict[str, Any] | None:
    # Containers and libraries print lines of their own.
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get(_MARK) == "encode_with_transformers" else None
