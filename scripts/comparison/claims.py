"""Measured numbers in README.md: each precedes a link to a row of docs/compare.md, and equals its median.

36 times [T4](docs/compare.md#tokens-to-disk)
"""

from __future__ import annotations

import re
from collections.abc import Callable

CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
CLAIM = re.compile(
    r"(?<![\w.,-])(?P<number>\d[\d,]*(?:\.\d+)?)(?P<unit> million tokens/s| samples/s| tokens/s| tokens"
    r"| [kMGT]?B/s| [kMGT]?B| ms| s| seconds?| minutes?| hours?| times|x|%| %)(?![\w/])"
    r"(?P<link> \[(?P<row>[A-Z][0-9]+)\]\(docs/compare\.md#[\w-]+\))?"
)


def medians(page: str) -> dict[tuple[str, str], str]:
    """Return the numbers of docs/compare.md by row and unit; the first column of each unit counts."""
    found: dict[tuple[str, str], str] = {}
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "row":
            header = cells
        elif line.startswith("|") and re.fullmatch(r"[A-Z][0-9]+", cells[0]):
            for title, cell in zip(header, cells, strict=True):
                found.setdefault((cells[0], title.rpartition(", ")[2]), cell.partition(" ")[0])
    return found


def updated(readme: str, page: str, report: Callable[[str], object]) -> str:
    """Return README.md with the numbers of the page; report those without a row that has them."""
    known = medians(page)

    def replace(match: re.Match[str]) -> str:
        value = known.get((match["row"] or "", match["unit"].strip()))
        if value is None:
            report(f"{match[0]}: " + (f"row {match['row']} has no such column" if match["row"] else "no row"))
            return match[0]
        return f"{value}{match['unit']}{match['link']}"

    parts, end = [], 0
    for code in CODE.finditer(readme):
        parts += [CLAIM.sub(replace, readme[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, CLAIM.sub(replace, readme[end:])])
