"""Random points of the table of tests/faults: rows, kinds of faults and storage calls.

A case is ROW/KIND/NUMBER, of which the last is the seed of the point.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from campaigns.tally import Place, Result
from faults import children, rounds
from faults.campaign import POINTS, Row
from faults.scenarios import SCENARIOS, make_world

_CONTROLS = {
    "marker_before_data": ("merge", "kill", "link"),
    "old_index_stays": ("tokenize --force", "cut", "replace"),
    "never_fsync_directories": ("merge", "power", None),
    "ignore_failed_fsync": ("merge", "EIO", "fsync"),
}


class CrashCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        children.load()
        make_world(place.directory)
        self._world = place.directory
        self._row = cache(lambda name: Row(name, self._world))

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        names = [name for name, scenario in SCENARIOS.items() if scenario.share > 0.5]
        chance = random.Random(f"{seed} crashes {worker}")
        number = worker
        while True:
            for name in chance.sample(names, len(names)):
                kind = chance.choices(list(POINTS), list(POINTS.values()))[0]
                yield f"{name}/{kind}/{seed}{number:06d}"
                number += workers
            yield f"attempts/random/{seed}{number:06d}"

    def run(self, case: str) -> Result:
        name, kind, seed = case.split("/")
        if name == "attempts":
            ends, wrong = rounds.attempts(self._row("tokenize"), random.Random(seed))
            return Result("", failure=wrong, counts=ends)
        cell = self._row(name).cell(kind, 1, int(seed))
        failure = "; ".join(f"{point}: {wrong}" for point, wrong in cell.failures.items())
        return Result(kind if cell.points else "nothing to try", max(cell.points, 1), failure or None)

    def controls(self) -> Iterator[tuple[str, str | None]]:
        for control, (name, kind, call) in _CONTROLS.items():
            row = Row(name, self._world, f"controls.broken_calls:{control}")
            row.only = [call] if call else []
            caught = row.cell(kind, 20, until="").failures
            yield f"positive: {control}", None if caught else "was not caught"
        cell = self._row("merge").cell("kill", 1, 0)
        yield "negative: merge as it is", "; ".join(cell.failures.values()) or None


make = CrashCampaign
