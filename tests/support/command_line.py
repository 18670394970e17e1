"""Running the real command."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from support import forked_commands

SAMPLE = Path(__file__).parents[2] / "sample_data"
# The console script that pip installs beside the interpreter.
INSTALLED = Path(sys.executable).with_name("tokshard")
# A command that cannot read a small input must end within 10 s. This limits its processor time, because other
# tests may keep it waiting.
FAILURE_SECONDS = 10
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


def installed(
    *arguments, cwd=None, env=None, stdin=b"", seconds=FAILURE_SECONDS, memory=None
) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a user does; one that does not end within a limit fails the test.

    Args:
        arguments: What follows ``tokshard``.
        cwd: The working directory.
        env: Variables added to the environment.
        stdin: The bytes of standard input, or an open file.
        seconds: Limit of the processor time of each process. The wall-clock limit is three times as long.
        memory: Limit of the address space of each process in bytes, or None.
    """
    process = subprocess.Popen(
        [INSTALLED, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
        if memory is not None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory, memory))
        out, err = process.communicate(stdin if isinstance(stdin, bytes) else None, timeout=3 * seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.CompletedProcess(
        ["tokshard", *map(str, arguments)],
        process.returncode,
        out.decode(),
        err.decode("utf-8", "backslashreplace"),
    )
    assert done.returncode not in {-signal.SIGXCPU, -signal.SIGKILL}, f"did not end: {done}"
    return done


def failure(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return exit code, error and hint of a command that failed: one of each, without their labels."""
    assert "Traceback" not in done.stderr, done.stderr
    errors, hints = (
        [line.removeprefix(label) for line in done.stderr.splitlines() if line.startswith(label)]
        for label in ("error: ", "hint: ")
    )
    assert len(errors) == 1, done.stderr
    assert len(hints) <= 1, done.stderr
    return done.returncode, errors[0], hints[0] if hints else ""


def json_of(done: subprocess.CompletedProcess[str]) -> dict:
    """Return the one JSON document on stdout."""
    return json.loads(done.stdout)
