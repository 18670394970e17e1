"""Packers that `scripts/bench packing` compares: tokshard's, and others with the same rules.

    packers.py NAME LENGTHS.npy SIZE OPTIONS

A document of more than ``size`` tokens fills samples of its own, its remainder opens a pack, and the other
documents follow, the longest first. As a program, it packs the lengths of a file on one core and prints what
that took: an object of JSON. ``OPTIONS`` are those of tokshard's packing, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

import numpy as np

from tokshard.samples.index import best_fit, shuffling
from tokshard.samples.index.best_fit import EpochPacks
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing
from tokshard.storage.compilation import compiled

FEW_DOCUMENTS = 10_000  # for fewer, no kernel is used


def divide(lengths: np.ndarray, size: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the full samples, the remainders and the whole documents, both in decreasing order."""
    lengths = lengths[lengths > 0].astype(np.int64)
    longer = lengths[lengths > size]
    remainders = np.sort((longer - 1) % size + 1)[::-1]
    return int(((longer - 1) // size).sum()), remainders, np.sort(lengths[lengths <= size])[::-1]


def least_samples(lengths: np.ndarray, size: int) -> int:
    """Return a number of samples that no packer can go below: remainders do not share a pack."""
    full, remainders, whole = divide(lengths, size)
    return full + max(-(-int(remainders.sum() + whole.sum()) // size), len(remainders))


def first_fit(lengths: np.ndarray, size: int) -> int:
    """Return the samples of first-fit decreasing: each document goes into the first pack in which it fits."""
    full, remainders, whole = divide(lengths, size)
    leaves = 1 << (len(remainders) + len(whole)).bit_length()
    spaces = np.full(2 * leaves, size)  # a binary tree: the most space of a range of packs
    spaces[leaves : leaves + len(remainders)] -= remainders
    row = leaves
    while row > 1:
        spaces[row // 2 : row] = spaces[row : 2 * row].reshape(-1, 2).max(axis=1)
        row //= 2
    compiled(place_first_fit)(whole, spaces)
    return full + int((spaces[leaves:] < size).sum())


def place_first_fit(rooms: np.ndarray, spaces: np.ndarray) -> None:
    """Put documents into the first packs with enough space."""
    leaves = len(spaces) // 2
    for room in rooms:
        node = 1
        while node < leaves:
            node = 2 * node + (spaces[2 * node] < room)
        spaces[node] -= room
        while node > 1:
            node //= 2
            spaces[node] = max(spaces[2 * node], spaces[2 * node + 1])


def sorted_containers(lengths: np.ndarray, size: int) -> int:
    """Return the samples of best-fit decreasing with a sorted list of packs, which it makes as lists."""
    from sortedcontainers import SortedList

    full, _, _ = divide(lengths, size)
    by_size = np.argsort(-lengths.astype(np.int64), kind="stable").tolist()
    tokens = lengths.tolist()
    packs = [[document] for document in by_size if tokens[document] > size]
    # Space and pack in one number: tuples are slower.
    open_packs = SortedList(
        (size - 1 - (tokens[pack[0]] - 1) % size) << 32 | k for k, pack in enumerate(packs)
    )
    for document in by_size:
        room = tokens[document]
        if not 0 < room <= size:
            continue
        place = open_packs.bisect_left(room << 32)
        if place < len(open_packs):
            found = open_packs.pop(place)
            packs[found & 0xFFFFFFFF].append(document)
        else:
            found = size << 32 | len(packs)
            packs.append([document])
        open_packs.add(found - (room << 32))
    return full + len(packs)


def plan(lengths: np.ndarray, size: int, packing: Packing) -> EpochPacks:
    """Return the packs of an epoch by tokshard, without the documents in them."""
    return EpochPacks.of(lengths, range(len(lengths)), size, packing)


def index(lengths: np.ndarray, size: int, packing: Packing) -> int:
    """Return the samples of tokshard's index of an epoch, with both shuffles."""
    built = GPTDatasetIndex.build(
        lengths, range(len(lengths)), sequence_length=size, seed=1, num_samples=None, packing=packing
    )
    return len(built)


def load_kernels() -> None:
    """Import numba and load the kernels, with the smallest of indexes."""
    modules = best_fit, shuffling
    before = [module.WORTH_COMPILING for module in modules]
    for module in modules:
        module.WORTH_COMPILING = 0
    index(np.array([3, 2], np.int32), 4, Packing())
    for module, value in zip(modules, before, strict=True):
        module.WORTH_COMPILING = value


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    # The kernel's ru_maxrss would begin with the size of the process that started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def main(name: str, path: str, size: int, options: dict[str, int]) -> None:
    """Pack the lengths of a file, and print what it took."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    lengths = np.load(path)
    if name == "tokshard":
        if len(lengths) >= FEW_DOCUMENTS:
            load_kernels()
        packer = partial(index, packing=Packing(**options))
    else:
        packer = {"sortedcontainers": sorted_containers}[name]
    started, used = time.perf_counter(), time.process_time()
    samples = packer(lengths, size)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
    found = {
        "samples": samples,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_bytes": peak_memory(),
    }
    if name == "tokshard":
        started, used = time.perf_counter(), time.process_time()
        packs = plan(lengths, size, Packing(**options))
        found["plan_seconds"] = time.perf_counter() - started
        found["plan_cpu_seconds"] = time.process_time() - used
        found["runs"] = len(packs.runs)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
