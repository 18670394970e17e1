"""``tokshard diff``: options, one call, one rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tokshard
from tokshard import DiffOptions
from tokshard.cli.command_run import CommandRun
from tokshard.core.options import Option, Options


@dataclass(frozen=True, kw_only=True)
class Compared(Options):
    """The two products to compare."""

    first: Annotated[str, Option("A plan, blend or index cache.", is_argument=True, metavar="A")]
    second: Annotated[str, Option("Another one of the same kind.", is_argument=True, metavar="B")]


def diff(compared: Compared, options: DiffOptions, run: CommandRun) -> None:
    """Compare two plans, blends or index caches: the fields, the first difference, and counts per dataset.

    Plans are compared from the consumed samples at which the later one begins. The exit code is 0 if both
    read the same samples, and 1 if they do not.

    Examples:
        tokshard diff plan plan2
        tokshard diff mix mix2 --json
        tokshard diff old-cache new-cache
    """
    report = tokshard.diff(compared.first, compared.second, options, progress=run.progress)
    run.warn(report.warnings)
    run.show(report)
    if not report.reads_same:
        run.found_problems()
