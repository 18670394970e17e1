"""Descriptions for people: sections of lines, facts, tables and charts.

The same sections are shown in the terminal (:mod:`tokshard.cli.rendering`) and on an HTML page
(:mod:`tokshard.checks.inspect.page`). Texts are unescaped: renderers must escape them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokshard.core.formatting import count

Facts = Sequence[tuple[str, object]]
"""Pairs of label and value; an empty label continues the previous one."""


@dataclass(frozen=True, slots=True)
class FactList:
    """Labels and their values, one below the other; an empty label continues the one above."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Table:
    """A table of formatted cells.

    Attributes:
        header: The column names.
        rows: The cells.
        left: The left-aligned columns; all others are right-aligned.
        caption: The title of the table.
        hide: Names of columns that a narrow terminal hides, the least important first.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    caption: str = ""
    hide: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with a label before it and a note behind it.

    Attributes:
        label: What it is of.
        value: Its length among the others; not negative.
        note: The value in words.
        mark: A second value that a line marks on the bar; None for no line.
        color: The number of the color.
    """

    label: str
    value: float
    note: str
    mark: float | None = None
    color: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled position on an axis, from 0 to 1."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a page's chart; the terminal has no room for it."""

    title: str
    ticks: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars, one below the other.

    Attributes:
        caption: What it shows.
        bars: The bars.
        columns: Column titles of the labels and of the notes.
        full: The value of a bar that fills the width; None for the largest value.
        ticks: The labels of an axis below the bars, on a page.
        mark: The meaning of the line on each bar.
    """

    caption: str
    bars: Sequence[Bar]
    columns: tuple[str, str] = ("", "")
    full: float | None = None
    ticks: Sequence[Tick] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class CurveChart:
    """A curve with the area below it, which only a page shows.

    Attributes:
        caption: What it shows.
        points: Pairs from 0 to 1: from left to right, and from bottom to top.
        across: The horizontal axis.
        up: The vertical axis.
        steps: Whether each point holds until the next one, as values of equal parts do.
    """

    caption: str
    points: Sequence[tuple[float, float]]
    across: Axis
    up: Axis
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A colored part of a lane.

    Attributes:
        start: Where it begins, from 0 to 1.
        stop: Where it ends.
        title: What it means.
        color: The number of the color.
        shade: Below 1 for samples that are spread over the whole span.
    """

    start: float
    stop: float
    title: str
    color: int = 0
    shade: float = 1.0


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of spans with a label before it and a note behind it."""

    label: str
    spans: Sequence[Span]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LaneChart:
    """Lanes below each other, all of the same width.

    Attributes:
        caption: What they show.
        lanes: The lanes.
        across: The axis below them, on a page.
        keys: The names of the colors, if no label names them.
        by_color: Whether the colors of the spans matter more than where they are.
        spread: The meaning of a span with a shade below 1.
    """

    caption: str
    lanes: Sequence[Lane]
    across: Axis
    keys: Sequence[str] = ()
    by_color: bool = False
    spread: str = ""


@dataclass(frozen=True, slots=True)
class Aside:
    """A text that explains or limits what is shown."""

    text: str


Block = str | FactList | Table | BarChart | CurveChart | LaneChart | Aside
"""A part of a section; a plain text is a line in the terminal, and a paragraph on a page."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a description.

    Attributes:
        title: Its heading; empty for the summary, or for lines that need none.
        blocks: Its content.
        page_only: Blocks that follow on a page, where there is more room.
    """

    title: str
    blocks: Sequence[Block]
    page_only: Sequence[Block] = ()


def first_lines(texts: Sequence[str], limit: int, more: str = "  and {} more") -> Iterator[str]:
    """Return at most ``limit`` texts, and a line with the number of the others.

    Example:
        >>> list(first_lines(["a", "b", "c"], 2)), list(first_lines(["a"], 2))
        (['a', 'b', '  and 1 more'], ['a'])
    """
    yield from texts[:limit]
    if len(texts) > limit:
        yield more.format(count(len(texts) - limit))
