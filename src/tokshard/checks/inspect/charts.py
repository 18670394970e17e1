"""Elements of a page, and its charts as SVG: bars, curves and lanes.

Charts are drawn here because no library fits a page that works offline, in light and dark, at any width:
plotly puts 4.7 MB of script into a page, pygal loads a script, and matplotlib's colors and sizes are fixed.
Shapes are stretched to the available room; labels keep their size: they are HTML beside the shapes, or SVG
text at a percentage of the width. Colors are classes of the style sheet. Each picture has a ``<title>``, its
text alternative, which browsers also show under the pointer.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from tokshard.core.formatting import visible
from tokshard.core.presentation import Bar, BarChart, CurveChart, Lane, LaneChart, Tick

COLORS = 8
"""Classes ``c0`` to ``c7`` of the style sheet; all further datasets share ``other``."""

_WIDTH, _HEIGHT = 1000, 240
_SHORT_LABEL = 16
_FEW_SPANS = 12
_EDGE = 0.04
"""Labels closer to an end of an axis are aligned with it."""

_NAME = re.compile(r"[a-z][a-zA-Z0-9-]*")
_EMPTY = {"meta", "rect", "line", "path"}


class Markup(str):
    """Markup that is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: object) -> Markup:
    r"""Return an element; a child that is no :class:`Markup` is text from data, which is escaped.

    Args:
        name: The element.
        children: Its content; None is left out.
        attributes: Its attributes. Underscores are hyphens, but for ``class_`` and SVG's ``viewBox``. None is
            left out.

    Raises:
        ValueError: The name of the element or of an attribute is invalid. Pass no names from data.

    Example:
        >>> tag("p", "a <b> & \x1b", tag("b", "bold"), title='"')
        '<p title="&quot;">a &lt;b&gt; &amp; \\x1b<b>bold</b></p>'
    """
    values = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    for kind, part in (("element", name), *(("attribute", key) for key in values)):
        if _NAME.fullmatch(part) is None:
            raise ValueError(f"{part!r} is not an {kind} name")
    opening = name + "".join(
        f' {key}="{_escaped(str(values[key]))}"' for key in values if values[key] is not None
    )
    if name in _EMPTY:
        return Markup(f"<{opening}/>" if name != "meta" else f"<{opening}>")
    return Markup(
        f"<{opening}>{''.join(_escaped(child) for child in children if child is not None)}</{name}>"
    )


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(visible(text), quote=True)


def bars(chart: BarChart) -> list[Markup]:
    """Return a table of bars with the axis below them, and the meaning of the marks."""
    full = chart.full or max((max(bar.value, bar.mark or 0.0) for bar in chart.bars), default=0.0)
    label, note = chart.columns
    titles = (tag("th", label, scope="col"), tag("td"), tag("th", note, scope="col", class_="number"))
    rows = [(bar.label, _bar(bar, full, chart.ticks), bar.note) for bar in chart.bars]
    table = tag(
        "table",
        tag("caption", chart.caption),
        tag("thead", tag("tr", *titles)) if label or note else None,
        _body(rows, "number", _labels(chart.ticks) if chart.ticks else None),
        class_="bars long" if any(len(bar.label) > _SHORT_LABEL for bar in chart.bars) else "bars",
    )
    return [table, _keys([(_line(x1=5, x2=5, y1=0, y2=10), chart.mark)])] if chart.mark else [table]


def _body(rows: Sequence[tuple[str, Markup, str]], kind: str | None, axis: Markup | None) -> Markup:
    """Return the rows of a chart: label, picture, and note unless ``kind`` is None; and its axis."""
    body = [
        tag(
            "tr",
            tag("th", label, scope="row"),
            tag("td", picture, class_="bar"),
            tag("td", note, class_=kind) if kind else None,
        )
        for label, picture, note in rows
    ]
    if axis is not None:
        body.append(tag("tr", tag("td"), tag("td", axis), tag("td") if kind else None, class_="ticks"))
    return tag("tbody", *body)


def _bar(bar: Bar, full: float, ticks: Sequence[Tick]) -> Markup:
    scale = _WIDTH / full if full > 0 else 0.0
    # Anything above 0 can be seen, as in the terminal.
    width = max(_clipped(scale * bar.value, _WIDTH), 2.0) if bar.value > 0 else 0.0
    shapes = [*_grid(ticks), tag("rect", width=_number(width), height=10, class_=_color(bar.color))]
    if bar.mark is not None:
        x = _number(_clipped(scale * bar.mark, _WIDTH))
        shapes.append(_line(x1=x, x2=x, y1=0, y2=10))
    return _picture(f"{bar.label}: {bar.note}", *shapes)


def curve(chart: CurveChart) -> Markup:
    """Return a figure of a curve with its axes."""
    points = [(_WIDTH * _clipped(x), _HEIGHT * (1 - _clipped(y))) for x, y in chart.points]
    if chart.steps:
        ends = [*(x for x, _ in points[1:]), float(_WIDTH)]
        points = [point for (x, y), end in zip(points, ends, strict=False) for point in ((x, y), (end, y))]
    shapes = [*_grid(chart.across.ticks, _HEIGHT), *_grid(chart.up.ticks, _HEIGHT, is_vertical=True)]
    if points:
        drawn = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        area = f"M{_number(points[0][0])},{_HEIGHT} L{drawn} L{_number(points[-1][0])},{_HEIGHT} Z"
        shapes += [
            tag("path", d=area, class_="area"),
            tag("path", d=f"M{drawn}", class_="stroke", fill="none"),
        ]
    parts = (
        tag("p", chart.up.title, class_="up"),
        _labels(chart.up.ticks, is_vertical=True),
        _picture(chart.caption, *shapes, height=_HEIGHT, class_="wide"),
        _labels(chart.across.ticks),
        tag("p", chart.across.title, class_="across"),
    )
    return tag("figure", tag("figcaption", chart.caption), tag("div", *parts, class_="curve"))


