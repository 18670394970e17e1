"""The start of a nursery, which may come first of all: this module imports nothing that takes time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from tokshard.errors import WorkerError
from tokshard.tokenization.options import TokenizeOptions

# Worker processes need about half a second to start; below this size they do not pay.
INLINE_BYTES = 4 << 20


class NurseryProcess:
    """A nursery that has been started and given no recipe yet: it imports libraries.

    It and the workers that it will fork are a process group of their own, so that Ctrl-C reaches only
    this process, which then ends them.

    Raises:
        WorkerError: The system allows no more processes or files.

    Attributes:
        connection: What it is spoken to through.
    """

    def __init__(self) -> None:
        try:
            self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "tokshard.tokenization.workers.nursery"],
                    stdin=theirs.fileno(),
                    process_group=0,
                    env=_environment(),
                )
        except OSError as error:
            raise cannot_start(error.strerror) from error
        self.pid = self._process.pid

    def expect(self, options: TokenizeOptions) -> None:
        """Let it load what is likely to be needed: both engines, for a ``tokenizer.json`` at hand."""
        if options.engine == "reference":
            return
        path = options.tokenizer or ""
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        if path.endswith(".json") and os.path.isfile(path):
            message = {"expect": path, "special_tokens": options.special_tokens}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its listener will tell
                self.connection.send(json.dumps(message).encode("ascii"))

    def status(self) -> int:
        """Wait for it to end by itself; return its exit status, negative for a signal.

        It stays known to the system until :meth:`kill`, so that its group can be no other's meanwhile.
        """
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if found is None:
            return 0
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def kill(self) -> None:
        """End it and all processes that it has forked, and wait for it."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def start_ahead(inputs: Sequence[str], options: TokenizeOptions) -> NurseryProcess | None:
    """Start a nursery if the inputs are certain to need one: named files that are large enough.

    Args:
        inputs: The inputs as the user gives them.
        options: What it is to expect.

    Raises:
        WorkerError: The system allows no more processes or files.
    """
    if sum(os.path.getsize(path) for path in inputs if os.path.isfile(path)) <= INLINE_BYTES:
        return None
    process = NurseryProcess()
    process.expect(options)
    return process


def cannot_start(reason: str | None) -> WorkerError:
    """Return the error for a system that allows no more processes or files."""
    return WorkerError(
        f"cannot start a worker process: {reason}",
        hint="run the same command with fewer --workers to resume",
    )


def _environment() -> dict[str, str]:
    """Return the environment of the nursery, and so of the workers."""
    return {
        # Nothing here uses BLAS, but numpy's starts threads that spin for a while.
        "OPENBLAS_NUM_THREADS": "1",
        # Batches are freed and asked for again: the heap keeps them, or each costs its page faults anew.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        **os.environ,
        # An empty entry is the current directory, in which the nursery runs, too.
        "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path),
    }
