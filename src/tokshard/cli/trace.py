"""``tokshard trace``: options, one call, one rendering as text."""

from __future__ import annotations

import tokshard
from tokshard import TraceOptions
from tokshard.cli.command_run import CommandRun


def trace(options: TraceOptions, run: CommandRun) -> None:
    """Trace a training step to its source files and lines, or a line to every step that reads it.

    The exit code is 1 if an ITEM is not a document of the data.

    Examples:
        tokshard trace plan --step 41200 --rank 7
        tokshard trace mix --sample 17 --tokenizer tokenizer.json
        tokshard trace plan web.jsonl:123 --consumed-samples 10M
        tokshard trace plan @removals.txt --json > reads.json
    """
    report = tokshard.trace(options, progress=run.progress)
    run.show(report)
    from tokshard.checks.trace.report import TraceReadsReport

    if isinstance(report, TraceReadsReport) and not report.is_complete:
        run.found_problems()
