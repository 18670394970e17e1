"""Measured numbers in README.md, each with the id of a row of docs/compare.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BEGIN, END = "<!-- scripts/compare --page -->", "<!-- end of comparison -->"
NUMBER = r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)"
UNIT = r"(?: million tokens/s| samples/s| tokens/s| [kMG]B/s| [kMG]B| ms| s| times|x)"
CLAIM = re.compile(NUMBER + rf"({UNIT})(?![\w/])")
ID = re.compile(r"\[([A-Z][0-9]+)\]\(docs/compare\.md#[\w-]+\)")


@dataclass(frozen=True)
class Claim:
    """A number with a unit.

    Attributes:
        number: As it is written.
        unit: Its unit, or the title of its column.
        ids: Rows of docs/compare.md that it refers to.
        text: The sentence or row.
    """

    number: str
    unit: str
    ids: tuple[str, ...]
    text: str


def claims(page: str) -> Iterator[Claim]:
    """Yield the numbers with a unit of a page: of sentences, list items and table cells, not of code."""
    page = re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL)
    header: list[str] | None = None
    prose: list[str] = []
    for line in page.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if header is None:
                header = cells
            elif not set(line) <= set("|-: "):
                for title, cell in zip(header, cells, strict=True):
                    yield from _of_cell(title, cell, line)
        else:
            header = None
            prose.append(line)
    text = re.sub(r"\n(?=[-#]|\n)", "\n\n", "\n".join(prose))
    for sentence in re.split(r"\n\n+|(?<=[.;:])\s", text):
        ids = tuple(ID.findall(sentence))
        for number, unit in CLAIM.findall(sentence):
            yield Claim(number, unit.strip(), ids, " ".join(sentence.split()))


def _of_cell(title: str, cell: str, line: str) -> Iterator[Claim]:
    ids = tuple(ID.findall(cell)) or tuple(ID.findall(line))
    found = CLAIM.findall(cell)
    unit = re.search(rf",({UNIT})$", title)
    if not found and unit and (number := re.match(NUMBER, cell)):
        found = [(number[1], unit[1])]
    for number, unit_of in found:
        yield Claim(number, unit_of.strip(), ids, line)


def rows(page: str) -> dict[str, dict[str, str]]:
    """Return the rows of docs/compare.md by id, as cells by title."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[:1] == ["row"]:
            header = cells
        elif cells and header and re.fullmatch(r"[A-Z][0-9]+", cells[0]):
            found[cells[0]] = dict(zip(header, cells, strict=True))
        elif not cells:
            header = []
    return found


def is_held(claim: Claim, known: dict[str, dict[str, str]]) -> bool:
    """Tell whether one of the rows has the number of a claim, which may be rounded, in a column of its unit.

    Example:
        >>> is_held(Claim("12", "MB/s", ("T1",), ""), {"T1": {"row": "T1", "MB/s": "11.9 (11-13)"}})
        True
    """
    digits = claim.number.replace(",", "")
    step = 10.0 ** -len(digits.partition(".")[2])
    if "." not in digits:
        step = 10.0 ** (len(digits) - len(digits.rstrip("0")) if len(digits.rstrip("0")) > 1 else 0)
    for name in claim.ids:
        for title, cell in known.get(name, {}).items():
            value = re.match(r"\d[\d,]*(?:\.\d+)?", cell)
            if not value or not _same_unit(claim.unit, title):
                continue
            if abs(float(value[0].replace(",", "")) - float(digits)) <= step / 2 * 1.0001:
                return True
    return False


def _same_unit(unit: str, title: str) -> bool:
    return title.rpartition(", ")[2] == ("times" if unit == "x" else unit)


def _reason(claim: Claim) -> str:
    return f"not in {', '.join(claim.ids)}" if claim.ids else "no id"


def wrong(readme: str, page: str) -> list[str]:
    """Return the claims of README.md that have no id, or another number than the row."""
    known = rows(page)
    return [
        f"{claim.number} {claim.unit}: {_reason(claim)}: {claim.text}"
        for claim in claims(readme)
        if not is_held(claim, known)
    ]
