"""``tokshard export``: options, one call, one rendering."""

from __future__ import annotations

import tokshard
from tokshard import ExportOptions
from tokshard.cli.command_run import CommandRun, DryRun


def export(options: ExportOptions, planned: DryRun, run: CommandRun) -> None:
    """Export a dataset or samples in the format of another trainer.

    The token files have the bytes that the format's own writer makes from the same ids: OLMo-core (olmo),
    modded-nanogpt, llm.c and NeMo Automodel (nanogpt), datatrove and nanotron (datatrove), or Parquet.

    Examples:
        tokshard export out/web --to olmo -o exports/web
        tokshard export out/web --to nanogpt --shard-tokens 10M -o exports/web-nanogpt
        tokshard export mix --samples --to parquet -o exports/mix
    """
    report = tokshard.export(options, dry_run=planned.dry_run, progress=run.progress)
    run.warn(report.warnings)
    run.show(report)
