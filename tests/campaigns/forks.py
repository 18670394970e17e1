"""Commands in forked processes of one that has loaded what they need: a command takes some 50 ms."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LIBRARIES = (
    *(
        "numpy",
        "orjson",
        "xxhash",
        "tokenizers",
        "fastokens",
        "numba",
        "isal.igzip_threaded",
        "backports.zstd",
    ),
    "pyarrow.parquet",
)
_NOT_IMPORTED = ("tokshard.__main__", "tokshard.dump_tokenizer_identifiers", "tokshard.loader.torch")
# What takes longer hangs: the commands take less than a second, but the machine may be busy.
HANGS_SECONDS = 120.0
_POLL_SECONDS = 0.002
_PR_SET_CHILD_SUBREAPER = 36


def set_environment() -> None:
    """Set what libraries look at when they are loaded: forked processes have no threads."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "FASTOKENS_BPE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def load() -> None:
    """Import all modules of tokshard and the libraries that they use."""
    import tokshard

    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(tokshard.__path__, "tokshard."):
        if module.name not in _NOT_IMPORTED:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    # Processes whose parent was killed become children of this one, which waits for them.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"there are {threads} threads, which do not survive a fork")
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: The exit code, negative for a signal; None if it hung.
    """

    code: int | None
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return f"exit code {self.code}: {self.stderr[-1500:]}"


class Process:
    """A forked process that does one thing, in a process group of its own.

    Args:
        action: Does it; returns the exit code or None.
        directory: Where.
        logs: An absolute path that the names of the files with its output begin with.
        gate: A pipe; the process begins when all have closed its end for writing.
    """

    def __init__(
        self,
        action: Callable[[], int | None],
        directory: str | Path,
        logs: str,
        gate: tuple[int, int] | None = None,
    ) -> None:
        self._logs = logs
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.setpgid(0, 0)
                os.chdir(directory)
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                for descriptor, name in ((1, "out"), (2, "err")):
                    os.dup2(
                        os.open(f"{logs}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), descriptor
                    )
                if gate:
                    os.close(gate[1])
                    os.read(gate[0], 1)
                code = _code_of(action)
            finally:
                _end(code)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def has_ended(self) -> bool:
        """Return whether the process has ended, though not what it started."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> Ended:
        """Wait for the end of the process and of all that it started."""
        deadline = time.monotonic() + HANGS_SECONDS
        code: int | None = None
        hangs = False
        while True:
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
        return Ended(None if hangs else code, self._read("out"), self._read("err"))

    def _read(self, name: str) -> str:
        return Path(f"{self._logs}.{name}").read_text(encoding="utf-8", errors="replace")


def run(action: Callable[[], int | None], directory: str | Path, logs: str) -> Ended:
    """Do something in a forked process."""
    return Process(action, directory, logs).wait()


def tokshard(arguments: list[str], prepare: Callable[[], object] | None = None) -> Callable[[], int]:
    """Return what runs the command line in a forked process; ``prepare`` is done before."""

    def action() -> int:
        from tokshard.cli.main import main

        if prepare:
            prepare()
        sys.argv = ["tokshard", *arguments]
        main()
        return 0

    return action


def _code_of(action: Callable[[], int | None]) -> int:
    try:
        return action() or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _end(code: int) -> None:
    """End as the interpreter does, without taking the modules to pieces."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        gc.unfreeze()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
