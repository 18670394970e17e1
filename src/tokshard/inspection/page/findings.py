"""The section of what ``verify`` has found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokshard.core.findings import Finding
from tokshard.core.formatting import count
from tokshard.inspection.page.document import section, table
from tokshard.inspection.page.markup import Child, Markup, tag

_SHOWN = 1000


class Verification(Protocol):
    """What a verification says, as far as the page needs it."""

    @property
    def level(self) -> str:
        """How thoroughly was looked."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything that was found."""


def findings_section(report: Verification) -> Markup:
    """Return what a verification has found."""
    found = report.findings
    if not found:
        nothing = f"Nothing was found to be wrong, at the level {report.level}."
        return section("Verification", tag("p", nothing, class_="good"))
    rows: list[Sequence[Child]] = [_row(one) for one in found[:_SHOWN]]
    more = f", of which the first {count(_SHOWN)} are shown" if len(found) > _SHOWN else ""
    noun = "finding" if len(found) == 1 else "findings"
    told = f"{count(len(found))} {noun} at the level {report.level}{more}."
    header = ("severity", "code", "what", "where")
    return section("Verification", tag("p", told), table(header, rows, left=(0, 1, 2, 3)))


def _row(one: Finding) -> Sequence[Child]:
    place = one.path or ""
    if one.offset is not None:
        place += f", byte {one.offset}"
    hint = None if one.hint is None else tag("p", one.hint, class_="soft")
    what = tag("div", one.message, hint)
    return tag("span", one.severity, class_=one.severity), tag("code", one.code), what, place
