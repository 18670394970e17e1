"""Commands in forked processes of one that has loaded what they need: a command takes some 50 ms."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import forked_commands

_LIBRARIES = (
    *("numpy", "orjson", "xxhash", "tokenizers", "fastokens", "numba", "isal.igzip_threaded"),
    *("backports.zstd", "pyarrow.parquet"),
)
# A command that takes longer hangs: they take less than a second, but the machine may be busy.
HANGS_SECONDS = 120.0
_POLL_SECONDS = 0.002
_PIPE_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031

Action = Callable[[], object]
Command = tuple[str, ...] | Action
"""The words after ``tokshard``, or a function that uses the Python API."""


def set_environment() -> None:
    """Set what libraries read when they are loaded: forked processes have no threads."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.environ |= {"JE_ARROW_MALLOC_CONF": "background_thread:false", "FASTOKENS_BPE_THREADS": "1"}


def load() -> None:
    """Import all modules of tokshard and the libraries that they use, unless this process was forked."""
    if "tokshard.cli.main" not in sys.modules:
        forked_commands.load(_LIBRARIES)
        gc.collect()
        gc.freeze()
    # Processes whose parent was killed become children of this one, which waits for them.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"there are {threads} threads, which do not survive a fork")


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        code: The exit code, negative for a signal; None if it hung.
    """

    code: int | None
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.stderr[-1500:]}"

    @property
    def defect(self) -> str | None:
        """What is wrong with this end, whatever the command was asked to do, or None."""
        if self.code is None:
            return f"it hung, {self}"
        for text in ("Traceback", "Exception ignored", "this is a bug", "Error in sys.excepthook"):
            if text in self.stderr:
                return str(self)
        if self.code in {-signal.SIGKILL, -signal.SIGALRM, 0}:
            return None
        return f"unexpected {self}" if self.code < 0 or self.code == 70 else None


class Child:
    """A forked process that runs one command, in a process group of its own.

    Args:
        command: What it runs.
        directory: Its working directory.
        before: What it does first, in its directory.
        gate: A pipe: the process starts when all processes have closed its end for writing.
    """

    def __init__(
        self,
        command: Command,
        directory: str | Path,
        before: Action | None = None,
        gate: tuple[int, int] | None = None,
    ) -> None:
        self._outputs = [os.pipe(), os.pipe()]
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                os.chdir(directory)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for descriptor, (_, sink) in enumerate(self._outputs, 1):
                    os.dup2(sink, descriptor)
                if gate:
                    os.close(gate[1])
                    os.read(gate[0], 1)
                forked_commands.end(lambda: _act(command, before))
            finally:
                os._exit(99)
        for _, sink in self._outputs:
            os.close(sink)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def has_ended(self) -> bool:
        """Return whether the process has ended, though not the processes that it started."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> Ended:
        """Wait for the end of the process and of all that it started."""
        deadline = time.monotonic() + HANGS_SECONDS
        code: int | None = None
        hangs = False
        texts = [b"", b""]
        while True:
            for number, (source, _) in enumerate(self._outputs):
                os.set_blocking(source, False)
                with contextlib.suppress(BlockingIOError):
                    texts[number] += os.read(source, _PIPE_BYTES)
            try:
                pid, status = os.waitpid(-self.pid, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
            elif not pid:
                if not hangs and time.monotonic() > deadline:
                    hangs = True
                    os.killpg(self.pid, signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        for number, (source, _) in enumerate(self._outputs):
            with open(source, "rb") as file:
                texts[number] += file.read() or b""
        return Ended(None if hangs else code, *(text.decode(errors="replace") for text in texts))


def _act(command: Command, before: Action | None) -> None:
    from tokshard.errors import known_error

    if before:
        before()
    if not callable(command):
        sys.argv = ["tokshard", *command]
        forked_commands.command()
        return
    try:
        command()
    except Exception as error:
        if (known := known_error(error)) is None:
            raise
        print(f"error: {known}\nhint: {known.hint}", file=sys.stderr)
        sys.exit(known.exit_code)


def run(command: Command, directory: str | Path, before: Action | None = None) -> Ended:
    """Run a command in a forked process."""
    return Child(command, directory, before).wait()


def run_all(commands: Sequence[Command], directory: str | Path) -> None:
    """Run commands that must succeed, one after the other.

    Raises:
        RuntimeError: One failed.
    """
    for command in commands:
        if (ended := run(command, directory)).code != 0:
            raise RuntimeError(f"{command}: {ended}")


def warm_up(commands: Sequence[Command], directory: str | Path) -> None:
    """Run commands in this process, whose compiled patterns and type hints forked processes then have."""
    here, streams = os.getcwd(), [os.dup(1), os.dup(2)]
    os.chdir(directory)
    try:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        for command in commands:
            with contextlib.suppress(SystemExit):
                _act(command, None)
    finally:
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        os.chdir(here)
    deadline = time.monotonic() + HANGS_SECONDS
    while (threads := len(os.listdir("/proc/self/task"))) > 1:  # one may be about to end
        if time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            continue
        raise RuntimeError(f"{commands}: there are {threads} threads, which do not survive a fork")
