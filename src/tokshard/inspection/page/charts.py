"""Bars, curves and lanes, drawn as SVG by these few lines and no library.

The libraries that were tried do not fit a page that must work offline, in light and dark, and as wide as
its window. plotly puts 4.7 MB of script into each page. pygal puts a script and the address of another one
on the network into each chart. matplotlib adds 100 MB to an installation and 0.6 s to a command, and its
charts have fixed colors, and text that shrinks with the window. All three draw the text themselves, so that
it cannot be wrapped, and is escaped by rules that are not ours.

Here only shapes are SVG, stretched to the room that they have; every label is HTML beside them, and
colors are classes of the style sheet. What a shape means is in its ``<title>``, which browsers show.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.core.presentation import Bar, BarChart, CurveChart, LaneChart, Span
from tokshard.inspection.page.markup import Child, Markup, join, tag

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
    """Return the label of a row, which is broken into lines where it is too long for one."""
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
    """Return a share that is one: figures from damaged files must not draw over the page."""
    return min(1.0, max(0.0, value))


def _number(value: float) -> str:
    """Return a coordinate: short, and never in a form that SVG does not read."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
