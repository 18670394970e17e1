"""Shares: which units belong to which of several workers that see the same inputs and have no driver.

A task of a job array decides alone what is its work, so the rule speaks only of what all tasks know: the
inputs with their sizes, and the number of tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tokshard.corpus.files import CorpusFile
from tokshard.tokenization.part import UnitKey

# So many pieces of work to a task: enough for an even deal, few enough for each to open few files.
_PIECES = 8


class Deal:
    """Deals all units of some files to ``count`` tasks, in the same way wherever it is computed.

    A file is dealt, the largest first, to as many tasks as it holds eighths of a task's fair share (at
    least one, no more than it has units), those with the least work so far; they take its units in turn.
    So many small files are dealt whole, each read by one task, and one large file is read by all.

    Args:
        files: The inputs, sizes known.
        count: How many tasks there are.
        unit_bytes: The size of a unit.

    Example:
        >>> file = CorpusFile("a.jsonl", 5000, 0, "jsonl", "none")
        >>> deal = Deal([file], 3, unit_bytes=1000)
        >>> [deal.owner(UnitKey(0, index)) for index in range(5)]
        [0, 1, 2, 0, 1]
    """

    def __init__(self, files: Sequence[CorpusFile], count: int, unit_bytes: int) -> None:
        self._members: list[tuple[int, ...]] = [()] * len(files)
        sizes = [file.plain_bytes or 0 for file in files]
        total = sum(sizes)
        loads = [(0, task) for task in range(count)]
        for number in sorted(range(len(files)), key=lambda number: (-sizes[number], number)):
            size = sizes[number]
            pieces = -(-_PIECES * count * size // total) if total else 1
            width = max(1, min(pieces, count, -(-size // unit_bytes)))
            chosen = [heapq.heappop(loads) for _ in range(width)]
            for load, task in chosen:
                heapq.heappush(loads, (load + size // width, task))
            self._members[number] = tuple(task for _, task in chosen)

    def owner(self, key: UnitKey) -> int:
        """Return the task that a unit belongs to."""
        members = self._members[key.file]
        return members[key.index % len(members)]

    def members(self, file: int) -> tuple[int, ...]:
        """Return the tasks that the units of a file can belong to."""
        return self._members[file]
