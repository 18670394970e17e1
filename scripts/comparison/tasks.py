"""The measured stages: tokens to disk, indexes and blends on disk, loaders; in interleaved rounds."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import process
import tools
from corpus import Corpus, make, token_arrays
from tools import OURS, PLAIN, TOKENS, TOOLS, Tool

WEIGHTS = (0.5, 0.3, 0.2)
SEED = 1234


class Bench:
    """Everything that the stages share.

    Attributes:
        directory: Where everything is written.
        tools: The tools that can be used.
        options: The command's options.
        tokenizer: Members of jobs that describe the tokenizer.
        failed: Messages of peers that failed, by name and stage.
    """

    def __init__(
        self,
        directory: Path,
        chosen: list[Tool],
        options: argparse.Namespace,
        tokenizer: dict[str, Any],
        failed: dict[str, str],
    ) -> None:
        self.directory = directory
        self.tools = chosen
        self.options = options
        self.tokenizer = tokenizer
        self.failed = failed

    def run(self, tool: Tool, stage: str, output: Path, **members: Any) -> process.Run:
        """Run one stage with one tool."""
        limits = {name: members.pop(name) for name in ("kill_when", "limit", "file_bytes") if name in members}
        python = members.pop("python", None)
        job = {"stage": stage, "output": str(output), **self.tokenizer, **members}
        home = self.directory / "homes" / tool.name
        environment = tools.variables(home, ours=tool.runner == "ours")
        return process.run(
            tools.command(tool, job, self.directory, python), environment=environment, **limits
        )

    @contextmanager
    def skipping(self, tool: Tool, stage: str) -> Iterator[None]:
        """Record that a peer failed and continue; end the program if tokshard failed."""
        try:
            yield
        except FailedError as error:
            if not tool.is_peer:
                sys.exit(f"{tool.title}: {error}")
            print(f"{stage}: {tool.title} is skipped: {error}", file=sys.stderr)
            self.failed[f"{tool.name}, {stage}"] = str(error)

    def able(self, stage: str) -> list[Tool]:
        """Return the tools that have a stage."""
        return [tool for tool in self.tools if stage in tool.stages]


def fresh(directory: Path) -> Path:
    """Return a path after removing what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    return directory


class FailedError(Exception):
    """A run of a tool failed."""


def succeeded(run: process.Run) -> process.Run:
    """Return a run that did not fail.

    Raises:
        FailedError: If it failed.
    """
    if run.status:
        raise FailedError(f"status {run.status}: {run.message}")
    return run


def figures(run: process.Run) -> dict[str, Any]:
    """Return the figures of a run for the results."""
    return {
        "seconds": round(run.seconds, 4),
        "cpu": round(run.cpu_seconds, 3),
        "largest": run.largest_bytes,
        "sum": run.sum_bytes,
    }


def interleaved(
    bench: Bench,
    stage: str,
    settings: dict[str, tuple[int | None, ...]],
    once: Callable[[str, int | None, bool], dict[str, Any]],
    better: Callable[[dict[str, Any]], float],
) -> dict[str, Any]:
    """Run all rows in turn, several rounds, after a trial of all settings that is not counted.

    Args:
        bench: What the stages share.
        stage: Name of the stage.
        settings: Numbers of workers by row: the name of a tool, and what follows a slash is ignored.
        once: Runs a row with a number of workers, as a trial or not; returns its figures.
        better: Of the figures of two settings, those with the lower value are better.

    Returns:
        By row: ``workers``, and ``runs``, the figures of all rounds. A peer that fails has no row.
    """
    results: dict[str, Any] = {row: {"workers": choices[-1], "runs": []} for row, choices in settings.items()}
    for number in range(bool(bench.options.quick), bench.options.rounds + 1):
        for row, entry in list(results.items()):
            tried = {}
            for workers in settings[row] if number == 0 else [entry["workers"]]:
                print(f"{stage}, round {number}: {row}, {workers} workers", file=sys.stderr, flush=True)
                tool = TOOLS[row.split("/")[0]]
                with bench.skipping(tool, stage):
                    tried[workers] = once(row, workers, number == 0)
            if not tried:
                del results[row]
                continue
            entry["workers"] = min(tried, key=lambda workers: better(tried[workers]))
            if number:
                entry["runs"].append(tried[entry["workers"]])
    return results


