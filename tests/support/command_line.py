"""Running the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support import forked_commands

SAMPLE = Path(__file__).parents[2] / "sample_data"
_CODE = "import sys; from tokshard.cli.main import main; sys.argv[0] = 'tokshard'; main()"


def tokshard(*arguments, cwd=None, env=None, stdin=b"", **settings) -> subprocess.CompletedProcess[str]:
    """Run ``tokshard`` as a process of its own.

    ``settings`` are those of :func:`forked_commands.run`, which saves the start of an interpreter.
    """
    words = [*map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", **(env or {})}
    if forked_commands.can_run(environment):
        done = forked_commands.run(words, directory=cwd, environment=environment, stdin=stdin, **settings)
    else:
        done = subprocess.run(
            [sys.executable, "-c", _CODE, *words],
            cwd=cwd,
            env=environment,
            input=stdin,
            capture_output=True,
            check=False,
        )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "backslashreplace")
    )


def json_of(done: subprocess.CompletedProcess[str]) -> dict:
    """Return the one JSON document on stdout."""
    return json.loads(done.stdout)
