"""The page of a description: one HTML file without scripts, which needs no other file and no network.

HTML and SVG are a tree of elements (:func:`tag`). A plain ``str`` is text from data: what HTML would read as
markup is escaped, and control characters and bidi marks are made visible. Only :class:`Markup` is markup.

Bars, curves and lanes are drawn as SVG by these few lines and no library: the libraries that were tried do
not fit a page that must work offline, in light and dark, and as wide as its window. plotly puts 4.7 MB of
script into each page. pygal puts a script and the address of another one on the network into each chart.
matplotlib adds 100 MB to an installation and 0.6 s to a command, and its charts have fixed colors, and text
that shrinks with the window. All three draw the text themselves, so that it cannot be wrapped, and is escaped
by rules that are not ours. Here only shapes are SVG, stretched to the room that they have; every label is
HTML beside them, and colors are classes of the style sheet. What a shape means is in its ``<title>``, which
browsers show.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.findings import Finding
from tokshard.core.formatting import Table, count, counted, visible
from tokshard.core.presentation import (
    Bar,
    BarChart,
    Block,
    CurveChart,
    FactList,
    LaneChart,
    Paragraph,
    Section,
    Span,
)
from tokshard.verification.report import VerifyReport
from tokshard.version import __version__

MARK = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tokshard '
)
"""How every page begins; a file that begins otherwise is none of ours."""


_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2430; --soft: #5b6675; --rule: #d9dee5; --panel: #f5f7fa;
  --c0: #2f6fb3; --c1: #c8641e; --c2: #2f8f5b; --c3: #a23b72; --c4: #7a5fc0; --c5: #8a7a16; --c6: #188a96;
  --c7: #77604f; --bad: #b3261e; --warn: #8a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --ink: #e4e8ee; --soft: #9aa6b5; --rule: #333b47; --panel: #1c222b;
    --c0: #6aa8ea; --c1: #f09a5a; --c2: #62c48f; --c3: #e07fb4; --c4: #ab95ee; --c5: #d3c04e; --c6: #56c5d1;
    --c7: #bda28f; --bad: #ff8a80; --warn: #ffc35c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.soft, caption, figcaption, footer { color: var(--soft); }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .85rem; }
code { white-space: nowrap; font: .9em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .15rem 1rem;
  margin: .75rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
section { scroll-margin-top: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; }
caption, figcaption { text-align: left; padding-bottom: .35rem; font-size: .9rem; }
th, td { padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; font-weight: normal; }
thead th { color: var(--soft); border-bottom: 1px solid var(--rule); font-size: .85rem; white-space: nowrap; }
tbody tr + tr td, tbody tr + tr th { border-top: 1px solid var(--rule); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.name { overflow-wrap: break-word; white-space: pre-wrap; }
.bars td, .bars th, .lanes td, .lanes th {
  border: 0; padding: .1rem .6rem .1rem 0; vertical-align: middle;
}
.bars th, .lanes th {
  width: 1%; text-align: right; white-space: pre; font-size: .9rem; font-variant-numeric: tabular-nums;
}
.bars th.long, .lanes th.long { min-width: 14rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.bars .number { width: 1%; font-size: .9rem; }
.bar { min-width: 6rem; }
svg { display: block; width: 100%; background: var(--panel); shape-rendering: crispEdges; }
svg.wide { shape-rendering: auto; }
svg.thin { height: 1.05rem; }
svg.wide { height: 13rem; }
.lanes svg.thin { height: .95rem; }
figure { margin: .75rem 0; }
.curve { display: flex; gap: .6rem; }
.plot { flex: 1; min-width: 0; }
.side { display: flex; flex-direction: column; justify-content: space-between; text-align: right;
  font-size: .8rem; color: var(--soft); padding-bottom: 1.3rem; white-space: nowrap; }
.axis { display: flex; justify-content: space-between; gap: .5rem; font-size: .8rem; color: var(--soft); }
.stroke { stroke: var(--c0); stroke-width: 2; vector-effect: non-scaling-stroke; }
.area { fill: var(--c0); fill-opacity: .18; }
.mark { stroke: var(--ink); stroke-width: 2; vector-effect: non-scaling-stroke; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); } .c7 { fill: var(--c7); }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
.keys { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem;
  font-size: .9rem; }
.keys li { overflow-wrap: anywhere; }
.error { color: var(--bad); } .warning { color: var(--warn); } .good { color: var(--c2); }
.tokens { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2rem;
  align-items: start; }
@media (max-width: 34rem) {
  body { padding: 1rem .75rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; }
  .bars th, .lanes th { font-size: .8rem; }
  .bars th.long, .lanes th.long { min-width: 8rem; }
  .bars .number { font-size: .8rem; }
  svg.wide { height: 9rem; }
}
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""

_SHOWN_FINDINGS = 1000


def page(
    title: str, subtitle: str, sections: Sequence[Section], verification: VerifyReport | None = None
) -> str:
    """Return a page.

    It needs nothing but itself, and cannot get at anything else: its policy forbids every script and every
    request, and allows the one style sheet by its digest.
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
        tag("header", tag("h1", title), tag("p", subtitle, class_="soft")),
        tag("main", *parts),
        tag("footer", f"Made by tokshard {__version__}. The page is complete in itself: it loads nothing."),
    )
    return f'{MARK}{__version__}">{head}</head>{body}</html>\n'


