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
SHOWN = (OURS, "megatron", "datatrove", "streaming", "datasets")

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
    pages[README] = readme(results, README.read_text())
    for path, text in pages.items():
        path.write_text(text)
        print(f"written: {path.relative_to(ROOT)}")
    for text in claims.wrong(pages[README], pages[PAGE]):
        print(f"README.md: {text}")


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
        "table_load": str(tables.loaded(results, "load", "L")),
        "table_mix": str(tables.loaded(results, "mix", "M")),
        "table_killed": str(tables.killed(results)),
        "table_disk": str(tables.full_disk(results)),
        "table_record": str(tables.bad_record(results)),
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


def readme(results: Results, text: str) -> str:
    """Return README.md with the generated block: some rows of the page, with their ids."""
    tokens = {row[1]: row for row in tables.tokens(results).rows}
    loaded = {row[1].split(" `")[0]: row for row in tables.loaded(results, "load", "L").rows}
    columns = ["tokens to disk, MB/s", "largest process, MB", "loader, samples/s", "first batch, s"]
    lines = [f"| | {' | '.join(columns)} |", "|---|---:|---:|---:|---:|"]
    for name in SHOWN:
        if name not in results["tokens"] or name not in results["load"]:
            continue
        title = tables.title(name)
        row, loader = tokens[title], loaded[title]
        cells = [
            f"{median(row[4])} {link(row[0], 'tokens-to-disk')}",
            f"{median(row[7])} {link(row[0], 'tokens-to-disk')}",
            f"{median(loader[3])} {link(loader[0], 'loader')}",
            f"{median(loader[5])} {link(loader[0], 'loader')}",
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    begin, end = text.index(claims.BEGIN) + len(claims.BEGIN), text.index(claims.END)
    return "\n".join([text[:begin], *lines, text[end:]])


def median(cell: str) -> str:
    """Return the first number of a cell."""
    return cell.partition(" ")[0]


def link(row: str, section: str) -> str:
    """Return a link to a row of the page."""
    return f"[{row}](docs/compare.md#{section})"
