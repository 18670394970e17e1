"""The one renderer of the commands: lines, facts, tables, bars and strips, as wide as the terminal.

All text is made harmless here, so views pass what they have; numbers, sizes, times and paths are formatted by
:mod:`tokshard.core.formatting`. rich sets colors, measures characters that are two cells wide, and leaves out
what a file or a pipe cannot show; its markup is never used.
"""

from __future__ import annotations

import io
import os
import shutil
import string
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokshard.cli import terminal
from tokshard.core.formatting import Facts, Table, count, visible
from tokshard.core.presentation import (
    BarChart,
    Block,
    FactList,
    Lane,
    LaneChart,
    Paragraph,
    Section,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tokshard.core.findings import Finding

_LABEL_CELLS = 12
_STRIP_LABEL_CELLS = 14
_BAR_CELLS = 40
_SMALLEST_BAR = 10
_SEVERITIES = ("error", "warning", "note")
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def width() -> int:
    """Return the number of characters in a line: that of the terminal, or 100."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def line(text: object = "") -> None:
    """Print a line of results; it is never cut."""
    terminal.say(visible(text))


def tell(text: object) -> None:
    """Print a line that is not a result, to stderr."""
    terminal.tell(visible(text))


def lines(texts: Sequence[object], limit: int, more: str = "and {rest} more") -> None:
    """Print lines, at most ``limit`` of them, and then how many more there are.

    Args:
        texts: The lines.
        limit: The largest number of lines to print.
        more: The line for the rest, with ``{rest}``.
    """
    for text in texts[:limit]:
        line(text)
    if len(texts) > limit:
        line(more.format(rest=count(len(texts) - limit)))


def heading(text: str, detail: str = "") -> None:
    """Print a title and a detail behind it."""
    _say(_text(text, "bold"), *([_text(f"  {detail}", "dim")] if detail else []))


def facts(facts: Facts) -> None:
    """Print labels and their values, one below the other; an empty label continues the one above."""
    cells = max([_LABEL_CELLS, *(len(label) for label, _ in facts)])
    for label, value in facts:
        _say(_text(f"{label:<{cells}} ", "cyan"), _text(value))


def findings(findings: Iterable[Finding], indent: str = "") -> None:
    """Print findings with their hints, errors first."""
    for found in sorted(findings, key=lambda found: _SEVERITIES.index(found.severity)):
        line(f"{indent}{found.severity}: {found.code}: {found.message}")
        if found.hint:
            line(f"{indent}  hint: {found.hint}")


def outcome(facts: Iterable[tuple[str, object]]) -> None:
    """Print the end of a command: what was written, how long it took, and the next command to type."""
    for label, text in facts:
        line(f"{label}: {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[object]], left: Sequence[int] = (0,)) -> None:
    """Print a table; where the terminal is too narrow for it, the cells of a row one below the other.

    A :class:`~tokshard.core.formatting.Table` is printed by ``table(*found)``.

    Args:
        header: The names of the columns.
        rows: The cells.
        left: The columns that are aligned to the left; all others are numbers.
    """
    from rich.cells import cell_len

    texts = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(header, *texts, strict=True)]
    if _is_for_eyes() and sum(widths) + 2 * (len(widths) - 1) > width():
        _records(header, texts)
        return
    for number, row in enumerate([list(header), *texts]):
        cells = []
        for place, (cell, cells_wide) in enumerate(zip(row, widths, strict=True)):
            space = " " * (cells_wide - cell_len(cell))
            cells.append(cell + space if place in left else space + cell)
        _say(_text("  ".join(cells).rstrip(), "" if number else "cyan"))


def _is_for_eyes() -> bool:
    # Lines in a file or a pipe are not limited.
    return sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))


def _records(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = max(map(len, header[1:]), default=0)
    for row in rows:
        _say(_text(row[0], "bold"))
        for name, cell in zip(header[1:], row[1:], strict=True):
            _say(_text(f"  {name:<{cells}}  ", "cyan"), _text(cell))


def bars(rows: Sequence[tuple[str, float, str]], full_value: float | None = None) -> None:
    """Print a bar for each row of (label, value, note).

    Args:
        rows: The rows.
        full_value: The value of a bar of full width; None for the largest value.
    """
    if not rows:
        return
    labels = max(len(label) for label, _, _ in rows)
    notes = max(len(note) for _, _, note in rows)
    full = max(_SMALLEST_BAR, min(_BAR_CELLS, width() - labels - notes - 3))
    most = full_value or max(value for _, value, _ in rows)
    for label, value, note in rows:
        drawn = bar(value / most if most else 0.0, full)
        _say(_text(f"{label:>{labels}} │"), _text(f"{drawn:<{full}}", "green"), _text(f" {note}"))


def strip(label: str, cells: str, note: str = "") -> None:
    """Print a line of character cells between two edges, its label before and a note behind it."""
    _say(_text(f"{label:>{_STRIP_LABEL_CELLS}} │"), _text(cells), _text(f"│ {note}".rstrip()))


def filled(parts: Sequence[tuple[float, float]], total: float, cells: int) -> str:
    """Return a bar of ``cells`` characters for 0 to ``total``, filled where the parts (first, stop) are.

    Example:
        >>> filled([(0, 50)], 100, 8), filled([(25, 30), (99, 100)], 100, 8)
        ('████    ', '  ▍    ▏')
    """
    drawn = []
    for cell in range(cells):
        low, high = cell * total / cells, (cell + 1) * total / cells
        share = sum(max(0.0, min(high, stop) - max(low, first)) for first, stop in parts)
        level = round(8 * share / (high - low)) if share else 0
        drawn.append(_EIGHTHS[max(level, 1) if share else 0])
    return "".join(drawn)


def bar(share: float, cells: int) -> str:
    """Return a bar that fills a share of the cells, to an eighth of one; it shows anything above 0.

    Example:
        >>> bar(1, 4), bar(0.3, 4), bar(0.00001, 4), bar(0, 4)
        ('████', '█▎', '▏', '')
    """
    eighths = max(round(share * cells * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


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


_LANE_CELLS = 64
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_SPREAD = "░"


def show(sections: Sequence[Section], *, continued: bool = False) -> None:
    """Print sections; sections for pages only are left out.

    Args:
        sections: The sections.
        continued: Whether other output precedes them; otherwise, the first is printed without its title.
    """
    shown = [section for section in sections if section.blocks or not section.page_only]
    for number, section in enumerate(shown):
        if number or continued:
            line()
            heading(section.title)
        for block in section.blocks:
            _show_block(block)


def _show_block(block: Block) -> None:
    match block:
        case FactList():
            facts(block.facts)
        case Table():
            if block.caption:
                line(block.caption)
            table(block.header, block.rows, block.left)
        case BarChart():
            line(block.caption)
            bars([(bar.label, bar.value, bar.note) for bar in block.bars], block.full)
        case LaneChart():
            _show_lanes(block)
        case Paragraph():
            line(block.text)


def _show_lanes(chart: LaneChart) -> None:
    line(chart.caption)
    cells = max(16, min(_LANE_CELLS, width() - 40))
    for lane in chart.lanes:
        drawn = "".join(_colors(lane, cells)) if chart.by_color else _filled(lane, cells)
        strip(lane.label, drawn, lane.note)
    if chart.by_color:
        facts([(_letter(number), name) for number, name in enumerate(chart.keys)])


def _colors(lane: Lane, cells: int) -> Iterator[str]:
    for cell in range(cells):
        middle = (cell + 0.5) / cells
        found = [span.color for span in lane.spans if span.start <= middle < span.stop]
        yield _letter(found[0]) if found else " "


def _letter(number: int) -> str:
    # Datasets after the last letter share a mark.
    return _LETTERS[number] if number < len(_LETTERS) else "?"


def _filled(lane: Lane, cells: int) -> str:
    if any(span.shade < 1 for span in lane.spans):
        return _SPREAD * cells
    return filled([(span.start, span.stop) for span in lane.spans], 1, cells)
