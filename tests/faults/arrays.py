"""Rounds of job arrays whose tasks run at once, some of which are killed, and others that disturb them."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

from faults import seam
from faults.campaign import Row
from faults.children import Child
from faults.seam import Fault

_CALLS_OF_A_TASK = 60
_MOST_TASKS = 8
# 1, 4: a --finish that finds units missing; 5: one that is locked out, or locks out a task.
_DISTURBED = {0, 1, 5, -signal.SIGKILL}


def play(row: Row, chance: random.Random) -> tuple[Counter[str], str | None]:
    """Play a round of the row of arrays: waves of tasks, and --finish; return their ends, and what is wrong.

    All processes of a wave start at the same moment. In every wave but the last, tasks are killed at a
    storage call, and a --finish or a second task of the same index may run with them; the number of tasks
    changes from wave to wave.
    """
    command = row.scenario.commands[-1]
    words = [word for word in command if word != "--finish"] if not callable(command) else []
    row.fresh()
    ends: Counter[str] = Counter()
    for wave in range(3):
        count = chance.randint(2, _MOST_TASKS)
        tasks = [[*words, "--array-task", f"{index}/{count}"] for index in range(count)]
        if wave < 2:
            tasks += chance.choice([[], [chance.choice(tasks)], [[*words, "--finish"]]])
        chance.shuffle(tasks)
        gate = os.pipe()
        children = [Child(tuple(task), row.round, _death(chance, row, wave), gate) for task in tasks]
        for descriptor in gate:
            os.close(descriptor)
        for child in children:
            ended = child.wait()
            ends["killed" if ended.code == -signal.SIGKILL else str(ended.code)] += 1
            if ended.defect or ended.code not in (_DISTURBED if wave < 2 else {0}):
                return ends, f"wave {wave}: {ended}"
    ended = Child(command, row.round).wait()
    if ended.code != 0:
        return ends, f"--finish: {ended}"
    return ends, row.wrong_files("after all tasks")


def _death(chance: random.Random, row: Row, wave: int):
    if wave == 2 or chance.random() < 0.6:
        return None
    fault = Fault("kill", chance.randint(1, _CALLS_OF_A_TASK))
    return lambda: seam.install(fault, row.world / f"calls-{os.getpid()}.txt")
