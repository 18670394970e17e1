"""The whole page around its sections, and the pieces that sections are made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from tokshard.inspection.page.markup import Child, Markup, join, tag
from tokshard.inspection.page.style import STYLE
from tokshard.version import __version__

MARK = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tokshard '
)
"""How every page begins; a file that begins otherwise is none of ours."""


def page(title: str, subtitle: str, sections: Sequence[Markup]) -> str:
    """Return a page.

    It needs nothing but itself, and cannot get at anything else: its policy forbids every script and every
    request, and allows the one style sheet by its digest.

    Args:
        title: What it is about.
        subtitle: What kind of thing that is.
        sections: What it says.
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = join(
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", f"{title}: {subtitle}"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("header", tag("h1", title), tag("p", subtitle, class_="soft")),
        tag("main", *sections),
        tag("footer", f"Made by tokshard {__version__}. The page is complete in itself: it loads nothing."),
    )
    return f'{MARK}{__version__}">{head}</head>{body}</html>\n'


def section(title: str, *children: Child) -> Markup:
    """Return a part of a page with its heading."""
    return tag("section", tag("h2", title), *children)


def facts(lines: Sequence[tuple[str, object]]) -> Markup:
    """Return labels and what they stand for; an empty label goes on with the last."""
    pieces = []
    for label, value in lines:
        if label:
            pieces.append(tag("dt", label))
        pieces.append(tag("dd", str(value)))
    return tag("dl", *pieces)


def table(
    header: Sequence[str], rows: Sequence[Sequence[Child]], *, left: Sequence[int] = (0,), caption: str = ""
) -> Markup:
    """Return a table that can be scrolled sideways where there is no room; ``left`` columns are text."""

    def kind(place: int) -> str:
        return "name" if place in left else "number"

    head = tag("tr", *(tag("th", one, scope="col", class_=kind(at)) for at, one in enumerate(header)))
    body = [tag("tr", *(tag("td", cell, class_=kind(at)) for at, cell in enumerate(row))) for row in rows]
    whole = tag(
        "table", tag("caption", caption) if caption else None, tag("thead", head), tag("tbody", *body)
    )
    return tag("div", whole, class_="scroll")
