"""History of the benchmarks: the ratios of earlier runs, with which each run is compared.

``history.jsonl`` has one line for each figure and run, a JSON object with the keys of :class:`Record`. Each
figure keeps its last :data:`KEPT` records. Absolute figures are stored for information only: warnings compare
ratios, and only with records of the same benchmark, arguments, base and machine (processor and cores).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokshard.core.codec import Amount, Document, Positive
from tokshard.core.formatting import counted
from tokshard.errors import TokshardError

PATH = Path(__file__).with_name("history.jsonl")
KEPT = 3
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Record(Document):
    """One figure of one run.

    Attributes:
        benchmark: Command of scripts/bench.
        arguments: Values of its options that change the work.
        figure: Table, row and column.
        base: Row to which the ratio refers.
        better: Direction of improvement.
        ratio: Median of the ratios of the rounds; ``low`` and ``high`` are the extremes of a round.
        value: Median of the figure itself, in the unit of its column.
        machine: Processor and number of cores.
        commit: Commit of the checkout; with + if files were changed.
        date: UTC.
    """

    SCHEMA = "tokshard.benchmark/1"

    benchmark: str
    arguments: str
    figure: str
    base: str
    better: Literal["higher", "lower"]
    ratio: Amount
    low: Amount
    high: Amount
    value: float
    rounds: Positive
    machine: str
    commit: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        """Fields that two records share if they can be compared."""
        return self.benchmark, self.arguments, self.figure, self.base, self.better, self.machine


def read(path: Path = PATH) -> list[Record]:
    """Return the records of a file; damaged lines are skipped with a warning, a missing file is empty."""
    records, damaged = [], 0
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            records.append(Record.from_bytes(line, str(path)))
        except TokshardError:
            damaged += 1
    if damaged:
        print(f"warning: {path}: skipped {counted(damaged, 'damaged line')}", file=sys.stderr)
    return records


def append(new: Iterable[Record], path: Path = PATH) -> None:
    """Add records to a file. The oldest records of each figure, and damaged lines, are removed."""
    by_key: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in [*read(path), *new]:
        by_key[record.key].append(record)
    kept = [record for key in by_key for record in by_key[key][-KEPT:]]
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps(record.to_json()) + "\n" for record in kept))
    temporary.replace(path)


def loss(found: Record, records: Iterable[Record]) -> str | None:
    """Return a warning if a figure is worse than its records by more than their spread and 5%.

    The ratio is compared with the median of the recorded ratios and with the worst of any recorded round.
    """
    past = [record for record in records if record.key == found.key]
    if not past:
        return None
    median = statistics.median(record.ratio for record in past)
    low, high = min(record.low for record in past), max(record.high for record in past)
    if found.better == "higher":
        is_worse = found.ratio < low and found.ratio < median * (1 - MARGIN)
    else:
        is_worse = found.ratio > high and found.ratio > median * (1 + MARGIN)
    if not is_worse:
        return None
    recorded = f"{median:.3g} ({low:.3g}-{high:.3g}), last at {past[-1].commit} on {past[-1].date}"
    return (
        f"{found.figure}: ratio to {found.base} is {found.ratio:.3g}, recorded {recorded}; "
        f"{found.better} is better"
    )
