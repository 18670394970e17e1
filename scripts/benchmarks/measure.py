"""Measuring commands in interleaved rounds, and comparing the ratios with those of earlier runs.

A benchmark defines its options with :func:`parser`, opens a :func:`session`, which prints the command, the
machine and the versions, and passes contenders to :meth:`Session.compare`. Each contender is a command in a
process of its own. All of them run in turn, several rounds; a ratio is computed within each round, so that
its spread is that of the comparison and not that of the machine.

A command may report figures of its own: as its last line of output, an object of JSON, whose values are added
to those of the run (:func:`program` writes such programs).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import footprint
import history

ROOT = Path(__file__).resolve().parents[2]
TOKSHARD = [sys.executable, "-c", "import sys; from tokshard.cli.main import main; main()"]
Run = dict[str, Any]
"""Figures of one run: ``seconds``, ``cpu_seconds``, ``peak_bytes``, ``work``, and what it reports."""

# The peak of a process begins with the size of the process that started it, which must be small.
_LAUNCHER = """
import json, os, sys, time
started = time.perf_counter()
process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
found = {"seconds": time.perf_counter() - started, "cpu_seconds": usage.ru_utime + usage.ru_stime,
         "peak_bytes": usage.ru_maxrss * 1024, "status": os.waitstatus_to_exitcode(status)}
sys.stderr.write("\\n" + json.dumps(found))
"""

_PROLOGUE = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
def held(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024
def used():
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
report = {}
"""
_STARTED = """
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the highest mark so far, of the imports, is forgotten
before, started_used, started = held("VmRSS"), used(), time.perf_counter()
"""
_ENDED = """
report.update(seconds=time.perf_counter() - started, cpu_seconds=used() - started_used)
report.update(peak_bytes=held("VmHWM"), added_bytes=held("VmHWM") - before)
"""
_EPILOGUE = "\nprint(json.dumps(report))\n"


def program(
    setup: str, work: str, after: str = "", *, arguments: Sequence[object] = (), python: str = sys.executable
) -> list[str]:
    """Return a command that runs three pieces of Python code and reports what the second one took.

    The pieces share their variables. ``report`` is a dict whose values become those of the run. Memory is
    reported as ``peak_bytes`` and, what came on top of the setup, ``added_bytes``.
    """
    code = f"{_PROLOGUE}\n{setup}\n{_STARTED}\n{work}\n{_ENDED}\n{after}\n{_EPILOGUE}"
    return [python, "-c", code, *map(str, arguments)]


@dataclass
class Contender:
    """A command that does the work.

    Attributes:
        name: Its row.
        command: Its argument vector.
        work: How much it does (bytes, calls), for rates; None has no rate.
        before: Called before each run, not timed.
        after: Called after each run; returns more values of the run, such as digests of the output.
        own_time: Whether the last word that it prints is its time in seconds.
        environment: Variables added to those of this process.
        is_peer: A program of others: its ratios are printed, and not compared with the history.
        is_watched: Also measure ``own_bytes``, the memory of all its processes without mapped files.
    """

    name: str
    command: list[str]
    work: float | None = None
    before: Callable[[], object] = lambda: None
    after: Callable[[], Run] = dict
    own_time: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    is_peer: bool = False
    is_watched: bool = False

    def run(self) -> Run:
        """Run the command once."""
        self.before()
        found: Run = {} if self.work is None else {"work": self.work}
        if self.is_watched:
            return found | vars(footprint.take(self.command)) | self.after()
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *self.command]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
        errors, _, last = done.stderr.rpartition("\n")
        found |= json.loads(last) if done.returncode == 0 else {"status": done.returncode}
        if found.pop("status"):
            sys.exit(f"{self.name} failed:\n{(errors or done.stderr)[-2000:]}")
        *_, last = done.stdout.splitlines() or [""]
        if self.own_time:
            found["seconds"] = float(last.split()[-1])
        elif last.startswith("{"):
            with suppress(ValueError):
                found |= json.loads(last)
        return found | self.after()


def yardstick() -> Contender:
    """Return a fixed amount of work: the base of ratios where there is no other program to compare with."""
    command = program("import hashlib; block = bytes(1 << 20)", "for _ in range(256): hashlib.sha256(block)")
    return Contender("SHA-256 of 256 MiB", command, is_peer=True)


@dataclass(frozen=True)
class Figure:
    """A column.

    Attributes:
        title: Its heading, with the unit.
        value: Computes it from a run. If it raises KeyError, the run does not have this figure.
        better: Direction of improvement, of figures whose ratios are computed.
    """

    title: str
    value: Callable[[Run], float]
    better: Literal["higher", "lower"] | None = None


SECONDS = Figure("s", lambda run: run["seconds"], "lower")
ELAPSED = Figure("s", lambda run: run["seconds"])
CPU = Figure("CPU s", lambda run: run["cpu_seconds"])
PEAK = Figure("peak MB", lambda run: run["peak_bytes"] / 1e6)
OWN = Figure("own MB", lambda run: run["own_bytes"] / 1e6)


