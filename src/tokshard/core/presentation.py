"""Descriptions for people: sections of lines, facts, tables and charts.

The same sections are shown in the terminal (:mod:`tokshard.cli.rendering`) and on an HTML page
(:mod:`tokshard.checks.inspect.page`). Texts are unescaped: renderers must escape them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokshard.core.formatting import count

_SHOWN_INPUTS = 10

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
        shares: The numbers from 0 to 1 in the cells after the first column of each row, by which a page
            shades them; empty for no shades.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    caption: str = ""
    hide: Sequence[str] = ()
    shares: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with a label before it and the value in words behind it.

    A line marks a second value, if there is one. Colors are numbers.
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
        columns: Titles of the labels and of the notes.
        full: The value of a bar that fills the width; None for the largest value.
        ticks: The axis below the bars, on a page.
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

    Points are pairs from 0 to 1. With ``steps``, each holds until the next one.
    """

    caption: str
    points: Sequence[tuple[float, float]]
    across: Axis
    up: Axis
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A colored part of a lane, from 0 to 1; a shade below 1 is for samples spread over all of it."""

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
        across: The axis below them, on a page.
        keys: The names of the colors, if no label names them.
        spread: The meaning of a span with a shade below 1.
    """

    caption: str
    lanes: Sequence[Lane]
    across: Axis
    keys: Sequence[str] = ()
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


def labeled(facts: Iterable[tuple[str, object]]) -> list[str]:
    """Return a line for each fact; facts without a value are left out.

    Example:
        >>> labeled([("time", "2 s"), ("reused", "")])
        ['time: 2 s']
    """
    return [f"{label}: {value}" for label, value in facts if value]


def outcome(
    action: str, written: Iterable[str], facts: Facts, time: str, next_steps: Iterable[str] = ()
) -> Section:
    """Return what a command did.

    Args:
        action: ``"found"`` if the products were up to date: then nothing took time.
        written: The products.
        facts: Facts about them; facts without a value are left out.
        time: The duration, and the speed.
        next_steps: Commands to run next.
    """
    is_found = action == "found"
    products = [("up to date" if is_found else "written", product) for product in written]
    times = [] if is_found else [("time", time)]
    return Section("", labeled([*products, *facts, *times, *(("next", step) for step in next_steps)]))


def launch_with(arguments: str) -> str:
    """Return the next step of a product that a Megatron job reads."""
    return f"launch with {arguments}; check the launch script with `tokshard doctor launch.sh`"


def planned(facts: Facts, inputs: Sequence[str] = (), notes: Sequence[str] = ()) -> Section:
    """Return what a command would do: the first fact is about the inputs, listed below it with notes."""
    lines = labeled(facts)
    listed = first_lines([f"  {text}" for text in inputs], _SHOWN_INPUTS)
    return Section("", [*lines[:1], *listed, *notes, *lines[1:], "nothing was written (--dry-run)"])


def first_lines(texts: Sequence[str], limit: int, more: str = "  and {} more") -> Iterator[str]:
    """Return at most ``limit`` texts, and a line with the number of the others.

    Example:
        >>> list(first_lines(["a", "b", "c"], 2)), list(first_lines(["a"], 2))
        (['a', 'b', '  and 1 more'], ['a'])
    """
    yield from texts[:limit]
    if len(texts) > limit:
        yield more.format(count(len(texts) - limit))
