"""The classes of cases, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from campaigns.tally import Campaign, Place


@dataclass(frozen=True)
class Class:
    """A class of cases.

    Attributes:
        unit: Of what cases are counted.
        goal: How many in an hour.
        share: Of the time, relative to the other classes.
        needs_library: Whether its processes start with the library of calls.py.
    """

    name: str
    unit: str
    goal: int
    share: float
    needs_library: bool = False

    def campaign(self) -> Callable[[Place], Campaign]:
        """Return what makes the campaign in a process of its own."""
        found: Callable[[Place], Campaign] = importlib.import_module(f"campaigns.{self.name}").make
        return found


CLASSES = {
    each.name: each
    for each in (
        Class("mutants", "indexes", 450_000, 1),
        Class("plans", "chains of plans", 900, 2),
        Class("damage", "damaged files", 3_000, 5),
        Class("crashes", "points", 9_000, 9),
        Class("faults", "faults", 8_100, 19, needs_library=True),
        Class("concurrency", "rounds", 1_650, 12),
        Class("encoding", "strings", 16_500_000, 12),
    )
}
