"""Training that is stopped and continued on another number of ranks: every sample is read once.

A case is the seed of a chain of plans: sources, ranks, micro-batches, batches, modes, shuffles and epochs
are random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from campaigns.tally import Place, Result
from ranks.test_replan import MODES
from support.replanned_plans import continued, fault_of, plan_of, source_of, with_epochs
from tokshard.core.formatting import counted
from tokshard.errors import UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.plan import Plan

_DEALT = (None, "single", "contiguous", "sequential", "chunked")


class PlanCampaign:
    """The cases, in this process."""

    def __init__(self, place: Place) -> None:
        self._skew = 0

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        number = worker
        while True:
            yield f"{seed}.{number}"
            number += workers

    def run(self, case: str) -> Result:
        chance = random.Random(case)
        sizes = [chance.randint(1, 90) for _ in range(chance.randint(1, 4))]
        ranks, size, groups = chance.randint(1, 6), chance.randint(1, 3), chance.randint(1, 3)
        batch = ranks * size * groups
        if sum(sizes) < batch:
            sizes.append(batch)
        mode = chance.choice(MODES)
        name = "none" if mode == "cyclic" else chance.choice(["none", "samples", "windows"])
        shuffle = name
        if name == "windows":
            shuffle = Shuffling(name, block=chance.randint(1, 9), window=chance.randint(1, 4))
        options = {
            "mode": mode,
            "shuffle": shuffle,
            "epochs": chance.randint(1, 3),
            "shuffle_per_epoch": True,
        }
        plan = plan_of(source_of(*sizes), ranks, batch=batch, size=size, **options)
        read: list[tuple[int, int]] = []
        largest = batch
        stops = chance.randint(1, 4)
        for number in range(stops):
            step = chance.randint(0, plan.streams["train"].order.steps)
            read += with_epochs(plan, step)
            ranks, size = chance.randint(1, 6), chance.randint(1, 3)
            batch = ranks * size * chance.randint(1, 3)
            largest = max(largest, batch)
            after = self._after(plan, step, ranks, size, batch, chance.choice(_DEALT))
            if after is None:
                twice = None if len(set(read)) == len(read) else "a sample is read twice in an epoch"
                return Result(f"ended after {counted(number, 'stop')}", failure=twice)
            if wrong := fault_of(read + with_epochs(after), after, sum(sizes), largest):
                return Result(counted(stops, "stop"), failure=f"after stop {number}: {wrong}")
            plan = after
        return Result(counted(stops, "stop"))

    def controls(self) -> Iterator[tuple[str, str | None]]:
        self._skew = 1
        caught = any(self.run(f"control.{number}").failure for number in range(30))
        self._skew = 0
        yield "positive: one step is read again", None if caught else "was not caught"

    def _after(
        self, plan: Plan, step: int, ranks: int, size: int, batch: int, mode: str | None
    ) -> Plan | None:
        """Continue a plan with another world size; None if it has no whole batch left."""
        consumed = plan.streams["train"].order.consumed_after(max(0, step - self._skew))
        sizes = {"micro_batch_size": size, "global_batch_size": batch}
        try:
            return continued(plan, consumed, ranks, **sizes, mode=mode)
        except UsageError as error:
            if "fewer than one batch" in str(error) or "0 steps are left" in str(error):
                return None
            raise


make = PlanCampaign
