"""The page of a description: one HTML file without scripts, which needs no other file and no network.

It is built by :func:`tokshard.checks.inspect.charts.tag`, which escapes all text from data.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from itertools import groupby

from tokshard.checks.inspect.charts import Markup, bars, curve, lanes, scrollable, tag
from tokshard.core.presentation import BarChart, Block, CurveChart, FactList, LaneChart, Section, Table
from tokshard.version import __version__

MARK = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tokshard '
)
"""The first bytes of every page; tokshard replaces only files that begin with them."""

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f7fa; --ink: #1d2430; --soft: #566170; --rule: #d5dbe3; --spread: #7b8794;
  --c0: #2d69b4; --c1: #f05a0f; --c2: #781e1e; --c3: #2d87ff; --c4: #4b2d87; --c5: #c37887; --c6: #b43c00;
  --c7: #874b69;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --panel: #1c222b; --ink: #e4e8ee; --soft: #9fabba; --rule: #3a4351; --spread: #8a96a5;
    --c0: #69a5f0; --c1: #d2d21e; --c2: #e14b96; --c3: #96d2ff; --c4: #a5782d; --c5: #ff87a5; --c6: #8769f0;
    --c7: #b4a500;
  }
}
* { box-sizing: border-box; }
figure, dl { margin: 0; }
body {
  margin: 0 auto; max-width: 64rem; padding: 2rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 1rem; overflow-wrap: anywhere; }
header p { margin: 0; font-size: .9rem; }
p { margin: 0 0 1rem; max-width: 48rem; overflow-wrap: anywhere; }
section { margin-top: 2rem; border-top: 1px solid var(--rule); padding-top: 1.5rem; }
section > * + * { margin-top: 1.5rem; }
section > h2 + * { margin-top: 0; }
section > p + *, section > .keys { margin-top: .75rem; }
.soft, .note, .up, .across, .cue, footer { color: var(--soft); }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .85rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1.5rem; }
dt { color: var(--soft); grid-column: 1; }
dd { margin: 0; grid-column: 2; overflow-wrap: anywhere; white-space: pre-wrap; }
table { border-collapse: collapse; }
caption, figcaption { text-align: left; padding: 0 0 .5rem; font-weight: 600; max-width: 48rem; }
th, td { padding: .3rem 1.5rem .3rem 0; text-align: left; vertical-align: top; font-weight: normal; }
th:last-child, td:last-child { padding-right: 0; }
.heat thead th, .heat td { padding: .3rem .75rem; }
thead th { color: var(--soft); font-size: .85rem; vertical-align: bottom; }
.scroll thead th { border-bottom: 1px solid var(--rule); }
.scroll tbody tr + tr > * { border-top: 1px solid var(--rule); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead .number { white-space: normal; }
.name { overflow-wrap: anywhere; white-space: pre-wrap; min-width: 6rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
.cue { display: none; margin: 0 0 .25rem; font-size: .85rem; }
.pair { display: grid; gap: 1.5rem 3rem; align-items: start; }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
.pair table { width: 100%; }
.bars, .lanes { width: 100%; }
.bars tr > *, .scroll .lanes tr > * { border: 0; padding: .15rem .75rem .15rem 0; vertical-align: middle; }
.bars tr > :last-child, .scroll .lanes tr > :last-child { padding-right: 0; }
.bars th, .lanes th { width: 1%; font-size: .9rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bars .number { width: 1%; font-size: .9rem; }
.bars thead th { font-size: .85rem; white-space: normal; vertical-align: bottom; }
.bars.long th:first-child { width: 28%; white-space: normal; overflow-wrap: anywhere; }
.bars:not(.long) th { text-align: right; }
.note { width: 25%; font-size: .85rem; overflow-wrap: anywhere; }
.lanes .bar { min-width: 16rem; }
.bars .ticks td, .scroll .lanes .ticks td { padding-top: 0; }
svg { display: block; width: 100%; shape-rendering: crispEdges; }
svg.thin, svg.wide { background: var(--panel); }
svg.thin { height: 1.1rem; }
svg.wide { height: 14rem; shape-rendering: auto; }
svg.axis { height: 1.1rem; overflow: visible; }
svg.side { height: 14rem; overflow: visible; }
text { fill: var(--soft); font-size: .75rem; }
.side text { dominant-baseline: central; }
.curve { display: grid; grid-template-columns: 3rem 1fr; gap: .25rem .5rem; }
.curve > .axis, .across { grid-column: 2; }
.up, .across { margin: 0; font-size: .8rem; max-width: none; }
.up { grid-column: 1 / -1; padding-bottom: .35rem; }
.across { text-align: center; }
.stroke { stroke: var(--c0); stroke-width: 2; vector-effect: non-scaling-stroke; }
.area { fill: var(--c0); fill-opacity: .15; }
.grid { stroke: var(--rule); stroke-width: 1; vector-effect: non-scaling-stroke; }
.mark { stroke: var(--ink); stroke-width: 3; vector-effect: non-scaling-stroke; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); } .c7 { fill: var(--c7); }
.other, .spread { fill: var(--spread); }
.keys { list-style: none; padding: 0; margin: .75rem 0 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem;
  font-size: .9rem; }
.keys li { display: flex; gap: .5rem; align-items: baseline; overflow-wrap: anywhere; }
.key { flex: none; width: .8rem; height: .8rem; }
@media screen and (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dt, dd { grid-column: 1; }
  dt { font-size: .85rem; }
  dd { margin-bottom: .5rem; }
  .cue { display: block; }
  th, td { padding-right: 1rem; }
  .wide > table { width: max-content; }
  .wide > .lanes { width: 42rem; }
  .wide .name { max-width: 16rem; }
  .wide th:first-child { position: sticky; left: 0; background: var(--paper); max-width: 8rem; }
  .bars.long tr { display: grid; grid-template-columns: 1fr auto; gap: 0 .75rem; padding-bottom: .25rem; }
  .bars.long tbody th { grid-column: 1 / -1; width: auto; }
  .bars.long td, .bars.long th:first-child { width: auto; align-self: center; }
  .minor { display: none; }
  svg.wide, svg.side { height: 11rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  .scroll { overflow: visible; }
  figure, tr, .keys { break-inside: avoid; }
  h2, caption, figcaption { break-after: avoid; }
}
"""

