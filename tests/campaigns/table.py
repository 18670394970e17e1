"""The table of a campaign, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from campaigns.classes import CLASSES
from campaigns.tally import Tally

_SHOWN_OUTCOMES = 6
_HEADER = (
    "| class | tried | outcomes | failures | controls | time |",
    "|---|---:|---|---:|---|---:|",
)


def table(tallies: Mapping[str, Tally]) -> str:
    """Return the counts of classes by their names as a table."""
    return "\n".join([*_HEADER, *(_row(name, tally) for name, tally in tallies.items())])


def _row(name: str, tally: Tally) -> str:
    if tally.skipped:
        return f"| {name} | 0 | skipped: {tally.skipped} | 0 | | |"
    caught = sum(wrong is None for wrong in tally.controls.values())
    cells = (
        name,
        f"{tally.cases:,} {CLASSES[name].unit}",
        _outcomes(tally),
        f"{len(tally.failures)}",
        f"{caught} of {len(tally.controls)} as expected",
        f"{tally.seconds / 60:.1f} min",
    )
    return f"| {' | '.join(cells)} |"


def _outcomes(tally: Tally) -> str:
    most = tally.outcomes.most_common()
    shown = [f"{outcome}: {count:,}" for outcome, count in most[:_SHOWN_OUTCOMES]]
    rest = sum(count for _, count in most[_SHOWN_OUTCOMES:])
    return "; ".join([*shown, *([f"other: {rest:,}"] if rest else [])])