def tokens(bench: Bench, corpus: Corpus) -> dict[str, Any]:
    """Measure tokens to disk; check that all tools wrote the same tokens. The trial takes a quarter."""
    output = bench.directory / "tokens"
    options = bench.options
    quarter = make(options.files, bench.directory / "quarter", options.megabytes / 4)

    def once(row: str, workers: int | None, trial: bool) -> dict[str, Any]:
        tool = TOOLS[row]
        files = (quarter if trial else corpus).files
        run = bench.run(tool, "tokens", fresh(output / tool.name), files=files, workers=workers)
        return figures(succeeded(run))

    able = bench.able("tokens")
    rows = {tool.name: tool.workers for tool in able}
    results = interleaved(bench, "tokens", rows, once, lambda run: run["seconds"])
    for name, entry in list(results.items()):
        folder = output / name
        data = folder / "data"
        entry["disk"] = process.tree_bytes(data if data.is_dir() else folder)
        with bench.skipping(TOOLS[name], "tokens"):
            entry["facts"] = succeeded(bench.run(TOOLS[name], "read", folder)).facts
            if entry["facts"] != results[OURS]["facts"]:
                raise FailedError(f"wrote other tokens: {entry['facts']} instead of {results[OURS]['facts']}")
            continue  # past the next line, which is for those that failed
        del results[name]
    return results


def prepare(bench: Bench, prefix: str) -> dict[str, list[Path]]:
    """Write one dataset and three parts of it in each tool's format; return their directories by tool."""
    arrays = token_arrays(prefix, bench.directory, len(WEIGHTS), 1 if bench.options.quick else 4)
    found: dict[str, list[Path]] = {}
    for tool in bench.able("load"):
        print(f"preparing the loader of {tool.name}", file=sys.stderr, flush=True)
        needed = arrays if "blend" in tool.stages else arrays[:1]
        outputs = [bench.directory / "sources" / tool.name / str(number) for number in range(len(needed))]
        parts = [{"output": str(path), **part} for path, part in zip(outputs, needed, strict=True)]
        with bench.skipping(tool, "load"):
            succeeded(bench.run(tool, "convert", bench.directory, length=bench.options.length, parts=parts))
            found[tool.name] = outputs
    return found


def build(bench: Bench, paths: dict[str, list[Path]], *, several: bool) -> dict[str, Any]:
    """Measure the time to build an index, or a blend of several sources, on disk."""
    stage = "blend" if several else "index"
    folder = bench.directory / stage

    def once(row: str, _workers: int | None, _trial: bool) -> dict[str, Any]:
        tool = TOOLS[row]
        first, *others = paths[tool.name]
        run = bench.run(
            tool,
            "blend",
            fresh(folder / tool.name),
            sources=list(zip(WEIGHTS, map(str, others), strict=True)) if several else [(1, str(first))],
            samples=bench.options.samples,
            length=bench.options.length,
            seed=SEED,
        )
        return figures(succeeded(run))

    rows: dict[str, tuple[int | None, ...]] = {
        tool.name: (None,) for tool in bench.able("blend") if tool.name in paths
    }
    results = interleaved(bench, stage, rows, once, lambda run: run["seconds"])
    for name, entry in results.items():
        entry["disk"] = process.tree_bytes(folder / name)
    return results


def load(bench: Bench, paths: dict[str, list[Path]]) -> dict[str, Any]:
    """Measure loaders in random order: samples per second, and the time to the first batch."""
    folder = bench.directory / "load"
    torch = next((tool.python for tool in bench.tools if "torch" in tool.packages), None)
    length, batch = bench.options.length, bench.options.batch
    samples = int(samples_of(paths[OURS][0], length) * 0.9)
    members = {"samples": samples, "length": length, "batch": batch, "seed": SEED}

    def once(row: str, workers: int | None, trial: bool) -> dict[str, Any]:
        tool = TOOLS[row.split("/", maxsplit=1)[0]]
        run = bench.run(
            tool,
            "load",
            folder / tool.name,
            sources=[(1, str(paths[tool.name][0]))],
            seconds=bench.options.seconds / 4 if trial else bench.options.seconds,
            workers=workers,
            tokens_only=row == TOKENS,
            python=torch if tool.name == OURS else None,
            **members,
        )
        facts = succeeded(run).facts
        rate = round(facts["samples"] / facts["seconds"], 1)
        return {"first": round(facts["first"], 4), "rate": rate, **figures(run)}

    ours = TOOLS[OURS]
    for name in paths:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for stage in ("blend", "plan"):
        sources = [(1, str(paths[OURS][0]))]
        succeeded(bench.run(ours, stage, folder / OURS, sources=sources, **members))
    rows: dict[str, tuple[int | None, ...]] = {PLAIN: (None,)}
    if torch:
        rows[TOKENS] = ours.loaders
        rows |= {tool.name: tool.loaders for tool in bench.able("load") if tool.name in paths}
    return interleaved(bench, "load", rows, once, lambda run: -run["rate"])


def samples_of(directory: Path, length: int) -> int:
    """Return the number of samples of a dataset in one epoch."""
    from tokshard import IndexedDataset

    return (int(IndexedDataset(str(directory / "data")).sequence_lengths.sum()) - 1) // length
