"""Timing whole commands, in turn, and printing a table of medians and ratios."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version


@dataclass
class Contender:
    """A command that does the work.

    Attributes:
        name: What to call it.
        command: Its argument vector.
        work: What it does, in the table's unit (bytes, calls).
        before: Called before each run, not timed.
        own_time: Whether the command prints its own time in seconds as its last line, to be used.
    """

    name: str
    command: list[str]
    work: float
    before: Callable[[], None] = lambda: None
    own_time: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Medians over the rounds."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_once(contender: Contender) -> Result:
    """Run a command; return its wall time, the CPU time of its processes, and the peak of any one."""
    contender.before()
    environment = {**os.environ, **contender.environment}
    started = time.perf_counter()
    with subprocess.Popen(
        contender.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        output = process.stdout.read() if process.stdout else ""
        errors = process.stderr.read() if process.stderr else ""
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{contender.name} failed with {process.returncode}:\n{errors[-2000:]}")
    if contender.own_time:
        seconds = float(output.split()[-1])
    return Result(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def compare(contenders: list[Contender], rounds: int) -> dict[str, Result]:
    """Run all contenders in turn, several times; return the medians by name."""
    found: dict[str, list[Result]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            print(
                f"\rround {number + 1} of {rounds}: {contender.name:<50}", end="", file=sys.stderr, flush=True
            )
            found[contender.name].append(run_once(contender))
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    return {
        name: Result(
            statistics.median(result.seconds for result in results),
            statistics.median(result.cpu_seconds for result in results),
            max(result.peak_bytes for result in results),
        )
        for name, results in found.items()
    }


def machine(*packages: str) -> str:
    """Return what ran where: processor, cores, Python and the versions of packages."""
    model = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),  # noqa: SIM115
        platform.machine(),
    )
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, Python {platform.python_version()}, {', '.join(found)}"
