"""Running the real command many times without starting an interpreter for each: a process that forks.

The forked processes are real ones: they can be killed, and share nothing with the test. As a program this
is the process that forks; it must have no threads, so it opens no store itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PRELOADED = (
    "s3fs",
    "numpy",
    "orjson",
    "xxhash",
    "tokenizers",
    "tokshard.tokenization.job",
    "tokshard.cli.tokenize",
)


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit code (negative for a signal), and what it printed."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Commands:
    """The process that forks, seen from the test."""

    process: subprocess.Popen[str]
    directory: Path

    def run(
        self,
        *arguments: object,
        part_bytes: int | None = None,
        started: Callable[[int], None] = lambda _: None,
        **environment: str,
    ) -> Done:
        """Run ``tokshard`` with these arguments; ``started`` is told the process."""
        out, err = self.directory / "stdout.txt", self.directory / "stderr.txt"
        job = {
            "arguments": [*map(str, arguments)],
            "environment": {**os.environ, **environment},
            "part_bytes": part_bytes,
            "files": [str(out), str(err)],
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        started(int(self.process.stdout.readline()))
        code = int(self.process.stdout.readline())
        return Done(code, out.read_text(), err.read_text())


@contextmanager
def forking(directory: Path) -> Iterator[Commands]:
    """Start the process that forks; the commands run in ``directory``."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    try:
        yield Commands(process, directory)
    finally:
        process.kill()
        process.communicate()


def _child(job: dict[str, Any]) -> None:
    out, err = (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666) for path in job["files"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    if job["part_bytes"]:
        from tokshard.storage.remote import upload

        upload.PART_BYTES = job["part_bytes"]
    from tokshard.cli.main import main

    sys.argv = ["tokshard", *job["arguments"]]
    main()


def _serve() -> None:
    import importlib

    for name in _PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                _child(json.loads(line))
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
