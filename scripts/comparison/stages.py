"""The measured stages: tokens to disk, indexes and blends on disk, loaders; in interleaved rounds."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import process
import tools
from corpus import Corpus, token_arrays
from tools import OURS, TOOLS, Tool

WEIGHTS = (0.5, 0.3, 0.2)
SEED = 1234


class Bench:
    """Everything that the stages share.

    Attributes:
        directory: Where everything is written.
        tools: The tools that can be used.
        options: The command's options.
        tokenizer: Members of jobs that describe the tokenizer.
    """

    def __init__(
        self, directory: Path, chosen: list[Tool], options: argparse.Namespace, tokenizer: dict[str, Any]
    ) -> None:
        self.directory = directory
        self.tools = chosen
        self.options = options
        self.tokenizer = tokenizer

    def run(self, tool: Tool, stage: str, output: Path, **members: Any) -> process.Run:
        """Run one stage with one tool."""
        limits = {
            name: members.pop(name) for name in ("kill_after", "limit", "file_bytes") if name in members
        }
        python = members.pop("python", None)
        job = {"stage": stage, "output": str(output), **self.tokenizer, **members}
        home = self.directory / "homes" / tool.name
        environment = tools.variables(home, ours=tool.runner == "ours")
        return process.run(
            tools.command(tool, job, self.directory, python), environment=environment, **limits
        )

    def able(self, stage: str) -> list[Tool]:
        """Return the tools that have a stage."""
        return [tool for tool in self.tools if stage in tool.stages]


def fresh(directory: Path) -> Path:
    """Return a path after removing what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def succeeded(tool: Tool, run: process.Run) -> process.Run:
    """Return a run; end the program if it failed."""
    if run.status:
        sys.exit(f"{tool.title} failed with {run.status}:\n{run.output[-3000:]}")
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
    once: Callable[[Tool, int | None], dict[str, Any]],
    better: Callable[[dict[str, Any]], float],
    *,
    discarded: int = 0,
) -> dict[str, Any]:
    """Run all rows in turn, several rounds; the first round tries all settings, the others use the best.

    Args:
        bench: What the stages share.
        stage: Name of the stage.
        settings: Numbers of workers by row: the name of a tool, and what follows a slash is ignored.
        once: Runs a tool with a number of workers; returns its figures.
        better: Of the figures of two settings, those with the lower value are better.
        discarded: Additional first rounds that are not counted.

    Returns:
        By row: ``workers``, ``tried`` (the value of each setting), and ``runs``, the figures of all rounds.
    """
    results: dict[str, Any] = {}
    for number in range(-discarded, bench.options.rounds):
        for row, choices in settings.items():
            entry = results.setdefault(row, {"runs": []})
            tried = {}
            for workers in [entry["workers"]] if "workers" in entry else choices:
                print(f"{stage}, round {number + 1}: {row}, {workers} workers", file=sys.stderr, flush=True)
                tried[workers] = once(TOOLS[row.split("/")[0]], workers)
            if "workers" not in entry:
                entry["workers"] = min(tried, key=lambda workers: better(tried[workers]))
                entry["tried"] = {str(workers): round(abs(better(run)), 3) for workers, run in tried.items()}
            if number >= 0:
                entry["runs"].append(tried[entry["workers"]])
    return results


def tokens(bench: Bench, corpus: Corpus) -> dict[str, Any]:
    """Measure tokens to disk; check that all tools wrote the same tokens."""
    output = bench.directory / "tokens"

    def once(tool: Tool, workers: int | None) -> dict[str, Any]:
        run = bench.run(tool, "tokens", fresh(output / tool.name), files=corpus.files, workers=workers)
        return figures(succeeded(tool, run))

    able = bench.able("tokens")
    results = interleaved(
        bench, "tokens", {tool.name: tool.workers for tool in able}, once, lambda run: run["seconds"]
    )
    for tool in able:
        folder = output / tool.name
        data = folder / "data"
        results[tool.name]["disk"] = process.tree_bytes(data if data.is_dir() else folder)
        results[tool.name]["facts"] = bench.run(tool, "read", folder).facts
    expected = results[OURS]["facts"]
    for name, entry in results.items():
        if entry["facts"] != expected:
            sys.exit(f"{TOOLS[name].title} wrote other tokens: {entry['facts']} instead of {expected}")
    return results


