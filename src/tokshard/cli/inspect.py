"""``tokshard inspect``: options, one call, one rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tokshard
from tokshard import InspectOptions
from tokshard.checks.verify.options import Level
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun
from tokshard.core.options import Option, Options

_PAGE = "HTML page"


@dataclass(frozen=True, kw_only=True)
class Page(Options):
    """Options of the HTML page."""

    html: Annotated[
        str | None,
        Option(
            "Also write a page with charts: one HTML file that needs no network.", metavar="FILE", group=_PAGE
        ),
    ] = None
    verify: Annotated[
        Level | None,
        Option(
            "With --html: also verify at this level, and list the findings on the page.",
            group=_PAGE,
            requires="html",
        ),
    ] = None


def inspect(options: InspectOptions, page: Page, run: CommandRun) -> None:
    """Inspect a dataset, index cache, blend, plan or tokenizer.

    Examples:
        tokshard inspect out/web
        tokshard inspect out/web --document 7 --tokenizer tokenizer.json
        tokshard inspect plan --rank 3 --step 100
        tokshard inspect plan --sample 123456
        tokshard inspect mix --html mix.html
    """
    if page.html is not None:
        from tokshard.checks.commands.inspect import write_inspection_page

        write_inspection_page(page.html, options, verify=page.verify)
    if run.as_json:
        run.show(tokshard.inspect(options, progress=run.progress))
    else:
        from tokshard.checks.commands.inspect import describe_path

        sections = describe_path(options, progress=run.progress)
        if not run.quiet:
            rendering.show(sections)
    if page.html is not None and not run.quiet:
        rendering.tell(f"written: {page.html}")
