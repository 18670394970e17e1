"""Cost of one command: time, CPU time, memory of all its processes, files and bytes written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_SECONDS = 0.01


@dataclass(frozen=True)
class Footprint:
    """Cost of a command.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Of all its processes.
        peak_bytes: The most memory that its processes held at a time, mapped files included.
        own_bytes: The most of it that was not mapped files, which the kernel may drop and read again.
        largest_bytes: The most memory that any one of its processes held.
        files: How many files it left.
        written_bytes: Their size together.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    own_bytes: int
    largest_bytes: int
    files: int
    written_bytes: int


def take(command: list[str], output: Path | None = None) -> Footprint:
    """Run a command and measure it. The output directory is emptied first.

    Memory is looked at a hundred times a second. The peak of its largest process is what the kernel
    recorded, which begins with the size of the calling process: that should be small.

    Args:
        command: The argument vector.
        output: The directory that it writes to; None if it writes nothing.
    """
    if output is not None:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
    peak = own = largest = 0
    # What it prints goes to files: a pipe that nobody reads while memory is watched would stop it.
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            held = [memory(pid) for pid in tree(process.pid)]
            peak = max(peak, sum(whole for whole, _ in held))
            own = max(own, sum(part for _, part in held))
            largest = max(largest, *(whole for whole, _ in held))
            time.sleep(_TICK_SECONDS)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace")[-2000:]
            sys.exit(f"{' '.join(command)[:300]} failed with {process.returncode}:\n{text}")
    files = [path for path in output.rglob("*") if path.is_file()] if output is not None else []
    return Footprint(
        seconds,
        usage.ru_utime + usage.ru_stime,
        max(peak, usage.ru_maxrss * 1024),
        own,
        largest,
        len(files),
        sum(path.stat().st_size for path in files),
    )


def tree(process: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [process]
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def memory(process: int) -> tuple[int, int]:
    """Return the memory of a process now, and how much of it is not mapped files; zeros if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    held = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    whole = sum(held.values())
    return whole, whole - held.get("RssFile", 0)