def prepare(bench: Bench, prefix: str) -> dict[str, list[Path]]:
    """Write one dataset and three parts of it in each tool's format; return their directories by tool."""
    arrays = token_arrays(prefix, bench.directory, len(WEIGHTS), 1 if bench.options.quick else 4)
    found: dict[str, list[Path]] = {}
    for tool in bench.able("load"):
        print(f"preparing the loader of {tool.name}", file=sys.stderr, flush=True)
        outputs = [bench.directory / "sources" / tool.name / str(number) for number in range(len(arrays))]
        parts = [{"output": str(path), **part} for path, part in zip(outputs, arrays, strict=True)]
        succeeded(tool, bench.run(tool, "convert", bench.directory, length=bench.options.length, parts=parts))
        found[tool.name] = outputs
    return found


def _sources(paths: list[Path], several: bool) -> list[tuple[float, str]]:
    """Return the weights and directories of a blend of the three parts, or the whole dataset."""
    if several:
        return list(zip(WEIGHTS, map(str, paths[1:]), strict=True))
    return [(1, str(paths[0]))]


def build(bench: Bench, paths: dict[str, list[Path]], *, several: bool) -> dict[str, Any]:
    """Measure the time to build an index, or a blend of several sources, on disk."""
    stage = "blend" if several else "index"
    folder = bench.directory / stage

    def once(tool: Tool, _workers: int | None) -> dict[str, Any]:
        run = bench.run(
            tool,
            "blend",
            fresh(folder / tool.name),
            sources=_sources(paths[tool.name], several),
            samples=bench.options.samples,
            length=bench.options.length,
            seed=SEED,
        )
        return figures(succeeded(tool, run))

    rows: dict[str, tuple[int | None, ...]] = {tool.name: (None,) for tool in bench.able("blend")}
    results = interleaved(bench, stage, rows, once, lambda run: run["seconds"])
    for name, entry in results.items():
        entry["disk"] = process.tree_bytes(folder / name)
    return results


def load(
    bench: Bench, paths: dict[str, list[Path]], *, several: bool, like: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure loaders in random order: samples per second, and the time to the first batch.

    Args:
        bench: What the stages share.
        paths: From :func:`prepare`.
        several: Read the blend of all parts instead of the whole dataset.
        like: Results whose numbers of workers are used; without them all are tried.
    """
    stage = "mix" if several else "load"
    folder = bench.directory / stage
    torch = next((tool.python for tool in bench.tools if "torch" in tool.packages), None)
    able = bench.able(stage)
    members = {"samples": bench.options.loaded, "length": bench.options.length, "batch": bench.options.batch}

    def once(tool: Tool, workers: int | None) -> dict[str, Any]:
        run = bench.run(
            tool,
            "load",
            folder / tool.name,
            sources=_sources(paths[tool.name], several),
            seconds=bench.options.seconds,
            seed=SEED,
            workers=workers,
            python=torch if tool.name == OURS else None,
            **members,
        )
        facts = run.facts
        return {
            "first": round(facts["first"], 4),
            "rate": round(facts["samples"] / facts["seconds"], 1),
            **figures(run),
        }

    for tool in able:
        (folder / tool.name).mkdir(parents=True, exist_ok=True)
        for name in ("blend", "plan") if tool.name == OURS else ():
            sources = _sources(paths[tool.name], several)
            run = bench.run(tool, name, folder / tool.name, sources=sources, seed=SEED, **members)
            succeeded(tool, run)
    rows: dict[str, tuple[int | None, ...]] = {f"{OURS}/plain": (None,)}
    if torch:
        rows |= {tool.name: (like[tool.name]["workers"],) if like else tool.loaders for tool in able}
    # The first round also fills caches.
    return interleaved(bench, stage, rows, once, lambda run: -run["rate"], discarded=1)


def samples_of(directory: Path, length: int) -> int:
    """Return the number of samples of a dataset in one epoch."""
    from tokshard import IndexedDataset

    return (int(IndexedDataset(str(directory / "data")).sequence_lengths.sum()) - 1) // length
