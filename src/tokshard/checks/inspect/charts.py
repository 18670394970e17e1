"""Charts of a page: bars, curves and lanes as SVG.

They are drawn by these few lines and no library: the libraries that were tried do not fit a page that must
work offline, in light and dark, and as wide as its window. plotly puts 4.7 MB of script into each page. pygal
puts a script and the address of another one on the network into each chart. matplotlib adds 100 MB to an
installation and 0.6 s to a command, and its charts have fixed colors, and text that shrinks with the window.

Shapes are stretched to the room that they have; labels keep their size: they are HTML beside the shapes, or
SVG text at a percentage of the width. Colors are classes of the style sheet. Each picture has a ``<title>``,
its text alternative, which browsers also show under the pointer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokshard.checks.inspect.markup import Child, Markup, join, tag
from tokshard.core.formatting import count
from tokshard.core.presentation import Axis, Bar, BarChart, CurveChart, Lane, LaneChart, Span, Tick

COLORS = 8
"""Classes ``c0`` to ``c7`` of the style sheet; all further datasets share ``other``."""

_WIDTH, _HEIGHT = 1000, 240
_SHORT_LABEL = 16
_FEW_SPANS = 12
_EDGE = 0.04
"""Labels closer to an end of an axis are aligned with it."""


def bars(chart: BarChart) -> Markup:
    """Return a table of bars, and the axis below them."""
    most = chart.full or max((max(bar.value, bar.mark or 0.0) for bar in chart.bars), default=0.0)
    label, note = chart.columns
    head = tag("tr", tag("th", label, scope="col"), tag("td"), tag("th", note, scope="col", class_="number"))
    body = [
        tag(
            "tr",
            tag("th", bar.label, scope="row"),
            tag("td", _bar(bar, most, chart.ticks), class_="bar"),
            tag("td", bar.note, class_="number"),
        )
        for bar in chart.bars
    ]
    if chart.ticks:
        body.append(tag("tr", tag("td"), tag("td", _labels(chart.ticks)), tag("td"), class_="ticks"))
    long = any(len(bar.label) > _SHORT_LABEL for bar in chart.bars)
    table = tag(
        "table",
        tag("caption", chart.caption),
        tag("thead", head) if label or note else None,
        tag("tbody", *body),
        class_="bars long" if long else "bars",
    )
    mark = _icon(tag("line", x1=5, x2=5, y1=0, y2=10, class_="mark"))
    return join(table, _keys([(mark, chart.mark)]) if chart.mark else None)


def _bar(bar: Bar, most: float, ticks: Sequence[Tick]) -> Markup:
    def place(value: float) -> float:
        return _WIDTH * _clipped(value / most) if most > 0 else 0.0

    # Anything above 0 can be seen, as in the terminal.
    width = max(place(bar.value), 2.0) if bar.value > 0 else 0.0
    mark = None
    if bar.mark is not None:
        x = _number(place(bar.mark))
        mark = tag("line", x1=x, x2=x, y1=0, y2=10, class_="mark")
    rect = tag("rect", width=_number(width), height=10, class_=_color(bar.color))
    grid = _grid_lines(ticks, 10)
    return _picture(join(*grid, rect, mark), f"{bar.label}: {bar.note}", height=10, class_="thin")


def curve(chart: CurveChart) -> Markup:
    """Return a figure of a curve with its axes."""
    across, up = chart.across, chart.up
    placed = [(_WIDTH * _clipped(x), _HEIGHT * (1 - _clipped(y))) for x, y in chart.points]
    if chart.steps and placed:
        placed = _stairs(placed)
    shapes = [*_grid_lines(across.ticks, _HEIGHT), *_grid_lines(up.ticks, _HEIGHT, horizontal=True)]
    if placed:
        drawn = " ".join(f"{_number(x)},{_number(y)}" for x, y in placed)
        first, last = _number(placed[0][0]), _number(placed[-1][0])
        area = f"M{first},{_HEIGHT} L{drawn} L{last},{_HEIGHT} Z"
        shapes.append(tag("path", d=area, class_="area"))
        shapes.append(tag("path", d=f"M{drawn}", class_="stroke", fill="none"))
    return tag(
        "figure",
        tag("figcaption", chart.caption),
        tag(
            "div",
            tag("p", up.title, class_="up"),
            _labels(up.ticks, vertical=True),
            _picture(join(*shapes), chart.caption, height=_HEIGHT, class_="wide"),
            _labels(across.ticks),
            tag("p", across.title, class_="across"),
            class_="curve",
        ),
    )


def _stairs(placed: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ends = [x for x, _ in placed[1:]] + [float(_WIDTH)]
    return [point for (x, y), end in zip(placed, ends, strict=True) for point in ((x, y), (end, y))]


def lanes(chart: LaneChart) -> Markup:
    """Return lanes with colored parts, their axis, and the names of the colors."""
    across = chart.across or Axis("", [Tick(place / 2, label) for place, label in enumerate(chart.below)])
    notes = any(lane.note for lane in chart.lanes)
    body = [
        tag(
            "tr",
            tag("th", lane.label, scope="row"),
            tag("td", _lane(lane, chart), class_="bar"),
            tag("td", lane.note, class_="note") if notes else None,
        )
        for lane in chart.lanes
    ]
    axis = tag("div", _labels(across.ticks), tag("p", across.title, class_="across"))
    body.append(tag("tr", tag("td"), tag("td", axis), tag("td") if notes else None, class_="ticks"))
    table = tag("table", tag("tbody", *body), class_="lanes")
    spans = max((len(lane.spans) for lane in chart.lanes), default=0)
    keys = [(_square(number), f"{number}: {name}") for number, name in enumerate(chart.keys[:COLORS])]
    if len(chart.keys) > COLORS:
        keys.append((_square(COLORS), f"{COLORS} and above: other datasets"))
    if any(span.shade < 1 for lane in chart.lanes for span in lane.spans):
        keys.append((_icon(tag("rect", width=10, height=10, class_="spread")), chart.spread))
    return tag(
        "div",
        scrollable(table, chart.caption, wide=notes or spans > _FEW_SPANS),
        _keys(keys) if keys else None,
    )


def scrollable(table: Markup, caption: str, *, wide: bool, name: str = "") -> Markup:
    """Return a figure of a table that scrolls sideways where it does not fit, by keyboard, too.

    Args:
        table: The table.
        caption: Its caption, which does not scroll; may be empty.
        wide: Whether it does not fit a phone: a line above it then says that it scrolls.
        name: Its name for screen readers if it has no caption.
    """
    cue = tag(
        "p", "Scroll sideways to see all columns \N{RIGHTWARDS ARROW}", class_="cue", aria_hidden="true"
    )
    kind = "scroll wide" if wide else "scroll"
    box = tag("div", table, class_=kind, role="region", aria_label=caption or name, tabindex=0)
    return tag("figure", tag("figcaption", caption) if caption else None, cue if wide else None, box)


def _lane(lane: Lane, chart: LaneChart) -> Markup:
    shapes = [tag("g", tag("title", span.title), _span(span)) for span in lane.spans]
    told = lane.note or ", ".join(span.title for span in lane.spans[:1])
    if chart.by_color:
        found = Counter(span.color for span in lane.spans).items()
        names = dict(enumerate(chart.keys))
        told = ", ".join(f"{names.get(color, color)} {count(times)} times" for color, times in sorted(found))
    return _picture(join(*shapes), f"{lane.label}: {told}", height=10, class_="thin")


def _span(span: Span) -> Markup:
    return tag(
        "rect",
        x=_number(_WIDTH * _clipped(span.start)),
        width=_number(_WIDTH * _clipped(span.stop - span.start)),
        height=10,
        class_="spread" if span.shade < 1 else _color(span.color),
    )


def _keys(items: Sequence[tuple[Markup, str]]) -> Markup:
    return tag("ul", *(tag("li", icon, tag("span", name)) for icon, name in items), class_="keys")


def _square(number: int) -> Markup:
    return _icon(tag("rect", width=10, height=10, class_=_color(number)))


def _icon(shape: Markup) -> Markup:
    return tag("svg", shape, view_box="0 0 10 10", class_="key", aria_hidden="true")


def _color(number: int) -> str:
    return f"c{number}" if number < COLORS else "other"


def _grid_lines(ticks: Sequence[Tick], height: int, *, horizontal: bool = False) -> list[Markup]:
    inner = [tick.position for tick in ticks if 0 < tick.position < 1]
    lines = []
    for place in inner:
        if horizontal:
            y = _number(height * (1 - place))
            lines.append(tag("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="grid"))
        else:
            x = _number(_WIDTH * place)
            lines.append(tag("line", x1=x, x2=x, y1=0, y2=height, class_="grid"))
    return lines


def _labels(ticks: Sequence[Tick], *, vertical: bool = False) -> Markup:
    """Return the labels of an axis; where there is little room, every second one is hidden."""
    texts = []
    for number, tick in enumerate(ticks):
        place = _clipped(tick.position)
        kind = "minor" if len(ticks) > 3 and number % 2 else None
        if vertical:
            texts.append(tag("text", tick.label, x="100%", y=_percent(1 - place), text_anchor="end"))
        else:
            anchor = "start" if place < _EDGE else "end" if place > 1 - _EDGE else "middle"
            texts.append(tag("text", tick.label, x=_percent(place), y=12, text_anchor=anchor, class_=kind))
    return tag("svg", *texts, class_="side" if vertical else "axis", aria_hidden="true")


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


def _percent(place: float) -> str:
    return f"{_number(100 * place)}%"


def _number(value: float) -> str:
    # Short, and never in a form that SVG does not read.
    return f"{value:.2f}".rstrip("0").rstrip(".")
