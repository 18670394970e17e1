"""Views of shard-plan besides the description of the plan: proofs, simulated reads."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tokshard.cli import rendering
from tokshard.core.formatting import (
    count,
    counted,
    duration,
    number_ranges,
    shown_path,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard import (
        DiskReads,
        Plan,
        ReadSummary,
        SimulationReport,
    )

_SHOWN_NODES = 16
_HEADER = ("disk reads", "samples", "pieces", "tokens (bytes)", "4 KiB pages", "open files", "time")


def show_proofs(plan: Plan) -> None:
    """Print for each stream that continues the samples read, planned and unread."""
    history = plan.history
    if not history:
        return
    for name, stopped in history[-1].streams.items():
        proof = stopped.proof
        of = "in the open epochs of its datasets" if proof.epoch is None else f"of epoch {count(proof.epoch)}"
        consumed = counted(stopped.assignment.consumed_after(stopped.step), "consumed sample")
        rendering.line(f"{name} continues after {consumed}; samples {of}:")
        prefixes = [dataset.prefix for dataset in plan.streams[name].source.datasets]
        counts = list(zip(prefixes, proof.sources, strict=True))
        if len(counts) > 1:
            counts.append(("total", proof.total))
        rows = []
        for prefix, source in counts:
            read = source.read_earlier + source.read
            numbers = (source.samples, read, source.planned, source.unread, source.planned_later)
            rows.append([f"  {shown_path(prefix)}", *map(count, numbers)])
        rendering.table(["  dataset", "samples", "read", "planned", "unread", "in new epochs"], rows)


def show_simulation(report: SimulationReport) -> None:
    """Print the disk reads of a step of a rank and of a node, and of each node over all steps."""
    steps, ranks = len(report.steps), report.ranks_per_node
    rendering.line(
        f"simulated: {counted(steps, 'step')} of {report.stream}, {counted(ranks, 'rank')} per node"
    )
    rows = [
        [f"  {label}, {name}", *_cells(summary, which)]
        for label, summary in (("step of a rank", report.rank), ("step of a node", report.node))
        if summary is not None
        for which, name in (("least", "min"), ("mean", "mean"), ("most", "max"))
    ]
    columns = len(_HEADER) if report.bandwidth is not None else len(_HEADER) - 1  # no times without one
    rendering.table(_HEADER[:columns], [row[:columns] for row in [*rows, *_node_rows(report)]])
    _show_window(report)
    _show_mixing(report)


def _show_window(report: SimulationReport) -> None:
    window = report.window
    if window is None:
        return
    rows = [
        [
            f"  {label}",
            count(found.samples),
            *(count(found.plan.ranges), size(found.plan.size_bytes)),
            *(count(found.full_shuffle.ranges), size(found.full_shuffle.size_bytes)),
            f"{100 * found.fewer:.1f}%",
        ]
        for label, found in (("all nodes", window.all_nodes), ("node with most ranges", window.node))
    ]
    header = (f"byte ranges of {counted(window.steps, 'step')}", "samples", "ranges", "size")
    rendering.table((*header, "full shuffle", "size", "fewer"), rows)


def _show_mixing(report: SimulationReport) -> None:
    mixing = report.mixing
    if mixing is None:
        return
    rows = [
        [
            f"  {label}",
            count(found.groups),
            f"{found.design_effect:.2f}",
            "-" if found.full_shuffle is None else f"{found.full_shuffle:.2f}",
        ]
        for label, found in (("datasets", mixing.datasets), ("hundredths of the data", mixing.hundredths))
        if found is not None
    ]
    if rows:
        header = (f"mixing of {counted(mixing.steps, 'step')}", "groups", "design effect", "full shuffle")
        rendering.table(header, rows)


def _cells(summary: ReadSummary, which: str) -> list[str]:
    return [
        "-" if (found := getattr(summary, field.name)) is None else _shown(field.name, getattr(found, which))
        for field in fields(summary)
    ]


def _node_rows(report: SimulationReport) -> list[list[str]]:
    alike: dict[tuple[str, ...], list[int]] = {}
    for node in range(len(report.steps[0].nodes) if report.steps else 0):
        alike.setdefault(tuple(_total([step.nodes[node] for step in report.steps])), []).append(node)
    rows = [
        [f"  {'node' if len(nodes) == 1 else 'nodes'} {number_ranges(nodes)}, total", *cells]
        for cells, nodes in alike.items()
    ]
    if len(rows) > _SHOWN_NODES:
        more = len(rows) - _SHOWN_NODES
        return [*rows[:_SHOWN_NODES], [f"  and {count(more)} more: see --json", *[""] * (len(_HEADER) - 1)]]
    return rows


def _total(reads: Sequence[DiskReads]) -> list[str]:
    cells = []
    for field in fields(reads[0]):
        numbers = [number for read in reads if (number := getattr(read, field.name)) is not None]
        total = max(numbers) if field.name == "files" else sum(numbers)
        cells.append(_shown(field.name, total) if numbers else "-")
    return cells


def _shown(name: str, number: float) -> str:
    if name == "size_bytes":
        return size(number)
    if name == "seconds":
        return duration(number)
    return count(round(number))
