"""Best-fit decreasing over runs of equal documents and equal packs.

A **group** consists of consecutive packs with the same free space and the same number of documents. Groups of
equal space wait in a queue, in the order in which they got that space; a bit for each space, and one for each
power-of-two range of spaces, finds the least space that is large enough. A step places documents of one key
into one group. A corpus has far more documents than steps, unless nearly all of its lengths are different.

The kernel is compiled for its speed with many different lengths: ``scripts/bench packing`` measures it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Runs that a call of the kernel may add: well below a second, so that signals are handled between calls.
_RUNS_OF_A_CALL = 1 << 16

# A step that is not compiled takes as long as so many of the iterations that WORTH_COMPILING counts.
_ITERATIONS_OF_A_STEP = 20

# Columns of the table of runs. The rest of a group shrinks from its beginning; the run stays as it was.
_FIRST, _PACKS, _EACH, _REST_FIRST, _REST_PACKS, _DOCUMENTS, _NEXT = range(7)


def best_fit(counts: NDArray[np.int64], size: int, most: int | None) -> tuple[NDArray[np.int64], int]:
    """Pack documents by best-fit decreasing.

    Time is proportional to the number of runs and the logarithm of the size. Peak memory is about 150 bytes
    per run and 12 per token of the size.

    Args:
        counts: The number of documents of each key: int64 of shape (2 * size + 1,). A key is the room that a
            document takes (1 to size), plus the size for a remainder, which opens a pack.
        size: The room of a pack.
        most: Documents of a pack at most; None for any number.

    Returns:
        The runs and the number of packs. A run gives ``each`` documents of the order by decreasing key to
        each of ``packs`` consecutive packs from ``first`` on: int64 of shape (runs, 3), first, packs, each.

    Example:
        >>> counts = np.zeros(17, np.int64)
        >>> counts[[5, 4, 3]] = 2, 1, 2  # rooms of 5, 5, 4, 3 and 3 tokens
        >>> runs, packs = best_fit(counts, 8, None)
        >>> runs.tolist(), packs
        ([[0, 2, 1], [2, 1, 1], [0, 2, 1]], 3)
    """
    keys = np.flatnonzero(counts)[::-1].copy()
    left = counts[keys]
    limit = int(left.sum()) if most is None else most
    waiting = np.zeros(2 << size.bit_length(), np.uint8)
    queues = np.zeros((size + 1, 2), np.int32)
    runs = np.empty((0, _NEXT + 1), np.int64)
    worth = len(keys) * _ITERATIONS_OF_A_STEP >= WORTH_COMPILING and has_numba()
    kernel: Any = compiled(fill_packs) if worth else _uncompiled
    key = run = packs = 0
    while key < len(keys):
        more = np.empty((max(_RUNS_OF_A_CALL, len(runs) // 4), runs.shape[1]), np.int64)
        runs = np.concatenate([runs, more])
        while key < len(keys) and run + 2 <= len(runs):
            stop = min(run + _RUNS_OF_A_CALL, len(runs))
            key, run, packs = kernel(keys, left, waiting, queues, runs, size, limit, key, run, stop, packs)
    return runs[:run, :_REST_FIRST].copy(), packs


def _uncompiled(*arguments: Any) -> tuple[int, int, int]:
    # Items of memory views are ints, which are faster than numpy's.
    views: Any = (one.data if isinstance(one, np.ndarray) else one for one in arguments)
    return fill_packs(*views)


def fill_packs(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - a kernel has no objects and calls no function
    keys: NDArray[np.int64],
    left: NDArray[np.int64],
    waiting: NDArray[np.uint8],
    queues: NDArray[np.int32],
    runs: NDArray[np.int64],
    size: int,
    limit: int,
    key: int,
    run: int,
    stop: int,
    packs: int,
) -> tuple[int, int, int]:
    """Place documents until all are placed, or the table of runs is full.

    Args:
        keys: The keys with documents, in decreasing order.
        left: The documents of each that are not placed yet; changed in place.
        waiting: A binary tree with a leaf for each space: whether groups wait in that range of spaces.
        queues: The first and the last group of each space.
        runs: The table of runs and of the group that each makes.
        size: The room of a pack.
        limit: Documents of a pack at most.
        key: The first entry of ``keys`` with documents left.
        run: The runs so far.
        stop: The room of the table.
        packs: The packs so far.

    Returns:
        The new ``key``, ``run`` and ``packs``.
    """
    leaves = len(waiting) // 2
    while key < len(keys) and run + 2 <= stop:
        room, remainder = keys[key], keys[key] > size
        node = 1 if remainder else leaves + room
        while node > 1 and not waiting[node]:  # the next range that begins where this one ends, or the root
            node += 1
            while not node & 1:
                node >>= 1
        while 1 < node < leaves:  # the first half in which groups wait
            node = 2 * node + 1 - waiting[2 * node]
        if node > 1:
            space = node - leaves
            group = queues[space, 0]
            first, count = runs[group, _REST_FIRST], runs[group, _REST_PACKS]
            documents = runs[group, _DOCUMENTS]
            each = min(space // room, limit - documents)
        else:
            space, documents = size, 0
            room -= remainder * size
            each = 1 if remainder else min(size // room, limit)
            first, count = packs, (left[key] + each - 1) // each
            packs += count
        filled = min(count, left[key] // each)
        # The documents that are left go into one more pack, and the others of the group stay as they are.
        rest = left[key] - filled * each if filled < count else 0
        used = filled + (rest > 0)
        if node > 1 and used < count:
            runs[group, _REST_FIRST] += used
            runs[group, _REST_PACKS] -= used
        elif node > 1 and group != queues[space, 1]:
            queues[space, 0] = runs[group, _NEXT]
        elif node > 1:
            waiting[node] = 0
            while node > 1 and not waiting[node ^ 1]:
                node >>= 1
                waiting[node] = 0
        for begin, end, more in ((0, filled, each), (filled, used, rest)):
            if begin == end:
                continue
            runs[run, _FIRST] = runs[run, _REST_FIRST] = first + begin
            runs[run, _PACKS] = runs[run, _REST_PACKS] = end - begin
            runs[run, _EACH] = more
            runs[run, _DOCUMENTS] = documents + more
            node = leaves + space - more * room
            if node > leaves and documents + more < limit:
                if waiting[node]:
                    runs[queues[node - leaves, 1], _NEXT] = run
                else:
                    queues[node - leaves, 0] = run
                queues[node - leaves, 1] = run
                while node and not waiting[node]:
                    waiting[node] = 1
                    node >>= 1
            run += 1
        left[key] -= filled * each + rest
        key += left[key] == 0
    return key, run, packs
