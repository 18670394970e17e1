"""Bar charts as SVG, in colors that are readable on light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from measure import digits

WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 760, 20, 10, 250, 110, 44
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #656d76 }
.title { font-weight: 600; font-size: 15px }
.bar { fill: #8b949e } .ours { fill: #2f81f7 } .range { stroke: #656d76; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #b1bac4 } .bar { fill: #6e7681 } .range { stroke: #b1bac4 }
}
"""


@dataclass(frozen=True)
class Bar:
    """A bar: its label, the median, lowest and highest value, and whether it is tokshard's."""

    label: str
    median: float
    low: float
    high: float
    is_ours: bool


def chart(title: str, bars: list[Bar]) -> str:
    """Return a bar chart.

    Args:
        title: Title, with the unit.
        bars: From the first row to the last.
    """
    most = max(bar.high for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + len(bars) * (BAR + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="24">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars):
        top = TOP + number * (BAR + GAP)
        middle = top + BAR / 2
        width = max(1, round(bar.median * scale, 1))
        kind = "ours" if bar.is_ours else "bar"
        ends = [round(LEFT + value * scale, 1) for value in (bar.low, bar.high)]
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 5}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width}" height="{BAR}"/>',
            f'<line class="range" x1="{ends[0]}" x2="{ends[1]}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{ends[1] + 8}" y="{middle + 5}">{digits(bar.median)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
