"""docs/compare.md and its plots, from docs/compare.json."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Spread

import claims
import plots
import tables
from tools import HERE, OURS, ROOT

TEMPLATE = HERE / "page.md"
PAGE = ROOT / "docs/compare.md"
IMAGES = ROOT / "docs/images"
README = ROOT / "README.md"

Results = dict[str, Any]


def render(results: Results) -> dict[Path, str]:
    """Return the page and its plots by their paths."""
    filled = TEMPLATE.read_text()
    for name, value in values(results).items():
        filled = filled.replace(f"{{{name}}}", value)
    if left := re.findall(r"\{[a-z_]+\}", filled):
        raise ValueError(f"{TEMPLATE.name} has unknown names: {', '.join(left)}")
    return {PAGE: filled, **{IMAGES / f"compare-{name}.svg": plot for name, plot in charts(results).items()}}


def write(results: Results) -> None:
    """Write the page and its plots."""
    pages = render(results)
    pages[README] = claims.updated(README.read_text(), pages[PAGE], lambda text: print(f"README.md: {text}"))
    for path, text in pages.items():
        path.write_text(text)
        print(f"written: {path.relative_to(ROOT)}")


def values(results: Results) -> dict[str, str]:
    """Return what the names of the template stand for."""
    setting = results["setting"]
    return {
        "command": setting["command"],
        "machine": results["machine"],
        "rounds": str(setting["rounds"]),
        "megabytes": f"{setting['file_bytes'] / 1e6:.0f}",
        "documents": f"{setting['documents']:,}",
        "tokens": f"{results['tokens'][OURS]['facts']['tokens']:,}",
        "files": " and ".join(f"`{name}`" for name in setting["files"]),
        "tokenizer": setting["tokenizer"],
        "vocabulary": f"{setting['vocabulary']:,}",
        "fault_megabytes": f"{setting['fault_megabytes']:g}",
        "samples": f"{setting['samples']:,}",
        "length": f"{setting['length']:,}",
        "batch": str(setting["batch"]),
        "table_versions": str(tables.versions(results)),
        "table_tokens": str(tables.tokens(results)),
        "table_index": str(tables.built(results, "index", "I")),
        "table_blend": str(tables.built(results, "blend", "B")),
        "table_load": str(tables.loaded(results)),
        "table_killed": str(tables.killed(results)),
        "table_disk": str(tables.full_disk(results)),
        "table_record": str(tables.bad_record(results)),
        "ahead": tables.ahead(results),
        "table_sizes": str(tables.sizes(results)),
    }


def charts(results: Results) -> dict[str, str]:
    """Return the plots by name."""
    size = results["setting"]["file_bytes"] / 1e6
    chosen: dict[str, tuple[str, str, Callable[[dict[str, Any]], float]]] = {
        "tokens": ("tokens", "Tokens to disk, MB of JSONL per second", lambda run: size / run["seconds"]),
        "memory": (
            "tokens",
            "Tokens to disk, memory of the largest process, MB",
            lambda run: run["largest"] / 1e6,
        ),
        "loader": ("load", "Loader in random order, samples per second", lambda run: run["rate"]),
        "first": ("load", "Time to the first batch, s", lambda run: run["first"]),
    }
    return {
        name: plots.chart(title, bars(results[stage], value))
        for name, (stage, title, value) in chosen.items()
    }


def bars(entries: dict[str, Any], value: Callable[[dict[str, Any]], float]) -> list[plots.Bar]:
    """Return the bars of a figure of all tools."""
    found = []
    for name, entry in entries.items():
        spread = Spread.of([value(run) for run in entry["runs"]])
        label = tables.title(name).replace("`", "")
        found.append(plots.Bar(label, spread.median, spread.low, spread.high, name.split("/")[0] == OURS))
    return found
