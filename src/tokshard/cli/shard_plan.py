"""``tokshard shard-plan``: options, one call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokshard
from tokshard import ShardPlanOptions
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.from_launch import LaunchOptions
from tokshard.cli.generate import Given
from tokshard.core.presentation import Section

if TYPE_CHECKING:
    from tokshard import ShardPlanReport


def shard_plan(
    given: Given[ShardPlanOptions], launch: LaunchOptions, planned: DryRun, run: CommandRun
) -> None:
    r"""Plan which samples each rank of a training job reads at each step.

    All ranks take the same number of steps, and no sample is read twice in an epoch. The defaults are
    Megatron's order.

    Examples:
        tokshard shard-plan mix --data-parallel 8 --global-batch-size 256 -o plan

        tokshard shard-plan mix --world-size 1024 --tensor-parallel 8 \
            --pipeline-parallel 4 --global-batch-size 1024 -o plan

        tokshard shard-plan mix --from-launch 'launch.sh 7b' -o plan

        tokshard shard-plan 'data/chat-*' --documents --mode contiguous \
            --shuffle datasets --data-parallel 8 --bucket-buffer 4096 -o plan
    """
    options, warnings = launch.plan(given)
    run.warn(warnings)
    report = tokshard.shard_plan(options, dry_run=planned.dry_run, progress=run.progress)
    run.warn(report.plan.messages)
    run.show(report, sections_of)


def sections_of(report: ShardPlanReport) -> list[Section]:
    """Return the description of a plan, and what was written."""
    from tokshard.checks.inspect.plan_facts import describe_plan

    return [*describe_plan(report.plan, charts=False), report.outcome()]
