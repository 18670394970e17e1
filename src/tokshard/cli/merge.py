"""``tokshard merge``: options, one call, one rendering."""

from __future__ import annotations

import tokshard
from tokshard import MergeOptions
from tokshard.cli.command_run import CommandRun, DryRun


def merge(options: MergeOptions, planned: DryRun, run: CommandRun) -> None:
    """Concatenate indexed datasets, byte-identical to Megatron's merge, or shuffle their documents.

    Datasets are concatenated in the order of the arguments; the matches of a glob are in natural order
    (part-2 before part-10). --dry-run shows the memory and the disk space of a --shuffle. A merge that was
    interrupted starts again.

    Examples:
        tokshard merge out/web out/books -o out/all
        tokshard merge 'shards/part-*' -o out/all
        tokshard merge out/web out/books --shuffle 7 -o out/shuffled
    """
    report = tokshard.merge(
        options, dry_run=planned.dry_run, progress=None if planned.dry_run else run.progress
    )
    run.warn(report.warnings)
    run.show(report)
