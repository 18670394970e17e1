"""Tables of docs/compare.md, computed from docs/compare.json. Each row begins with its id, such as T1."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from measure import Spread, digits

from tools import OURS, PLAIN, TOKENS, TOOLS

Results = dict[str, Any]
Run = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: Titles of the columns, with units.
        rows: Their cells.
    """

    header: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        """Return it in Markdown: the first two columns are text."""
        rule = [
            "---" if number < 2 or not self._numeric(number) else "---:" for number in range(len(self.header))
        ]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows))

    def _numeric(self, column: int) -> bool:
        return all(row[column][:1].isdigit() or row[column] in {"-", "1"} for row in self.rows)


def spread(runs: list[Run], value: Callable[[Run], float]) -> str:
    """Return the median of a figure, and its lowest and highest value."""
    return str(Spread.of([value(run) for run in runs]))


def ratio(runs: list[Run], base: list[Run], value: Callable[[Run], float]) -> str:
    """Return the ratio of a figure to that of another tool in the same round."""
    return str(Spread.of([value(run) / value(other) for run, other in zip(runs, base, strict=True)]))


def peak(runs: list[Run], name: str) -> str:
    """Return the highest memory of all rounds, in MB."""
    return digits(max(run[name] for run in runs) / 1e6)


def title(name: str) -> str:
    """Return what the page calls a row."""
    rows = {PLAIN: "tokshard `RankLoader`, numpy arrays", TOKENS: "tokshard `data_loader`, tokens only"}
    return rows.get(name) or TOOLS[name].title


def identified(prefix: str, rows: dict[str, list[str]]) -> list[list[str]]:
    """Return the rows of tools with their ids before them; a tool has the same number in all tables."""
    numbers = {name: number for number, name in enumerate(TOOLS, 1)} | {PLAIN: 2, TOKENS: 3}
    return [[f"{prefix}{numbers[name]}", *row] for name, row in rows.items()]


def tokens(results: Results) -> Table:
    """Return the table of tokens to disk."""
    size = results["setting"]["file_bytes"]
    base = results["tokens"][OURS]["runs"]
    rows = {}
    for name, entry in results["tokens"].items():
        runs, count = entry["runs"], entry["facts"]["tokens"]
        rows[name] = [
            title(name),
            "threads" if name == "least" else str(entry["workers"]),
            spread(runs, lambda run: run["seconds"]),
            spread(runs, lambda run: size / run["seconds"] / 1e6),
            spread(runs, lambda run, count=count: count / run["seconds"] / 1e6),
            "1" if name == OURS else ratio(runs, base, lambda run: run["seconds"]),
            peak(runs, "largest"),
            peak(runs, "sum"),
            digits(entry["disk"] / 1e6),
        ]
    header = ["row", "tool", "workers", "time, s", "MB/s", "million tokens/s", "speedup of tokshard, times"]
    return Table([*header, "largest process, MB", "all processes, MB", "on disk, MB"], identified("T", rows))


def built(results: Results, stage: str, prefix: str) -> Table:
    """Return the table of indexes or blends on disk."""
    base = results[stage][OURS]["runs"]
    rows = {
        name: [
            title(name),
            spread(entry["runs"], lambda run: run["seconds"]),
            "1" if name == OURS else ratio(entry["runs"], base, lambda run: run["seconds"]),
            peak(entry["runs"], "largest"),
            digits(entry["disk"] / 1e6),
        ]
        for name, entry in results[stage].items()
    }
    header = ["row", "tool", "time, s", "speedup of tokshard, times", "largest process, MB", "on disk, MB"]
    return Table(header, identified(prefix, rows))


def loaded(results: Results) -> Table:
    """Return the table of loaders: tensors, and tokshard's numpy arrays for comparison."""
    entries = results["load"]
    base = entries[OURS]["runs"] if OURS in entries else None
    rows = {}
    for name in sorted(entries, key=lambda name: (list(TOOLS).index(name.split("/")[0]), name)):
        runs = entries[name]["runs"]
        compared = base if base and name != PLAIN else None
        rows[name] = [
            title(name) if name != OURS else "tokshard `data_loader`, tensors",
            "-" if name == PLAIN else str(entries[name]["workers"]),
            spread(runs, lambda run: run["rate"]),
            ratio(compared, runs, lambda run: run["rate"]) if compared else "-",
            spread(runs, lambda run: run["first"]),
            ratio(runs, compared, lambda run: run["first"]) if compared else "-",
            peak(runs, "largest"),
        ]
        if name == OURS:
            rows[name][3] = rows[name][5] = "1"
    header = ["row", "tool", "workers", "samples/s", "speedup of tokshard, times", "first batch, s"]
    return Table([*header, "speedup of the first batch, times", "largest process, MB"], identified("L", rows))


