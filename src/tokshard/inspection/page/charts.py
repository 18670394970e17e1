"""Bars, curves and lanes, drawn as SVG by these few lines and no library.

The libraries that were tried do not fit a page that must work offline, in light and dark, and as wide as
its window. plotly puts 4.7 MB of script into each page. pygal puts a script and the address of another one
on the network into each chart. matplotlib adds 100 MB to an installation and 0.6 s to a command, and its
charts have fixed colours, and text that shrinks with the window. All three draw the text themselves, so that
it cannot be wrapped, and is escaped by rules that are not ours.

Here only shapes are SVG, stretched to the room that they have; every label is HTML beside them, and
colours are classes of the style sheet. What a shape means is in its ``<title>``, which browsers show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.inspection.page.markup import Child, Markup, join, tag

_WIDTH, _HEIGHT = 1000, 240
_SHORT_LABEL = 24
COLOURS = 8
"""Classes ``c0`` to ``c7`` of the style sheet."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with what stands before and behind it.

    Attributes:
        label: What it is of.
        value: How long it is among the others; not negative.
        note: The value in words.
        mark: A second value that a line marks on the bar; None for no line.
        colour: The number of the colour; those from :data:`COLOURS` on begin anew.
    """

    label: str
    value: float
    note: str
    mark: float | None = None
    colour: int = 0


def bars(caption: str, rows: Sequence[Bar]) -> Markup:
    """Return a table of bars; the longest is as long as there is room."""
    most = max((max(one.value, one.mark or 0.0) for one in rows), default=0.0)
    body = [
        tag(
            "tr",
            _row_label(one.label),
            tag("td", _bar(one, most), class_="bar"),
            tag("td", one.note, class_="number"),
        )
        for one in rows
    ]
    return tag("table", tag("caption", caption), tag("tbody", *body), class_="bars")


def _bar(one: Bar, most: float) -> Markup:
    def place(value: float) -> float:
        return _WIDTH * _clipped(value / most) if most > 0 else 0.0

    # Anything above 0 can be seen, as in the terminal.
    width = max(place(one.value), 2.0) if one.value > 0 else 0.0
    mark = None
    if one.mark is not None:
        x = _number(place(one.mark))
        mark = tag("line", x1=x, x2=x, y1=0, y2=10, class_="mark")
    rect = tag("rect", width=_number(width), height=10, class_=_colour(one.colour))
    return _picture(join(rect, mark), f"{one.label}: {one.note}", height=10, class_="thin")


def curve(
    caption: str,
    points: Sequence[tuple[float, float]],
    *,
    left: tuple[str, str],
    below: tuple[str, str, str],
    steps: bool = False,
) -> Markup:
    """Return a curve with the area below it.

    Args:
        caption: What it shows.
        points: Pairs from 0 to 1: from left to right, and from bottom to top.
        left: What stands at the top and at the bottom of the left side.
        below: What stands at the left, in the middle, and at the right below.
        steps: Whether each point holds until the next one, as values of equal parts do.
    """
    placed = [(_WIDTH * _clipped(x), _HEIGHT * (1 - _clipped(y))) for x, y in points]
    if steps and placed:
        placed = _stairs(placed)
    drawn = " ".join(f"{_number(x)},{_number(y)}" for x, y in placed)
    shape = None
    if placed:
        first, last = _number(placed[0][0]), _number(placed[-1][0])
        area = f"M{first},{_HEIGHT} L{drawn} L{last},{_HEIGHT} Z"
        shape = join(
            tag("path", d=area, class_="area"), tag("path", d=f"M{drawn}", class_="stroke", fill="none")
        )
    return _figure(caption, _picture(shape, caption, height=_HEIGHT, class_="wide"), left, below)


def _stairs(placed: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ends = [x for x, _ in placed[1:]] + [float(_WIDTH)]
    return [point for (x, y), end in zip(placed, ends, strict=True) for point in ((x, y), (end, y))]


@dataclass(frozen=True, slots=True)
class Span:
    """A coloured part of a lane.

    Attributes:
        start: Where it begins, from 0 to 1.
        stop: Where it ends.
        title: What it means.
        colour: The number of the colour; those from :data:`COLOURS` on begin anew.
        shade: 0 to 1 for a light to a strong colour.
    """

    start: float
    stop: float
    title: str
    colour: int = 0
    shade: float = 1.0


def lanes(caption: str, rows: Sequence[tuple[str, Sequence[Span]]], *, below: tuple[str, str, str]) -> Markup:
    """Return lanes under each other, all of the same width, with coloured parts."""
    body = [
        tag("tr", _row_label(label), tag("td", _lane(label, spans), class_="bar")) for label, spans in rows
    ]
    axis = tag("tr", tag("th"), tag("td", _axis(below)))
    return tag("table", tag("caption", caption), tag("tbody", *body, axis), class_="lanes")


def _lane(label: str, spans: Sequence[Span]) -> Markup:
    shapes = [tag("g", tag("title", one.title), _span(one)) for one in spans]
    return _picture(join(*shapes), label, height=10, class_="thin")


def _span(one: Span) -> Markup:
    return tag(
        "rect",
        x=_number(_WIDTH * one.start),
        width=_number(_WIDTH * (one.stop - one.start)),
        height=10,
        class_=_colour(one.colour),
        fill_opacity=_number(0.25 + 0.75 * _clipped(one.shade)),
    )


def _figure(caption: str, picture: Markup, left: tuple[str, str], below: tuple[str, str, str]) -> Markup:
    side = tag("div", tag("span", left[0]), tag("span", left[1]), class_="side")
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", side, tag("div", picture, _axis(below), class_="plot"), class_="curve"),
    )


def _row_label(label: str) -> Markup:
    """Return the label of a row, which is broken into lines where it is too long for one."""
    return tag("th", label, scope="row", class_="long" if len(label) > _SHORT_LABEL else None)


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _axis(below: tuple[str, str, str]) -> Markup:
    return tag("div", *(tag("span", one) for one in below), class_="axis")


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
