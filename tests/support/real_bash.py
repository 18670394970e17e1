"""Scripts executed by real bash, the slow twin of the reader of shell scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

_RUN = "run() { printf '%s\\0' run \"$@\"; printf '\\n\\0'; }\nexport -f run\n"


def bash(
    text: str, parameters: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Return the commands ``run ...`` that bash executes, as lists of their words.

    Args:
        text: The script.
        parameters: Its positional parameters.
        variables: Its environment.
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", _RUN + text, "bash", *parameters],
        capture_output=True,
        check=False,
        timeout=20,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **(variables or {})},
    )
    pieces = done.stdout.decode().split("\0")[:-1]
    commands: list[list[str]] = [[]]
    for piece in pieces:
        if piece == "\n":
            commands.append([])
        else:
            commands[-1].append(piece)
    return commands[:-1]