def rate(title: str, unit: float = 1) -> Figure:
    """Return the figure of work per second, in units such as 1e6 bytes; higher is better."""
    return Figure(title, lambda run: run["work"] / run["seconds"] / unit, "higher")


class Spread(NamedTuple):
    """Median, lowest and highest of the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        """Return it as ``1.50 (1.40-1.60)``."""
        whole = "" if self.rounds == 1 else f" ({digits(self.low)}-{digits(self.high)})"
        return digits(self.median) + whole


def digits(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point.

    Example:
        >>> digits(0.012345), digits(1.5), digits(1234567.8), digits(20)
        ('0.0123', '1.50', '1,234,568', '20')
    """
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:#.3g}"


@dataclass(frozen=True)
class Rounds:
    """All runs of one contender."""

    contender: Contender
    runs: list[Run]

    def values(self, figure: Figure) -> list[float]:
        """Return a figure of each round; nothing if the runs do not have it."""
        try:
            return [figure.value(run) for run in self.runs]
        except KeyError:
            return []

    def spread(self, figure: Figure) -> Spread | None:
        """Return a figure."""
        values = self.values(figure)
        return Spread.of(values) if values else None

    def ratio(self, base: Rounds, figure: Figure) -> Spread | None:
        """Return the ratio of a figure to that of another contender, computed within each round."""
        values = self.values(figure), base.values(figure)
        return Spread.of([a / b for a, b in zip(*values, strict=True)]) if all(values) else None


def show_progress(text: str) -> None:
    """Replace the line of progress, if a terminal shows it."""
    if sys.stderr.isatty():
        print(f"\r{text:<79.79}\r", end="", file=sys.stderr, flush=True)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, its columns aligned: the first to the left, the others to the right."""
    print()
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for cells in (header, rule, *rows):
        first, *others = cells
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("|", " | ".join([first.ljust(widths[0]), *right]), "|", flush=True)


class Session:
    """One run of a benchmark.

    Args:
        benchmark: Its name in scripts/bench.
        options: The parsed arguments.
        work: The values of those that change the work.
        directory: An empty directory, removed at the end.
    """

    def __init__(self, benchmark: str, options: argparse.Namespace, work: str, directory: Path) -> None:
        self.benchmark, self.options, self.work, self.directory = benchmark, options, work, directory
        self.records: list[history.Record] = []

    def run(self, contenders: Sequence[Contender], equal: Sequence[str] = ()) -> dict[str, Rounds]:
        """Run contenders in turn, several times; return all runs by name.

        Args:
            contenders: Commands with different names.
            equal: Values that must be equal in all runs, such as digests of the output. Otherwise the
                benchmark ends.
        """
        found = {contender.name: Rounds(contender, []) for contender in contenders}
        if len(found) < len(contenders):
            raise ValueError("two contenders have the same name")
        for number in range(-self.options.discard, self.options.rounds):
            for contender in contenders:
                show_progress(f"round {number + 1} of {self.options.rounds}: {contender.name}")
                run = contender.run()
                if number >= 0:
                    found[contender.name].runs.append(run)
        show_progress("")
        for name in equal:
            runs = [(row, run[name]) for row, result in found.items() for run in result.runs]
            if any(value != runs[0][1] for _, value in runs):
                sys.exit(f"the contenders differ in {name}: {runs}")
        return found

    def compare(
        self,
        contenders: Sequence[Contender],
        *,
        title: str = "",
        base: str | None = None,
        figures: Sequence[Figure] = (SECONDS, CPU, PEAK),
        equal: Sequence[str] = (),
    ) -> dict[str, Rounds]:
        """Run contenders (see :meth:`run`) and print their table (see :meth:`show`)."""
        results = self.run(contenders, equal)
        self.show(results, title=title, base=base, figures=figures)
        return results

    def show(
        self, results: dict[str, Rounds], *, title: str, base: str | None, figures: Sequence[Figure]
    ) -> None:
        """Print the table of results, and keep their ratios for the history.

        Args:
            results: The rows.
            title: Heading of the first column.
            base: The row to which ratios refer; None prints no ratios.
            figures: The columns.
        """
        shown = [figure for figure in figures if any(result.values(figure) for result in results.values())]
        header = [title or self.benchmark]
        rows = [[name] for name in results]
        for figure in shown:
            with_ratio = base is not None and figure.better is not None
            header += [figure.title, f"ratio, {figure.better} is better"] if with_ratio else [figure.title]
            for row, result in zip(rows, results.values(), strict=True):
                row.append(str(result.spread(figure) or "-"))
                if with_ratio and base is not None:
                    row.append("base" if row[0] == base else str(result.ratio(results[base], figure) or "-"))
                    self.keep(f"{header[0]}: {row[0]}", results[base], figure, result)
        show_table(header, rows)

    def keep(self, name: str, base: Rounds, figure: Figure, result: Rounds) -> None:
        """Add a ratio to those that are compared with the history; peers and the base itself are left out."""
        ratio, value = result.ratio(base, figure), result.spread(figure)
        if ratio is None or value is None or result is base or result.contender.is_peer:
            return
        median, low, high = (float(f"{number:.4g}") for number in ratio[:3])
        self.records.append(
            history.Record(
                benchmark=self.benchmark,
                arguments=self.work,
                figure=f"{name}: {figure.title}",
                base=base.contender.name,
                better=figure.better or "higher",
                ratio=median,
                low=low,
                high=high,
                value=float(f"{value.median:.4g}"),
                rounds=ratio.rounds,
                machine=processor(),
                commit=commit(),
                date=f"{datetime.now(UTC):%Y-%m-%d}",
            )
        )

    def finish(self) -> None:
        """Compare the ratios with the history, and record them if the options say so."""
        if not self.records:
            return
        past = history.read(self.options.history)
        known = {record.key for record in past}
        count = sum(record.key in known for record in self.records)
        out = sys.stderr if getattr(self.options, "json", False) else sys.stdout
        print(
            f"\n{count} of {len(self.records)} ratios have records in {self.options.history.name}", file=out
        )
        warnings = [text for record in self.records if (text := history.loss(record, past))]
        for text in warnings:
            print(f"warning: {text}", file=sys.stderr)
        if self.options.record:
            history.append(self.records, self.options.history)
        if warnings and self.options.strict:
            sys.exit(1)


def parser(name: str, doc: str | None, rounds: int | None = 3) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Args:
        name: The benchmark's name in scripts/bench.
        doc: Its description.
        rounds: The default of --rounds; None if nothing is timed, and only the directory is an option.
    """
    found = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=doc)
    found.add_argument("--directory", help="parent of the temporary directory")
    if rounds is None:
        found.set_defaults(rounds=0)
        return found
    found.add_argument("--rounds", type=int, default=rounds, help=f"(default: {rounds})")
    found.add_argument("--discard", type=int, default=0, help="additional first rounds, not counted")
    found.add_argument("--record", action="store_true", help="add the ratios to the history")
    found.add_argument(
        "--strict", action="store_true", help="exit with 1 if a ratio is worse than its records"
    )
    found.add_argument("--history", type=Path, default=history.PATH, help="file of the records")
    return found


