"""The one renderer of the commands: sections of lines, facts, tables and charts, as wide as the terminal.

All text is made harmless here; numbers, sizes, times and paths are formatted by
:mod:`tokshard.core.formatting`. rich sets colors, measures characters that are two cells wide, and leaves out
what a file or a pipe cannot show; its markup is never used.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokshard.cli import terminal
from tokshard.core.formatting import visible
from tokshard.core.presentation import (
    Aside,
    BarChart,
    Block,
    FactList,
    Facts,
    Lane,
    LaneChart,
    Section,
    Table,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_LABEL_CELLS = 12
_STRIP_LABEL_CELLS = 14
_BAR_CELLS = 40
_SMALLEST_BAR = 10
_LANE_CELLS = 64
_SHORTEST_CELL = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPREAD = "░"


def width() -> int:
    """Return the number of characters in a line: that of the terminal, or 100."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def line(text: object = "") -> None:
    """Print a line of results; it is never shortened."""
    terminal.say(terminal.colored(visible(text), sys.stdout))


def tell(text: object) -> None:
    """Print a line that is not a result, to stderr."""
    terminal.tell(visible(text))


def show(sections: Sequence[Section]) -> None:
    """Print sections, a blank line between them; sections for pages only are left out."""
    hidden: Sequence[str] = ()
    shown = [section for section in sections if section.blocks or not section.page_only]
    for number, section in enumerate(shown):
        if number:
            line()
        if section.title:
            _say(_text(section.title, "bold"))
        for block in section.blocks:
            if isinstance(block, Table):
                hidden = _show_table(block, hidden)
            else:
                _show_block(block)


def _show_block(block: Block) -> None:
    match block:
        case str():
            line(block)
        case Aside():
            line(block.text)
        case FactList():
            _show_facts(block.facts)
        case BarChart():
            _show_bars(block)
        case LaneChart():
            _show_lanes(block)


def _show_facts(facts: Facts) -> None:
    cells = max([_LABEL_CELLS, *(len(label) for label, _ in facts)])
    for label, value in facts:
        _say(_text(f"{label:<{cells}} ", "cyan"), _text(value))


def _show_table(table: Table, hidden_above: Sequence[str]) -> Sequence[str]:
    """Print a table, and the columns that do not fit unless the table above named them; return these."""
    from rich.cells import cell_len

    if table.caption:
        line(table.caption)
    texts = [[visible(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = _fitted(table, [max(map(cell_len, column)) for column in zip(*texts, strict=True)])
    for number, row in enumerate(texts):
        cells = []
        for column, cells_wide in widths.items():
            cell = _shortened(row[column], cells_wide)
            space = " " * (cells_wide - cell_len(cell))
            cells.append(cell + space if column in table.left else space + cell)
        _say(_text("  ".join(cells).rstrip(), "" if number else "cyan"))
    hidden = [name for column, name in enumerate(table.header) if column not in widths]
    if hidden and hidden != hidden_above:
        _say(_text(f"hidden: {', '.join(hidden)} (widen the terminal, or --json)", "dim"))
    return hidden


def _fitted(table: Table, widths: Sequence[int]) -> dict[int, int]:
    """Return the width of each column that is shown: first columns are hidden, then texts are shortened."""
    shown = dict(enumerate(widths))
    # Lines in a file or a pipe are not limited.
    room = width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else sum(widths) + 2 * len(widths)

    def excess() -> int:
        return sum(shown.values()) + 2 * (len(shown) - 1) - room

    for name in table.hide:
        if excess() > 0:
            del shown[table.header.index(name)]
    for column in reversed(table.left):
        if column in shown and shown[column] > _SHORTEST_CELL:
            shown[column] = max(_SHORTEST_CELL, shown[column] - max(0, excess()))
    return shown


def _shortened(text: str, cells: int) -> str:
    """Return a text of at most ``cells`` cells: the middle of a longer one is left out."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    before = (cells - 1) // 3
    end = set_cell_size(text[::-1], cells - 1 - before)[::-1]
    return f"{set_cell_size(text, before)}…{end}"


def _show_bars(chart: BarChart) -> None:
    line(chart.caption)
    labels = max((len(bar.label) for bar in chart.bars), default=0)
    notes = max((len(bar.note) for bar in chart.bars), default=0)
    cells = max(_SMALLEST_BAR, min(_BAR_CELLS, width() - labels - notes - 3))
    full = chart.full or max((bar.value for bar in chart.bars), default=0.0)
    for bar in chart.bars:
        drawn = bar_of(bar.value / full if full else 0.0, cells)
        _say(_text(f"{bar.label:>{labels}} │"), _text(f"{drawn:<{cells}}", "green"), _text(f" {bar.note}"))


def bar_of(share: float, cells: int) -> str:
    """Return a bar that fills a share of the cells, to an eighth of one; it shows anything above 0.

    Example:
        >>> bar_of(1, 4), bar_of(0.3, 4), bar_of(0.00001, 4), bar_of(0, 4)
        ('████', '█▎', '▏', '')
    """
    eighths = max(round(share * cells * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _show_lanes(chart: LaneChart) -> None:
    line(chart.caption)
    cells = max(16, min(_LANE_CELLS, width() - 40))
    for lane in chart.lanes:
        label, drawn = f"{lane.label:>{_STRIP_LABEL_CELLS}} │", _filled(lane, cells)
        _say(_text(label), _text(drawn), _text(f"│ {lane.note}".rstrip()))


def _filled(lane: Lane, cells: int) -> str:
    """Return a strip of cells that are filled where the spans of a lane are, to an eighth of one.

    Example:
        >>> from tokshard.core.presentation import Span
        >>> _filled(Lane("", [Span(0.25, 0.3, ""), Span(0.99, 1, "")]), 8)
        '  ▍    ▏'
    """
    if any(span.shade < 1 for span in lane.spans):
        return _SPREAD * cells
    drawn = []
    for cell in range(cells):
        low, high = cell / cells, (cell + 1) / cells
        share = sum(max(0.0, min(high, span.stop) - max(low, span.start)) for span in lane.spans)
        drawn.append(_EIGHTHS[max(round(8 * cells * share), 1) if share else 0])
    return "".join(drawn)


def _text(value: object, style: str = "") -> Text:
    from rich.text import Text

    return Text(visible(value), style=style, no_wrap=True)


def _say(*parts: Text) -> None:
    # Never cut: a line that is too long for the terminal continues in its next line.
    from rich.text import Text

    console = _console()
    console.print(Text.assemble(*parts), end="", soft_wrap=True)
    terminal.say(console.file.getvalue().rstrip())  # type: ignore[attr-defined]


def _console() -> Console:
    # It writes into a text of its own, because only terminal.say knows what stdout does.
    from rich.console import Console

    # Where stdout is no terminal, or one without colours (TERM), rich leaves them out; but with NO_COLOR it
    # would still send what makes text bold.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=io.StringIO(),
        force_terminal=sys.stdout.isatty(),
        color_system=None if plain else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