def lanes(chart: LaneChart) -> Markup:
    """Return lanes with colored parts, their axis, and the names of the colors."""
    keys = [(_square(_color(number)), f"{number}: {name}") for number, name in enumerate(chart.keys[:COLORS])]
    if len(chart.keys) > COLORS:
        keys.append((_square("other"), f"{COLORS} and above: other datasets"))
    if any(span.shade < 1 for lane in chart.lanes for span in lane.spans):
        keys.append((_square("spread"), chart.spread))
    axis = tag("div", _labels(chart.across.ticks), tag("p", chart.across.title, class_="across"))
    rows = [(lane.label, _lane(lane), lane.note) for lane in chart.lanes]
    has_notes = any(lane.note for lane in chart.lanes)
    is_wide = has_notes or any(len(lane.spans) > _FEW_SPANS for lane in chart.lanes)
    table = tag("table", _body(rows, "note" if has_notes else None, axis), class_="lanes")
    return tag("div", scrollable(table, chart.caption, is_wide=is_wide), _keys(keys) if keys else None)


def _lane(lane: Lane) -> Markup:
    shapes = []
    for span in lane.spans:
        x, width = (_number(_WIDTH * _clipped(part)) for part in (span.start, span.stop - span.start))
        color = "spread" if span.shade < 1 else _color(span.color)
        shapes.append(
            tag("g", tag("title", span.title), tag("rect", x=x, width=width, height=10, class_=color))
        )
    text = lane.note or ", ".join(span.title for span in lane.spans[:1])
    return _picture(f"{lane.label}: {text}", *shapes)


def scrollable(table: Markup, caption: str, *, is_wide: bool, name: str = "") -> Markup:
    """Return a figure of a table that scrolls sideways where it does not fit, also by keyboard.

    Args:
        table: The table.
        caption: Its caption, which does not scroll; may be empty.
        is_wide: Whether it does not fit a phone: a line above it then says that it scrolls.
        name: Its name for screen readers if it has no caption.
    """
    cue = "Scroll sideways to see all columns \N{RIGHTWARDS ARROW}"
    kind = "scroll wide" if is_wide else "scroll"
    return tag(
        "figure",
        tag("figcaption", caption) if caption else None,
        tag("p", cue, class_="cue", aria_hidden="true") if is_wide else None,
        tag("div", table, class_=kind, role="region", aria_label=caption or name, tabindex=0),
    )


def _keys(items: Sequence[tuple[Markup, str]]) -> Markup:
    icons = (tag("svg", shape, viewBox="0 0 10 10", class_="key", aria_hidden="true") for shape, _ in items)
    names = (tag("span", name) for _, name in items)
    return tag("ul", *(tag("li", *item) for item in zip(icons, names, strict=True)), class_="keys")


def _square(color: str) -> Markup:
    return tag("rect", width=10, height=10, class_=color)


def _line(class_: str = "mark", **ends: object) -> Markup:
    return tag("line", **ends, class_=class_)


def _color(number: int) -> str:
    return f"c{number}" if number < COLORS else "other"


def _grid(ticks: Sequence[Tick], height: int = 10, *, is_vertical: bool = False) -> list[Markup]:
    inner = [tick.position for tick in ticks if 0 < tick.position < 1]
    if is_vertical:
        places = [_number(height * (1 - position)) for position in inner]
        return [_line("grid", x1=0, x2=_WIDTH, y1=y, y2=y) for y in places]
    return [_line("grid", x1=x, x2=x, y1=0, y2=height) for x in (_number(_WIDTH * at) for at in inner)]


def _labels(ticks: Sequence[Tick], *, is_vertical: bool = False) -> Markup:
    """Return the labels of an axis; where there is little room, every second one is hidden."""
    texts = []
    for number, tick in enumerate(ticks):
        at = _clipped(tick.position)
        if is_vertical:
            texts.append(
                tag("text", tick.label, x="100%", y=f"{_number(100 - 100 * at)}%", text_anchor="end")
            )
            continue
        anchor = "start" if at < _EDGE else "end" if at > 1 - _EDGE else "middle"
        kind = "minor" if len(ticks) > 3 and number % 2 else None
        x = f"{_number(100 * at)}%"
        texts.append(tag("text", tick.label, x=x, y=12, text_anchor=anchor, class_=kind))
    return tag("svg", *texts, class_="side" if is_vertical else "axis", aria_hidden="true")


def _picture(title: str, *shapes: Markup, height: int = 10, class_: str = "thin") -> Markup:
    box = {"viewBox": f"0 0 {_WIDTH} {height}", "preserveAspectRatio": "none"}
    return tag("svg", tag("title", title), *shapes, **box, role="img", class_=class_)


def _clipped(value: float, most: float = 1.0) -> float:
    # Figures from damaged files must not draw over the page.
    return min(most, max(0.0, value))


def _number(value: float) -> str:
    # Short, and never in a form that SVG does not read.
    return f"{value:.2f}".rstrip("0").rstrip(".")