def ahead(results: Results) -> str:
    """Return the rows of peers that are better than tokshard's, as a list in Markdown."""

    def median(value: Callable[[Run], float]) -> Callable[[dict[str, Any]], float]:
        return lambda entry: Spread.of([value(run) for run in entry["runs"]]).median

    def disk(entry: dict[str, Any]) -> float:
        return float(digits(entry["disk"] / 1e6).replace(",", ""))  # as in the tables: others are equal

    seconds, largest = median(lambda run: run["seconds"]), median(lambda run: run["largest"])
    figures: list[tuple[str, str, str, Callable[[dict[str, Any]], float]]] = [
        ("tokens", "T", "less time to write tokens", seconds),
        ("tokens", "T", "less memory of the largest process that writes tokens", largest),
        ("tokens", "T", "less memory of all processes that write tokens", median(lambda run: run["sum"])),
        ("tokens", "T", "smaller token files", disk),
        ("index", "I", "less time to build an index", seconds),
        ("index", "I", "less memory to build an index", largest),
        ("index", "I", "smaller index files", disk),
        ("blend", "B", "less time to build a blend", seconds),
        ("blend", "B", "less memory to build a blend", largest),
        ("blend", "B", "smaller blend files", disk),
        ("load", "L", "more samples per second", median(lambda run: -run["rate"])),
        ("load", "L", "an earlier first batch", median(lambda run: run["first"])),
        ("load", "L", "less memory of the largest process of a loader", largest),
    ]
    lines = []
    for stage, prefix, words, value in figures:
        values = {
            name: value(entry)
            for name, entry in results[stage].items()
            if name in TOOLS and TOOLS[name].packages
        }
        better = {name: [title(name)] for name, found in values.items() if found < values.get(OURS, 0)}
        if better:
            rows = identified(prefix, better)
            lines.append(f"- {words}: " + ", ".join(f"{tool} ({row})" for row, tool in rows))
    return "\n".join(lines) or "- none"


def state(facts: dict[str, Any], documents: int) -> str:
    """Return what a reader finds, in words."""
    if "error" in facts:
        return "no readable dataset"
    share = facts["documents"] / documents
    if padding := facts.get("padding"):
        return f"readable, {share:.0%} of the documents, then {padding:,} tokens of padding"
    if share > 1:
        return f"readable, {share - 1:.0%} of the documents twice"
    return "readable, complete" if share == 1 else f"readable, {share:.0%} of the documents"


def ending(entry: dict[str, Any]) -> str:
    """Return how a command ended, in words."""
    if entry["hung"]:
        return "hangs"
    if entry["status"] == 0:
        return "exit code 0"
    return f"exit code {entry['status']}" if entry["status"] > 0 else f"signal {-entry['status']}"


def again(entry: dict[str, Any], documents: int) -> str:
    """Return what the same command did when it was run again, in words."""
    if entry["hung"] or entry["status"]:
        return f"{ending(entry)}: {quoted(entry['message'])}; {state(entry['state'], documents)}"
    if entry["equal"]:
        same = "bytes" if entry["same_bytes"] else "tokens"
        return f"complete, the same {same}, {entry['share']:.0%} of the CPU time"
    return f"exit code 0, but {state(entry['state'], documents)}"


def quoted(message: str) -> str:
    """Return a message of a tool as code, shortened."""
    message = re.sub(r"\x1b\[[0-9;]*[A-HJKm]", "", message)  # colors and moves of the cursor
    text = " ".join(message.replace("`", "'").replace("|", "/").split())
    return f"`{text[:100]}...`" if len(text) > 100 else f"`{text}`" if text else "no message"


def last_message(entry: dict[str, Any]) -> str:
    """Return the last message of a command; it was recorded only if the command failed."""
    return quoted(entry["message"]) if entry["status"] else "-"


def faults(
    results: Results, fault: str, cells: Callable[[dict[str, Any]], list[str]]
) -> dict[str, list[str]]:
    """Return rows of what the tools did at a fault."""
    return {name: [title(name), *cells(entry[fault])] for name, entry in results["faults"].items()}


def killed(results: Results) -> Table:
    """Return the table of runs that were killed."""

    def cells(fault: dict[str, Any]) -> list[str]:
        left = state(fault["state"], fault["documents"]) + ("" if fault["was_killed"] else " (ended before)")
        return [left, again(fault["again"], fault["documents"])]

    header = ["row", "tool", "after the kill", "the same command again"]
    return Table(header, identified("K", faults(results, "kill", cells)))


def full_disk(results: Results) -> Table:
    """Return the table of runs on a full disk."""

    def cells(fault: dict[str, Any]) -> list[str]:
        left, after = state(fault["state"], fault["documents"]), again(fault["again"], fault["documents"])
        return [ending(fault), last_message(fault), left, after]

    header = [
        "row",
        "tool",
        "ends with",
        "last message",
        "left on the disk",
        "the same command with enough room",
    ]
    return Table(header, identified("D", faults(results, "disk", cells)))


def bad_record(results: Results) -> Table:
    """Return the table of runs with a line that is not JSON."""
    names = {(True, True): "file and line", (True, False): "file", (False, True): "line"}

    def cells(fault: dict[str, Any]) -> list[str]:
        named = names.get((fault["names_file"], fault["names_line"]), "nothing")
        found = state(fault["state"], fault["documents"])
        return [ending(fault), named, last_message(fault), found]

    header = ["row", "tool", "ends with", "names", "last message", "a reader finds"]
    return Table(header, identified("R", faults(results, "record", cells)))


def versions(results: Results) -> Table:
    """Return the table of versions."""
    rows = [
        [TOOLS[name].title, ", ".join(f"{package} {version}" for package, version in found.items())]
        for name, found in results["versions"].items()
    ]
    for name, reason in {**results["skipped"], **results["failed"]}.items():
        tool, comma, stage = name.partition(",")
        rows.append([TOOLS[tool].title + comma + stage, f"skipped: {reason}"])
    return Table(["tool", "versions"], rows)


def sizes(results: Results) -> Table:
    """Return the table of install sizes."""
    rows = [
        [f"S{number}", name, f"{size / 1e6:,.0f}"]
        for number, (name, size) in enumerate(results["sizes"].items(), 1)
    ]
    return Table(["row", "installation", "MB"], rows)
