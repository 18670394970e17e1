"""Views of shard-plan besides the description of the plan: proofs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokshard.cli import rendering
from tokshard.core.formatting import count, counted, shown_path

if TYPE_CHECKING:
    from tokshard import Plan


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