_SHADES = 10
_STYLE += "".join(
    f".h{shade} {{ background: color-mix(in srgb, var(--c0) {6 * shade}%, var(--paper)); }}\n"
    for shade in range(1, _SHADES + 1)
)
_WIDE_COLUMNS = 5  # more than a phone has room for


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return a page as HTML.

    It is self-contained: its content security policy forbids scripts and requests, and allows its style sheet
    by digest.
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", f"{title}: {subtitle}"),
        tag("style", Markup(_STYLE)),
    )
    body = tag(
        "body",
        tag("header", tag("p", subtitle, class_="soft"), tag("h1", title)),
        tag("main", *map(_section, sections)),
        tag("footer", f"Written by tokshard {__version__}. This page is self-contained: it loads nothing."),
    )
    return f'{MARK}{__version__}">{"".join(head)}</head>{body}</html>\n'


def _section(section: Section) -> Markup:
    title = section.title or "Summary"
    pieces: list[Markup] = []
    # Tables with the same columns are compared: they stand side by side.
    for header, blocks in groupby(
        [*section.blocks, *section.page_only],
        lambda block: block.header if isinstance(block, Table) else None,
    ):
        elements = [element for block in blocks for element in _elements(block, title)]
        is_pair = header is not None and len(elements) > 1
        pieces += [tag("div", *elements, class_="pair")] if is_pair else elements
    return tag("section", tag("h2", title), *pieces)


def _elements(block: Block, name: str) -> list[Markup]:
    match block:
        case FactList():
            pairs = [
                (tag("dt", label) if label else None, tag("dd", str(fact))) for label, fact in block.facts
            ]
            return [tag("dl", *(element for pair in pairs for element in pair))]
        case Table():
            return [_table(block, name)]
        case BarChart():
            return bars(block)
        case CurveChart():
            return [curve(block)]
        case LaneChart():
            return [lanes(block)]
    return [tag("p", block) if isinstance(block, str) else tag("p", block.text, class_="soft")]


def _table(table: Table, name: str) -> Markup:
    kinds = ["name" if column in table.left else "number" for column in range(len(table.header))]
    titles = zip(table.header, kinds, strict=True)
    head = tag("tr", *(tag("th", title, scope="col", class_=kind) for title, kind in titles))
    body = []
    for number, row in enumerate(table.rows):
        shares = table.shares[number] if table.shares else [None] * (len(row) - 1)
        cells = [
            tag("td", cell, class_=kind if share is None else f"{kind} h{math.ceil(share * _SHADES)}")
            for cell, kind, share in zip(row[1:], kinds[1:], shares, strict=True)
        ]
        body.append(tag("tr", tag("th", row[0], scope="row", class_=kinds[0]), *cells))
    content = tag("table", tag("thead", head), tag("tbody", *body), class_="heat" if table.shares else None)
    return scrollable(content, table.caption, is_wide=len(kinds) >= _WIDE_COLUMNS, name=name)