def _section(section: Section) -> Markup:
    blocks = [*section.blocks, *section.page_only]
    return tag("section", tag("h2", section.title), *map(_block, blocks))


def _block(block: Block) -> Markup:
    match block:
        case FactList():
            return _facts(block)
        case Table():
            return _table(block.header, block.rows, left=block.left, caption=block.caption)
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
    header: Sequence[str], rows: Sequence[Sequence[Child]], *, left: Sequence[int] = (0,), caption: str = ""
) -> Markup:
    def kind(place: int) -> str:
        return "name" if place in left else "number"

    head = tag("tr", *(tag("th", name, scope="col", class_=kind(at)) for at, name in enumerate(header)))
    body = [tag("tr", *(tag("td", cell, class_=kind(at)) for at, cell in enumerate(row))) for row in rows]
    whole = tag(
        "table", tag("caption", caption) if caption else None, tag("thead", head), tag("tbody", *body)
    )
    return tag("div", whole, class_="scroll")


def _findings(report: VerifyReport) -> Markup:
    found, title = report.findings, tag("h2", "Verification")
    if not found:
        nothing = f"No problems found at level {report.level}."
        return tag("section", title, tag("p", nothing, class_="good"))
    rows: list[Sequence[Child]] = [_finding(finding) for finding in found[:_SHOWN_FINDINGS]]
    more = f", of which the first {count(_SHOWN_FINDINGS)} are shown" if len(found) > _SHOWN_FINDINGS else ""
    told = f"{counted(len(found), 'finding')} at level {report.level}{more}."
    header = ("severity", "code", "what", "where")
    return tag("section", title, tag("p", told), _table(header, rows, left=(0, 1, 2, 3)))


def _finding(finding: Finding) -> Sequence[Child]:
    place = finding.path or ""
    if finding.offset is not None:
        place += f", byte {finding.offset}"
    hint = None if finding.hint is None else tag("p", finding.hint, class_="soft")
    what = tag("div", finding.message, hint)
    return tag("span", finding.severity, class_=finding.severity), tag("code", finding.code), what, place


_NAME = re.compile(r"[a-z][a-zA-Z0-9-]*")
_EMPTY = {"meta", "rect", "line", "path", "circle", "col", "br"}


@dataclass(frozen=True, slots=True)
class Markup:
    """A piece of a page that is markup already."""

    text: str

    def __str__(self) -> str:
        return self.text


Child = str | Markup | None


