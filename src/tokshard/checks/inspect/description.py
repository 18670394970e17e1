"""Description of whatever a path names, or of what a command has made.

The commands show what they have made with it, and each imports only what its own product needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokshard.checks.inspect.options import InspectOptions
    from tokshard.core.presentation import Section
    from tokshard.core.progress import Progress
    from tokshard.ranks.plan import Plan
    from tokshard.samples.blend.job import BlendReport
    from tokshard.samples.index.job import BuildIndicesReport


def describe(
    options: str | os.PathLike[str] | InspectOptions | Plan | BlendReport | BuildIndicesReport,
    *,
    charts: bool = True,
    progress: Progress | None = None,
) -> list[Section]:
    """Return the description of what :func:`inspect` summarizes, as sections of facts, tables and charts.

    Args:
        options: The options, or just a path; or a plan that is in memory already; or the report of a written
            blend, or of built indexes, of which only packed samples are described.
        charts: Whether a plan is described with charts, which open its data.
        progress: Receives the activity.

    Raises:
        InputError, UsageError, IntegrityError, StorageError: See :func:`inspect`.
    """
    from tokshard.samples.blend.job import BlendReport

    if isinstance(options, BlendReport):
        from tokshard.checks.inspect.blend_facts import describe_blend

        if options.blend is None or options.path is None:
            return []
        return describe_blend(options.blend, options.path)
    from tokshard.samples.index.job import BuildIndicesReport

    if isinstance(options, BuildIndicesReport):
        from tokshard.checks.inspect.packing_facts import describe_built

        return describe_built(options)
    from tokshard.ranks.plan import Plan

    if isinstance(options, Plan):
        from tokshard.checks.inspect.plan_facts import describe_plan

        return describe_plan(options, charts=charts)
    from tokshard.checks.inspect.job import describe_path

    return describe_path(options, progress)
