"""Running the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "sample_data"


def tokshard(*arguments, cwd=None, env=None, stdin=b"") -> subprocess.CompletedProcess[str]:
    """Run ``tokshard`` as a process of its own."""
    code = "import sys; from tokshard.cli.main import main; sys.argv[0] = 'tokshard'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **(env or {})},
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
