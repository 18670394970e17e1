"""``tokshard replan``: options, one call, and the sections of ``tokshard shard-plan``."""

from __future__ import annotations

import tokshard
from tokshard import ReplanOptions
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.shard_plan import sections_of
from tokshard.errors import UsageError


def replan(options: ReplanOptions, planned: DryRun, run: CommandRun) -> None:
    """Continue a plan with another number of GPUs, other batch sizes or a new blend.

    The new plan reads exactly the samples that are unread, each once. Options that are not passed keep the
    plan's values.

    Examples:
        tokshard replan plan --consumed-samples 1M --data-parallel 16 -o plan2
        tokshard replan plan --consumed-samples 1M --blend mix2 -o plan2
    """
    if planned.dry_run and options.blend is not None:
        raise UsageError("--dry-run cannot be used with --blend", hint="leave out --dry-run")
    report = tokshard.replan(options, dry_run=planned.dry_run, progress=run.progress)
    run.warn(report.plan.messages)
    run.show(report, sections_of)
