"""Faults while tokens are written: kill -9 in the middle, a full disk, a line that is not JSON. Each once."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import process
from corpus import Corpus, make, with_bad_line
from tasks import Bench, fresh, succeeded
from tools import Tool

HALF = 0.5  # of the bytes that an undisturbed run leaves
LATE = 0.8  # of the time of an undisturbed run; tools that write at the end are killed then


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return, for each tool that writes tokens, what it does at each fault."""
    folder = fresh(bench.directory / "faults")
    corpus = make(options.files, folder / "corpus", options.fault_megabytes)
    broken, name, line = with_bad_line(corpus, folder / "broken")
    found = {}
    for tool in bench.able("tokens"):
        if not tool.packages:
            continue  # rows for comparison only
        print(f"faults: {tool.name}", file=sys.stderr, flush=True)
        with bench.skipping(tool, "faults"):
            trial = Trial(bench, tool, corpus, folder / tool.name)
            found[tool.name] = {
                "kill": trial.killed(),
                "disk": trial.full_disk(),
                "record": trial.bad_record(broken, name, line),
            }
        shutil.rmtree(folder / tool.name, ignore_errors=True)
    return found


class Trial:
    """One tool and its undisturbed run."""

    def __init__(self, bench: Bench, tool: Tool, corpus: Corpus, directory: Path) -> None:
        self.bench, self.tool, self.corpus = bench, tool, corpus
        self.directory = directory
        self.workers = tool.workers[-1]
        output = directory / "undisturbed"
        self.first = succeeded(self.write(output))
        self.bytes = process.tree_bytes(output)
        self.largest_file = max(path.stat().st_size for path in output.rglob("*") if path.is_file())
        self.expected, self.digests = self.state(output), digests(output)

    def write(self, output: Path, files: list[str] | None = None, **limits: Any) -> process.Run:
        """Write tokens."""
        return self.bench.run(
            self.tool,
            "tokens",
            output,
            files=files or self.corpus.files,
            workers=self.workers,
            limit=max(60, 4 * self.first.seconds) if hasattr(self, "first") else 300,
            **limits,
        )

    def state(self, output: Path) -> dict[str, Any]:
        """Return what a reader finds: the facts of the documents, or why they cannot be read."""
        run = self.bench.run(self.tool, "read", output, limit=120)
        return {"error": run.message} if run.status else run.facts

    def again(self, output: Path) -> dict[str, Any]:
        """Run the same command again; return how that ended and what a reader finds."""
        run = self.write(output)
        state = self.state(output)
        return {
            **ended(run),
            "share": round(run.cpu_seconds / self.first.cpu_seconds, 2),
            "state": state,
            "equal": state == self.expected,
            "same_bytes": digests(output) == self.digests,
        }

    def killed(self) -> dict[str, Any]:
        """Kill all processes in the middle, read, and run again."""
        output = self.directory / "killed"

        def in_the_middle(seconds: float) -> bool:
            late = seconds >= LATE * self.first.seconds
            return late or process.tree_bytes(output) >= HALF * self.bytes

        run = self.write(output, kill_when=in_the_middle)
        result = {
            "was_killed": run.status < 0,
            "documents": self.corpus.documents,
            "state": self.state(output),
        }
        return {**result, "again": self.again(output)}

    def full_disk(self) -> dict[str, Any]:
        """Write to a disk that is too small, read, enlarge the disk and run again."""
        place = fresh(self.directory / "disk")
        place.mkdir(parents=True)
        with small_disk(place, int(self.bytes * HALF)) as enlarge:
            limits = {} if enlarge else {"file_bytes": int(self.largest_file * HALF)}
            run = self.write(place / "output", **limits)
            state = self.state(place / "output")
            if enlarge:
                enlarge()
            result = {"limit": "disk" if enlarge else "file size", **ended(run), "state": state}
            return {**result, "documents": self.corpus.documents, "again": self.again(place / "output")}

    def bad_record(self, broken: Corpus, name: str, line: int) -> dict[str, Any]:
        """Write a corpus with one line that is no JSON."""
        output = self.directory / "broken"
        run = self.write(output, broken.files)
        printed = run.output + "".join(path.read_text() for path in output.rglob("*.log"))
        nearby = re.findall(rf"[^\n]*\b{line}\b[^\n]*", printed)
        return {
            **ended(run),
            "names_file": name in printed,
            "names_line": any(re.search(rf"({name}:|line |row |record ){line}\b", text) for text in nearby),
            "documents": broken.documents,
            "state": self.state(output),
        }


def ended(run: process.Run) -> dict[str, Any]:
    """Return how a run ended, for the results."""
    return {"status": run.status, "hung": run.hung, "message": run.message if run.status else ""}


def digests(directory: Path) -> dict[str, str]:
    """Return the digests of files with tokens or indexes, by path; without logs and caches."""
    found = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if (
            path.is_file()
            and relative.parts[0].startswith("data")
            and "tokshard" not in str(relative.parts[0])
        ):
            found[str(relative)] = hashlib.blake2b(path.read_bytes()).hexdigest()
    return found


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Any]:
    """Mount a small file system; yield what enlarges it, or None where this process may not mount."""
    options = f"size={max(size, 1 << 16)}"
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False
        ).returncode
        == 0
    )

    def enlarge() -> None:
        subprocess.run(["mount", "-o", "remount,size=8g", place], check=True)

    try:
        yield enlarge if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", place], check=True)
