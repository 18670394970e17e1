"""Descriptions of products for people: sections of facts, tables and charts.

The same description is shown in the terminal (:mod:`tokshard.cli.rendering`) and on an HTML page
(:mod:`tokshard.checks.inspect.page`). Texts are unescaped: renderers must escape them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.formatting import Facts, Table


@dataclass(frozen=True, slots=True)
class FactList:
    """Labels and their values, one below the other; an empty label continues the one above."""

    facts: Facts


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
    """A row of spans with a label before it and a note behind it, which the terminal alone shows."""

    label: str
    spans: Sequence[Span]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LaneChart:
    """Lanes below each other, all of the same width.

    Attributes:
        caption: What they show.
        lanes: The lanes.
        below: Labels at the left, in the middle and at the right below.
        keys: The names of the colors, if no label names them.
        by_color: Whether the colors of the spans matter more than where they are.
        across: The axis of a page's chart, instead of ``below``.
        spread: The meaning of a span with a shade below 1.
    """

    caption: str
    lanes: Sequence[Lane]
    below: tuple[str, str, str]
    keys: Sequence[str] = ()
    by_color: bool = False
    across: Axis | None = None
    spread: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A text; ``good`` where it is good news, ``soft`` where it is an aside."""

    text: str
    good: bool = False
    soft: bool = False


Block = FactList | Table | BarChart | CurveChart | LaneChart | Paragraph


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a description.

    Attributes:
        title: Its heading.
        blocks: Its content.
        page_only: Blocks that follow on a page, where there is more room.
    """

    title: str
    blocks: Sequence[Block]
    page_only: Sequence[Block] = ()
