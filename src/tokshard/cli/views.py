"""Descriptions of products (:mod:`tokshard.core.presentation`) in the terminal."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence

from tokshard.cli import rendering
from tokshard.core.formatting import Table
from tokshard.core.presentation import (
    BarChart,
    Block,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    Paragraph,
    Section,
)

_LANE_CELLS = 64
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_SPREAD = "░"


def show(sections: Sequence[Section]) -> None:
    """Print sections, the first without its title."""
    for number, section in enumerate(sections):
        if number:
            rendering.line()
            rendering.heading(section.title)
        for block in section.blocks:
            _show_block(block)


def _show_block(block: Block) -> None:
    match block:
        case FactList():
            rendering.facts(block.facts)
        case Table():
            if block.caption:
                rendering.line(block.caption)
            rendering.table(block.header, block.rows, block.left)
        case BarChart():
            rendering.line(block.caption)
            rendering.bars([(bar.label, bar.value, bar.note) for bar in block.bars])
        case CurveChart():
            rendering.line(block.caption)
            rendering.curve(block.left[0], [value for _, value in block.points], 1.0, block.below[2])
        case LaneChart():
            _show_lanes(block)
        case Paragraph():
            rendering.line(block.text)


def _show_lanes(chart: LaneChart) -> None:
    rendering.line(chart.caption)
    cells = max(16, min(_LANE_CELLS, rendering.width() - 40))
    for lane in chart.lanes:
        drawn = "".join(_colors(lane, cells)) if chart.by_color else _filled(lane, cells)
        rendering.strip(lane.label, drawn, lane.note)
    if chart.by_color:
        rendering.facts([(_letter(number), name) for number, name in enumerate(chart.keys)])


def _colors(lane: Lane, cells: int) -> Iterator[str]:
    for cell in range(cells):
        middle = (cell + 0.5) / cells
        found = [span.color for span in lane.spans if span.start <= middle < span.stop]
        yield _letter(found[0]) if found else " "


def _letter(number: int) -> str:
    """Return the letter of a dataset; those after the last letter share a mark."""
    return _LETTERS[number] if number < len(_LETTERS) else "?"


def _filled(lane: Lane, cells: int) -> str:
    if any(span.shade < 1 for span in lane.spans):
        return _SPREAD * cells
    return rendering.filled([(span.start, span.stop) for span in lane.spans], 1, cells)
