"""``shard-plan --simulate`` and ``--staging``: options and rendering."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tokshard import SimulateOptions, StagingOptions
from tokshard.cli import rendering
from tokshard.core.formatting import count, duration, size, visible
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard import DiskReads, ReadSummary, SimulationReport, StagingReport

_SHOWN_NODES = 16
_HEADER = ("", "samples", "pieces", "tokens", "pages", "open files", "time")


@dataclass(frozen=True, slots=True)
class LookAhead:
    """What to simulate and to stage; None for nothing."""

    simulate: SimulateOptions | None
    staging: StagingOptions | None


def look_ahead(
    *,
    simulate: bool,
    stream: str,
    steps: int,
    ranks_per_node: int,
    bandwidth: float | None,
    directory: str | None,
    remote: str | None,
    dry_run: bool,
) -> LookAhead:
    """Return the options of a simulation and of staging lists.

    Raises:
        UsageError: They do not fit together.
    """
    if dry_run and directory is not None:
        raise UsageError("--dry-run writes nothing: leave out --staging")
    if remote is not None and directory is None:
        raise UsageError("--staging-remote requires --staging, the directory of the lists")
    if bandwidth is not None and not simulate:
        raise UsageError("--bandwidth requires --simulate")
    simulated = SimulateOptions(
        stream=stream, steps=steps, ranks_per_node=ranks_per_node, bandwidth=bandwidth
    )
    staging = None
    if directory is not None:
        staging = StagingOptions(
            directory=directory, remote=remote, stream=stream, steps=steps, ranks_per_node=ranks_per_node
        )
    return LookAhead(simulated if simulate else None, staging)


def show_simulation(report: SimulationReport) -> None:
    """Print the disk reads of a step of a rank and of a node, and of each node over all steps."""
    rendering.line(
        f"simulated {count(len(report.steps))} steps of {report.stream}, "
        f"{count(report.ranks_per_node)} ranks per node:"
    )
    rows = [
        [f"  {label}, {which}", *_cells(summary, which)]
        for label, summary in (("a step of a rank", report.rank), ("a step of a node", report.node))
        if summary is not None
        for which in ("least", "mean", "most")
    ]
    rendering.table(_HEADER, rows)
    if report.steps:
        _show_nodes(report)


def _cells(summary: ReadSummary, which: str) -> list[str]:
    return [
        "-" if (found := getattr(summary, field.name)) is None else _shown(field.name, getattr(found, which))
        for field in fields(summary)
    ]


def _show_nodes(report: SimulationReport) -> None:
    nodes = len(report.steps[0].nodes)
    rows = [
        [f"  node {node}, all steps", *_total([step.nodes[node] for step in report.steps])]
        for node in range(min(nodes, _SHOWN_NODES))
    ]
    rendering.table(_HEADER, rows)
    if nodes > _SHOWN_NODES:
        rendering.line(f"  ... {count(nodes)} nodes in all: see --json")


def _total(reads: Sequence[DiskReads]) -> list[str]:
    cells = []
    for field in fields(reads[0]):
        numbers = [number for one in reads if (number := getattr(one, field.name)) is not None]
        total = max(numbers) if field.name == "files" else sum(numbers)
        cells.append(_shown(field.name, total) if numbers else "-")
    return cells


def _shown(name: str, number: float) -> str:
    if name == "size_bytes":
        return size(number)
    if name == "seconds":
        return duration(number)
    return count(round(number))


def show_staging(report: StagingReport, options: StagingOptions) -> None:
    """Print which staging lists were written."""
    directory = visible(report.directory)
    rendering.line(f"{directory}: files that each node reads in the first {count(options.steps)} steps")
    rows = [
        [f"  node {node.node}", count(node.files), size(node.size_bytes), size(node.read_bytes)]
        for node in report.nodes[:_SHOWN_NODES]
    ]
    rendering.table(["", "files", "size", "is read"], rows)
    if len(report.nodes) > _SHOWN_NODES:
        rendering.line(f"  ... {count(len(report.nodes))} nodes in all")
    rendering.line(f"next: rsync -a --files-from={directory}/node-0000.files STORAGE:/ /")
