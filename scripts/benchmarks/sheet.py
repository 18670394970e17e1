"""Tables of a page that are computed: measured figures between two marks, and sums that follow from them.

A table with the columns ``name`` and ``how`` is a sheet. Each of its rows has a name and a value in each
column between these two, but the column ``unit``. Where ``how`` is ``given``, the values stand as they are;
elsewhere it is a formula in backticks of names above, of measured figures (``stage.figure``), numbers,
operators, comparisons, ``ceil``, ``min`` and ``max``, and the values are computed from it, column by column.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

Results = dict[str, dict[str, Any]]
Value = float | int | bool
Row = list[Value]

BEGIN, END = "<!-- measured: scripts/bench scale --write -->", "<!-- measured until here -->"
MACHINE = "Measured on: "

# Column of the page: (figure, scale of the page's unit).
COLUMNS = {
    "stage": ("", 1),
    "each": ("unit", 1),
    "from": ("from", 1),
    "to": ("to", 1),
    "time, s": ("seconds", 1),
    "growth": ("growth", 1),
    "time each, ns": ("time", 1e-9),
    "CPU each, ns": ("cpu", 1e-9),
    "peak, MB": ("peak", 1e6),
    "own, MB": ("own", 1e6),
    "own growth": ("own growth", 1),
    "own each, B": ("own each", 1),
    "files": ("files", 1),
    "written each, B": ("written", 1),
}
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"ceil": math.ceil, "min": min, "max": max}


def with_results(page: str, results: Results, where: str) -> str:
    """Return a page with another table of measured figures."""
    lines = [f"{MACHINE}{where}.", "", _line(list(COLUMNS)), _line(["---"] * len(COLUMNS))]
    for stage, figures in results.items():
        cells = [f"`{stage}`", figures["unit"]]
        for name, scale in list(COLUMNS.values())[2:]:
            figure = figures[name]
            cells.append("-" if figure is None else show(round(figure / scale, 2)))
        lines.append(_line(cells))
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return "\n".join([page[:begin], "", *lines, "", page[end:]])


def recompute(page: str) -> str:
    """Return a page with all sheets recomputed from its given and measured values."""
    known: dict[str, Row] = _measured(page)
    lines = page.split("\n")
    header: list[str] | None = None
    for number, line in enumerate(lines):
        cells = _cells(line)
        if cells is None:
            header = None
        elif header is None:
            header = cells
        elif "how" in header and "name" in header and not set(line) <= set("|-: "):
            first = header.index("name") + 1
            last = header.index("unit")
            how = cells[header.index("how")]
            if how == "given":
                row = [number_of(cell) for cell in cells[first:last]]
            else:
                row = [evaluate(how.strip("`"), known, place) for place in range(last - first)]
                cells[first:last] = [show(value) for value in row]
            known[cells[first - 1].strip("`")] = row
            lines[number] = _line(cells)
    return "\n".join(lines)


def evaluate(formula: str, known: Mapping[str, Row], place: int) -> Value:
    """Return the value of a formula in one column.

    Example:
        >>> evaluate("ceil(a / 4) <= 2", {"a": [7]}, 0)
        True
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=float() | int() as number):
                return number
            case ast.Name(id=name):
                row = known[name]
                return row[place if len(row) > 1 else 0]
            case ast.Attribute(value=ast.Name(id=stage), attr=figure):
                return known[f"{stage}.{figure}"][0]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*map(value, arguments))
        raise ValueError(f"{ast.unparse(node)} in {formula!r} is not understood")

    return value(ast.parse(formula, mode="eval").body)


def show(value: Value) -> str:
    """Return a value as a page shows it: three digits, or all of a small integer.

    Example:
        >>> show(1234567), show(64), show(0.012345), show(True)
        ('1,230,000', '64', '0.0123', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        digits = 3 - 1 - math.floor(math.log10(abs(value)))
        return f"{round(value, digits):,.0f}"
    return f"{value:.3g}"


def number_of(cell: str) -> Value:
    """Return the value of a cell that is given."""
    text = cell.replace(",", "").strip("`")
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)


def _measured(page: str) -> dict[str, Row]:
    """Return the measured figures of a page, in seconds and bytes."""
    begin, end = page.find(BEGIN), page.find(END)
    known: dict[str, Row] = {}
    for line in page[begin:end].split("\n"):
        cells = _cells(line)
        if cells is None or not cells[0].startswith("`"):
            continue
        for (name, scale), cell in list(zip(COLUMNS.values(), cells, strict=True))[2:]:
            if cell != "-":
                known[f"{cells[0].strip('`')}.{name.replace(' ', '_')}"] = [number_of(cell) * scale]
    return known


def _cells(line: str) -> list[str] | None:
    """Return the cells of a row of a table; None of any other line."""
    if not line.startswith("|"):
        return None
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
