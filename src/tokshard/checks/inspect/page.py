"""The page of a description: one HTML file without scripts, which needs no other file and no network.

It is built from the elements of :mod:`tokshard.checks.inspect.markup`, which escape all text from data.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby

from tokshard.checks.inspect.charts import bars, curve, lanes, scrollable
from tokshard.checks.inspect.markup import Child, Markup, join, tag
from tokshard.checks.verify.report import VerifyReport
from tokshard.core.findings import Finding
from tokshard.core.formatting import Table, count, counted
from tokshard.core.presentation import (
    BarChart,
    Block,
    CurveChart,
    FactList,
    LaneChart,
    Paragraph,
    Section,
)
from tokshard.version import __version__

MARK = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tokshard '
)
"""The first bytes of every page; tokshard replaces only files that begin with them."""


_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f7fa; --ink: #1d2430; --soft: #566170; --rule: #d5dbe3; --spread: #7b8794;
  --shade: #1d243038;
  --c0: #2d69b4; --c1: #f05a0f; --c2: #781e1e; --c3: #2d87ff; --c4: #4b2d87; --c5: #c37887; --c6: #b43c00;
  --c7: #874b69; --good: #1c6b3c; --bad: #b3261e; --warn: #8a5a00;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --panel: #1c222b; --ink: #e4e8ee; --soft: #9fabba; --rule: #3a4351; --spread: #8a96a5;
    --shade: #e4e8ee40;
    --c0: #69a5f0; --c1: #d2d21e; --c2: #e14b96; --c3: #96d2ff; --c4: #a5782d; --c5: #ff87a5; --c6: #8769f0;
    --c7: #b4a500; --good: #62c48f; --bad: #ff8a80; --warn: #ffc35c;
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
code { white-space: nowrap; font: .9em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1.5rem; }
dt { color: var(--soft); grid-column: 1; }
dd { margin: 0; grid-column: 2; overflow-wrap: anywhere; white-space: pre-wrap; }
table { border-collapse: collapse; }
caption, figcaption { text-align: left; padding: 0 0 .5rem; font-weight: 600; max-width: 48rem; }
th, td { padding: .3rem 1.5rem .3rem 0; text-align: left; vertical-align: top; font-weight: normal; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-size: .85rem; vertical-align: bottom; }
.scroll thead th { border-bottom: 1px solid var(--rule); }
.scroll tbody tr + tr > * { border-top: 1px solid var(--rule); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead .number { white-space: normal; }
.name { overflow-wrap: anywhere; white-space: pre-wrap; min-width: 6rem; }
.scroll {
  overflow-x: auto;
  background:
    linear-gradient(to right, var(--paper) 40%, transparent) left,
    linear-gradient(to left, var(--paper) 40%, transparent) right,
    linear-gradient(to right, var(--shade), transparent) left,
    linear-gradient(to left, var(--shade), transparent) right;
  background-repeat: no-repeat; background-size: 2.5rem 100%, 2.5rem 100%, 1rem 100%, 1rem 100%;
  background-attachment: local, local, scroll, scroll;
}
.scroll:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
.cue { display: none; margin: 0 0 .25rem; font-size: .85rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1.5rem 3rem; align-items: start; }
.pair table { width: 100%; }
.bars, .lanes { width: 100%; }
.bars th, .bars td, .scroll .lanes tr > * {
  border: 0; padding: .15rem .75rem .15rem 0; vertical-align: middle;
}
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
.error { color: var(--bad); } .warning { color: var(--warn); } .good { color: var(--good); }
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
  .scroll { overflow: visible; background: none; }
  figure, tr, .keys { break-inside: avoid; }
  h2, caption, figcaption { break-after: avoid; }
}
"""

_SHOWN_FINDINGS = 1000
_WIDE_COLUMNS = 5
"""A table of more columns than a phone has room for."""


def page(
    title: str, subtitle: str, sections: Sequence[Section], verification: VerifyReport | None = None
) -> str:
    """Return a page as HTML.

    It is self-contained: its content security policy forbids scripts and requests, and allows its style sheet
    by digest.
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [_section(section) for section in sections]
    if verification is not None:
        parts.insert(1, _findings(verification))
    head = join(
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", f"{title}: {subtitle}"),
        tag("style", Markup(_STYLE)),
    )
    body = tag(
        "body",
        tag("header", tag("p", subtitle, class_="soft"), tag("h1", title)),
        tag("main", *parts),
        tag("footer", f"Written by tokshard {__version__}. This page is self-contained: it loads nothing."),
    )
    return f'{MARK}{__version__}">{head}</head>{body}</html>\n'


def _section(section: Section) -> Markup:
    pieces: list[Markup] = []
    # Tables with the same columns are compared: they stand side by side.
    for header, blocks in groupby([*section.blocks, *section.page_only], _header):
        found = [_block(block, section.title) for block in blocks]
        pieces += [tag("div", *found, class_="pair")] if header is not None and len(found) > 1 else found
    return tag("section", tag("h2", section.title), *pieces)


def _header(block: Block) -> Sequence[str] | None:
    return block.header if isinstance(block, Table) else None


def _block(block: Block, name: str) -> Markup:
    match block:
        case FactList():
            return _facts(block)
        case Table():
            return _table(block.header, block.rows, left=block.left, caption=block.caption, name=name)
        case BarChart():
            return bars(block)
        case CurveChart():
            return curve(block)
        case LaneChart():
            return lanes(block)
        case Paragraph():
            return tag("p", block.text, class_="good" if block.good else "soft" if block.soft else None)


def _facts(block: FactList) -> Markup:
    pieces = []
    for label, value in block.facts:
        if label:
            pieces.append(tag("dt", label))
        pieces.append(tag("dd", str(value)))
    return tag("dl", *pieces)


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[Child]],
    *,
    left: Sequence[int],
    caption: str = "",
    name: str,
) -> Markup:
    def kind(place: int) -> str:
        return "name" if place in left else "number"

    def cells(row: Sequence[Child]) -> Markup:
        first = tag("th", row[0], scope="row", class_=kind(0))
        return tag("tr", first, *(tag("td", cell, class_=kind(at)) for at, cell in enumerate(row[1:], 1)))

    head = tag("tr", *(tag("th", name, scope="col", class_=kind(at)) for at, name in enumerate(header)))
    table = tag("table", tag("thead", head), tag("tbody", *map(cells, rows)))
    return scrollable(table, caption, wide=len(header) >= _WIDE_COLUMNS, name=name)


def _findings(report: VerifyReport) -> Markup:
    found, title = report.findings, tag("h2", "Verification")
    if not found:
        nothing = f"No problems found at level {report.level}."
        return tag("section", title, tag("p", nothing, class_="good"))
    rows: list[Sequence[Child]] = [_finding(finding) for finding in found[:_SHOWN_FINDINGS]]
    more = f", of which the first {count(_SHOWN_FINDINGS)} are shown" if len(found) > _SHOWN_FINDINGS else ""
    told = f"{counted(len(found), 'finding')} at level {report.level}{more}."
    header = ("severity", "code", "finding", "location")
    return tag("section", title, tag("p", told), _table(header, rows, left=(0, 1, 2, 3), name="Findings"))


def _finding(finding: Finding) -> Sequence[Child]:
    place = finding.path or ""
    if finding.offset is not None:
        place += f", byte {finding.offset}"
    hint = None if finding.hint is None else tag("p", finding.hint, class_="soft")
    what = tag("div", finding.message, hint)
    return tag("span", finding.severity, class_=finding.severity), tag("code", finding.code), what, place
