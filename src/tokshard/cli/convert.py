"""``tokshard convert``: options, one call, one rendering."""

from __future__ import annotations

import tokshard
from tokshard import ConvertOptions
from tokshard.cli.command_run import CommandRun, DryRun


def convert(options: ConvertOptions, planned: DryRun, run: CommandRun) -> None:
    """Convert token files of nanogpt, OLMo-core or datatrove into an indexed dataset.

    The tokens are copied, not encoded again. Documents begin at BOS tokens (nanogpt), or end where the
    .csv.gz (olmo) or .index (datatrove) beside the tokens says. Files of a directory or glob are read in
    natural order.

    Examples:
        tokshard convert fineweb10B --from nanogpt --bos-id 50256 -o out/fineweb
        tokshard convert 'dolma/part-*.npy' --from olmo --tokenizer olmo2 -o out/dolma
        tokshard convert tokenized --from datatrove -o out/web
    """
    report = tokshard.convert(
        options, dry_run=planned.dry_run, progress=None if planned.dry_run else run.progress
    )
    run.warn(report.warnings)
    run.show(report)
