"""Notes that several commands print."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.cli import rendering
from tokshard.cli.events import EventLog
from tokshard.cli.options import THREE_WAYS

NEUTRAL_NOTE = "Megatron will not find these files: nothing was said of the tokenizer of the job"
NEUTRAL_HINT = f"for Megatron give {THREE_WAYS}"


def warn(warnings: Sequence[str], hint: str | None = None, *, log: EventLog, quiet: bool) -> None:
    """Print warnings, with a hint to the last of them, on stderr and to the event log."""
    log.warnings(warnings)
    if quiet or not warnings:
        return
    for warning in warnings:
        rendering.tell(f"warning: {warning}")
    if hint is not None:
        rendering.tell(f"hint: {hint}")
