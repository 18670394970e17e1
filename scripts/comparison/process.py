"""Runs of one program: time, memory, output, and its end by a signal, a limit or itself."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import footprint

_TICK_SECONDS = 0.02


@dataclass(frozen=True)
class Run:
    """What a program did.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Of all its processes.
        largest_bytes: The most memory that any of its processes held.
        sum_bytes: The most memory that all of them held at a time, without mapped files.
        status: Exit status; negative is the signal that ended it.
        output: Standard output and standard error.
        hung: Whether it was ended because it took longer than the limit.
    """

    seconds: float
    cpu_seconds: float
    largest_bytes: int
    sum_bytes: int
    status: int
    output: str
    hung: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a runner printed last.

        Raises:
            RuntimeError: If it failed.
        """
        if self.status == 0:
            for line in reversed(self.output.splitlines()):
                if line.startswith("{"):
                    return json.loads(line)
        raise RuntimeError(f"status {self.status}: {self.message}\n{self.output[-3000:]}")

    @property
    def message(self) -> str:
        """The last line that looks like an error, or the last line; without the directories of paths."""
        output = re.sub(r"/[^\s'\"]*/(?=[\w.-]+)", ".../", self.output)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        for pattern in (r"^\S*(error|exception|exit|interrupt)\b", r"error|no space|too large", ""):
            if found := [line for line in lines if re.search(pattern, line, re.IGNORECASE)]:
                return found[-1][:300]
        return ""


def run(
    command: list[str],
    *,
    environment: dict[str, str],
    kill_when: Callable[[float], bool] | None = None,
    limit: float = 300,
    file_bytes: int | None = None,
) -> Run:
    """Run a command in a session of its own and measure it.

    Args:
        command: The argument vector.
        environment: Variables on top of the caller's.
        kill_when: Gets the seconds since the start; all processes get SIGKILL as soon as it returns true.
        limit: Seconds until the same happens to a program that hangs.
        file_bytes: The largest file that it may write.
    """
    # Some machines set this: modules of megabytes would be compiled in every run.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    largest = held_most = 0
    ended = hung = False

    def restrict() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, **environment},
            start_new_session=True,
            preexec_fn=restrict,  # noqa: PLW1509 - this program has no threads
        )
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            processes = footprint.tree(process.pid)
            held = [_memory(pid) for pid in processes]
            largest = max(largest, *(highest for highest, _ in held))
            held_most = max(held_most, sum(own for _, own in held))
            passed = time.perf_counter() - started
            hung = hung or passed >= limit
            if not ended and (hung or (kill_when and kill_when(passed))):
                ended = True
                _kill(processes)
            time.sleep(_TICK_SECONDS)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        with suppress(ProcessLookupError):  # processes that outlived their parent
            os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Run(
        seconds,
        usage.ru_utime + usage.ru_stime,
        largest,
        held_most,
        process.returncode,
        text,
        hung,
    )


def _memory(process: int) -> tuple[int, int]:
    """Return the highest memory of a process so far, and what it holds now without mapped files.

    The highest memory that `wait4` returns begins with that of this program.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    held = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
    return held.get("VmHWM", 0), held.get("RssAnon", 0) + held.get("RssShmem", 0)


def _kill(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def tree_bytes(directory: Path) -> int:
    """Return the size of all files below a directory."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file of a program that runs
            total += path.stat().st_size if path.is_file() else 0
    return total