def text(value: object) -> Markup:
    """Return a text from data as markup that shows it, whatever it holds."""
    return Markup(html.escape(visible(value), quote=True))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    r"""Return an element.

    Args:
        name: The element.
        children: What it holds; None is left out.
        attributes: Its attributes: ``class_`` is ``class``, ``view_box`` stays as SVG spells it
            (``viewBox``), other underscores are hyphens. None is left out.

    Raises:
        ValueError: A name is none. Names never come from data.

    Example:
        >>> str(tag("p", "a <b> & \x1b", tag("b", "bold"), title='"'))
        '<p title="&quot;">a &lt;b&gt; &amp; \\x1b<b>bold</b></p>'
    """
    opening = name + "".join(
        f' {_attribute(key)}="{text(value)}"' for key, value in attributes.items() if value is not None
    )
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of an element")
    if name in _EMPTY:
        return Markup(f"<{opening}/>" if name != "meta" else f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return pieces one after the other."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return child.text if isinstance(child, Markup) else text(child).text


def _attribute(key: str) -> str:
    name = {"view_box": "viewBox", "preserve": "preserveAspectRatio"}.get(key) or key.strip("_").replace(
        "_", "-"
    )
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of an attribute")
    return name


_WIDTH, _HEIGHT = 1000, 240
_SHORT_LABEL = 24
_COLORS = 8
"""Classes ``c0`` to ``c7`` of the style sheet."""


def bars(chart: BarChart) -> Markup:
    """Return a table of bars."""
    most = max((max(bar.value, bar.mark or 0.0) for bar in chart.bars), default=0.0)
    body = [
        tag(
            "tr",
            _row_label(bar.label),
            tag("td", _bar(bar, most), class_="bar"),
            tag("td", bar.note, class_="number"),
        )
        for bar in chart.bars
    ]
    return tag("table", tag("caption", chart.caption), tag("tbody", *body), class_="bars")


def _bar(bar: Bar, most: float) -> Markup:
    def place(value: float) -> float:
        return _WIDTH * _clipped(value / most) if most > 0 else 0.0

    # Anything above 0 can be seen, as in the terminal.
    width = max(place(bar.value), 2.0) if bar.value > 0 else 0.0
    mark = None
    if bar.mark is not None:
        x = _number(place(bar.mark))
        mark = tag("line", x1=x, x2=x, y1=0, y2=10, class_="mark")
    rect = tag("rect", width=_number(width), height=10, class_=_color(bar.color))
    return _picture(join(rect, mark), f"{bar.label}: {bar.note}", height=10, class_="thin")


def curve(chart: CurveChart) -> Markup:
    """Return a figure of a curve."""
    placed = [(_WIDTH * _clipped(x), _HEIGHT * (1 - _clipped(y))) for x, y in chart.points]
    if chart.steps and placed:
        placed = _stairs(placed)
    drawn = " ".join(f"{_number(x)},{_number(y)}" for x, y in placed)
    shape = None
    if placed:
        first, last = _number(placed[0][0]), _number(placed[-1][0])
        area = f"M{first},{_HEIGHT} L{drawn} L{last},{_HEIGHT} Z"
        shape = join(
            tag("path", d=area, class_="area"), tag("path", d=f"M{drawn}", class_="stroke", fill="none")
        )
    picture = _picture(shape, chart.caption, height=_HEIGHT, class_="wide")
    side = tag("div", tag("span", chart.left[0]), tag("span", chart.left[1]), class_="side")
    return tag(
        "figure",
        tag("figcaption", chart.caption),
        tag("div", side, tag("div", picture, _axis(chart.below), class_="plot"), class_="curve"),
    )


def _stairs(placed: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ends = [x for x, _ in placed[1:]] + [float(_WIDTH)]
    return [point for (x, y), end in zip(placed, ends, strict=True) for point in ((x, y), (end, y))]


def lanes(chart: LaneChart) -> Markup:
    """Return lanes with colored parts, and the names of the colors."""
    body = [
        tag("tr", _row_label(lane.label), tag("td", _lane(lane.label, lane.spans), class_="bar"))
        for lane in chart.lanes
    ]
    axis = tag("tr", tag("th"), tag("td", _axis(chart.below)))
    table = tag("table", tag("caption", chart.caption), tag("tbody", *body, axis), class_="lanes")
    return tag("div", table, _keys(chart.keys) if chart.keys else None)


def _keys(names: Sequence[str]) -> Markup:
    return tag("ul", *(_key(number, name) for number, name in enumerate(names)), class_="keys")


def _key(number: int, name: str) -> Markup:
    square = tag("rect", width=10, height=10, class_=_color(number))
    return tag(
        "li", tag("svg", square, view_box="0 0 10 10", class_="key", aria_hidden="true"), f"{number}: {name}"
    )


def _lane(label: str, spans: Sequence[Span]) -> Markup:
    shapes = [tag("g", tag("title", span.title), _span(span)) for span in spans]
    return _picture(join(*shapes), label, height=10, class_="thin")


def _span(span: Span) -> Markup:
    return tag(
        "rect",
        x=_number(_WIDTH * span.start),
        width=_number(_WIDTH * (span.stop - span.start)),
        height=10,
        class_=_color(span.color),
        fill_opacity=_number(0.25 + 0.75 * _clipped(span.shade)),
    )


def _row_label(label: str) -> Markup:
    return tag("th", label, scope="row", class_="long" if len(label) > _SHORT_LABEL else None)


def _color(number: int) -> str:
    return f"c{number % _COLORS}"


def _axis(below: tuple[str, str, str]) -> Markup:
    return tag("div", *(tag("span", label) for label in below), class_="axis")


def _picture(shapes: Child, title: str, *, height: int, class_: str) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        shapes,
        view_box=f"0 0 {_WIDTH} {height}",
        preserve="none",
        role="img",
        class_=class_,
    )


def _clipped(value: float) -> float:
    # Figures from damaged files must not draw over the page.
    return min(1.0, max(0.0, value))


def _number(value: float) -> str:
    # Short, and never in a form that SVG does not read.
    return f"{value:.2f}".rstrip("0").rstrip(".")