# Options that do not change the work, or that select some of the tables.
_NEUTRAL = {
    "directory",
    "place",
    "rounds",
    "discard",
    "record",
    "strict",
    "history",
    "only",
    "stages",
    "tables",
}
_NEUTRAL |= {"run", "json", "write", "sums", "points"}


@contextmanager
def session(
    options_of: argparse.ArgumentParser,
    arguments: Sequence[str],
    *packages: str,
    peers: Sequence[str] = (),
) -> Iterator[Session]:
    """Parse the arguments, print the header, and compare the results with the history at the end.

    Args:
        options_of: From :func:`parser`.
        arguments: Of the command line.
        packages: Whose versions are printed.
        peers: Packages whose versions in the interpreter of --megatron-python, or of another option of
            this kind, are printed.
    """
    options = options_of.parse_args(arguments)
    name = options_of.prog.split()[-1]
    out = sys.stderr if getattr(options, "json", False) else sys.stdout
    for line in header(options_of.prog, arguments, options.rounds, packages):
        print(line, file=out)
    values = {key: value for key, value in vars(options).items() if key not in _NEUTRAL}
    for key, python in vars(options).items():
        if key.endswith("_python"):
            del values[key]
            if python:
                print(f"{python}: {versions(peers, python)}", file=out)
    work = " ".join(f"{key}={json.dumps(value, default=str)}" for key, value in sorted(values.items()))
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        found = Session(name, options, work.replace(f"{ROOT}/", ""), Path(directory))
        yield found
    found.finish()


def header(prog: str, arguments: Sequence[str], rounds: int, packages: Sequence[str]) -> list[str]:
    """Return the lines printed before the tables: command, machine, versions and how it is measured."""
    command = shlex.join([*prog.split(), *map(str, arguments)])
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    lines = [f"$ {command}", machine(*packages), f"commit {commit()}, {date}, load {os.getloadavg()[0]:.1f}"]
    if rounds == 1:
        lines.append("1 round")
    elif rounds:
        lines.append(f"{rounds} interleaved rounds: median (lowest-highest); ratios within each round")
    return lines


def machine(*packages: str) -> str:
    """Return processor, cores, memory, kernel, and versions of Python and packages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{memory:.0f} GB of memory, {platform.system()} {platform.release()}"
    return f"{processor()}, {system}, Python {platform.python_version()}, {versions(packages)}"


def processor() -> str:
    """Return the processor and the number of cores: the machine, for comparisons with the history."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str:
    """Return the commit of the checkout, with + if tracked files were changed."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude", "*", "--dirty=+"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def versions(packages: Sequence[str], python: str = sys.executable) -> str:
    """Return names and versions of packages in the environment of an interpreter."""
    code = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "absent")
"""
    done = subprocess.run([python, "-c", code, *packages], stdout=subprocess.PIPE, text=True, check=True)
    return ", ".join(done.stdout.splitlines())
