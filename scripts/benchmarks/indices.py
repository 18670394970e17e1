"""scripts/bench indices: building indexes and blends against megatron-core's own C++ and Python.

The same lengths and weights are given to both sides in turn, each measurement in a process of its own,
several rounds; the table has the medians of time, the largest peak memory, and how much of it came on top of
what the process held when its imports were done, each with how many times less it is than Megatron's. The
arrays of both sides must be equal. Files are neither written nor timed. Ours is measured twice: with numba
imported and its kernels loaded before, as Megatron's C++ is, and "cold", with both as part of the work, as in
a command that builds one index. Without --megatron-python only this side is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy as np
from measure import machine

SEQUENCE_LENGTH = 4096
LONGEST_DOCUMENT = 1400
DOCUMENTS = (10_000_000, 100_000_000)
EPOCHS = (1, 2)
SAMPLES = 10_000_000
SOURCES = (8, 64, 1000)
EXHAUSTIVE_SOURCES = 64

PROLOGUE = """
import json, sys, time, warnings, zlib
warnings.simplefilter("ignore")
import numpy
def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024
path, number = sys.argv[1], int(sys.argv[2])
values = numpy.load(path, mmap_mode="r")
"""

STARTED = """
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the highest mark so far, of the imports, is forgotten
before = memory("VmRSS")
started = time.perf_counter()
"""

EPILOGUE = """
seconds = time.perf_counter() - started
peak = memory("VmHWM")
digests = [zlib.crc32(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)) for array in arrays]
print(json.dumps([seconds, peak, peak - before, [[array.dtype.str, array.shape, digest]
      for array, digest in zip(arrays, digests)]]))
"""

# The number is that of the epochs. With mock and without a cache directory Megatron builds and saves nothing.
MEGATRON_INDEX = """
from types import SimpleNamespace
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.datasets.utils import Split
length = SEQUENCE_LENGTH
class Dataset(GPTDataset):
    def __init__(self):
        self.config = SimpleNamespace(
            random_seed=1234, sequence_length=length, path_to_cache=None, mock=True, fast_cache_load=False,
            defer_npy_index_mmap=False, add_extra_token_to_sequence=True,
            drop_last_partial_validation_sequence=True)
        self.dataset = SimpleNamespace(sequence_lengths=values)
        self.index_split = Split.train
        self.num_samples = None
        if number > 1:
            self.num_samples = (number * int(numpy.sum(values, dtype=numpy.int64)) - 1) // length
"""
MEGATRON_INDEX_CALL = """
dataset = Dataset()
dataset.indices = numpy.arange(len(values), dtype=numpy.int32)
arrays = dataset._build_document_sample_shuffle_indices()
"""

TOKSHARD_INDEX = """
from tokshard.gpt_index.index import GPTDatasetIndex
length = SEQUENCE_LENGTH
"""
# Just large enough for the compiled kernels.
TOKSHARD_INDEX_WARMING = """
GPTDatasetIndex.build(numpy.ones(1_100_000, numpy.int32), range(1_100_000),
                      sequence_length=1, seed=1, num_samples=None)
"""
TOKSHARD_INDEX_CALL = """
samples = (number * int(numpy.sum(values, dtype=numpy.int64)) - 1) // length if number > 1 else None
index = GPTDatasetIndex.build(
    values, range(len(values)), sequence_length=length, seed=1234, num_samples=samples)
arrays = [index.document_index, index.sample_index, index.shuffle_index]
"""

# The number is that of the samples; for the exhaustive blend it follows from the sizes.
MEGATRON_BLEND = "from megatron.core.datasets import helpers\n"
MEGATRON_GREEDY_CALL = """
weights = values.tolist()
arrays = [numpy.zeros(number, numpy.int16), numpy.zeros(number, numpy.int64)]
helpers.build_blending_indices(*arrays, weights, len(weights), number, False)
"""
MEGATRON_EXHAUSTIVE_CALL = """
sizes = values.tolist()
arrays = [numpy.zeros(sum(sizes), numpy.int16), numpy.zeros(sum(sizes), numpy.int64)]
helpers.build_exhaustive_blending_indices(*arrays, sizes, len(sizes))
"""
TOKSHARD_GREEDY = "from tokshard.blending.order import build_blending_indices\n"
TOKSHARD_GREEDY_WARMING = "build_blending_indices(numpy.ones(9) / 9, 100_000)\n"
TOKSHARD_GREEDY_CALL = "arrays = build_blending_indices(numpy.array(values), number)\n"
TOKSHARD_EXHAUSTIVE = "from tokshard.blending.order import build_exhaustive_blending_indices\n"
TOKSHARD_EXHAUSTIVE_WARMING = "build_exhaustive_blending_indices(numpy.full(9, 100_000))\n"
TOKSHARD_EXHAUSTIVE_CALL = "arrays = build_exhaustive_blending_indices(numpy.array(values))\n"


Program = tuple[str, str, str]


@dataclass(frozen=True)
class Case:
    """One row pair of the table.

    Attributes:
        name: What is built.
        values: Lengths, weights or sizes.
        number: Epochs or samples.
        ours: Our imports, a call that loads all kernels, and the call to measure.
        theirs: Megatron's imports, nothing, and its call.
    """

    name: str
    values: np.ndarray
    number: int
    ours: Program
    theirs: Program


@dataclass(frozen=True)
class Measurement:
    """What one process printed."""

    seconds: float
    peak_bytes: int
    added_bytes: int
    arrays: list


def cases(options: argparse.Namespace):
    """Yield the cases one after the other: the lengths of one may be large."""
    for documents in DOCUMENTS:
        count = max(1000, int(documents * options.scale))
        lengths = np.random.RandomState(1).randint(1, LONGEST_DOCUMENT, size=count, dtype=np.int32)
        for epochs in EPOCHS:
            ours = TOKSHARD_INDEX, TOKSHARD_INDEX_WARMING, TOKSHARD_INDEX_CALL
            theirs = MEGATRON_INDEX, "", MEGATRON_INDEX_CALL
            yield Case(f"index of {count:,} documents, {epochs} epoch(s)", lengths, epochs, ours, theirs)
    samples = max(1000, int(SAMPLES * options.scale))
    for sources in SOURCES:
        weights = np.random.RandomState(sources).random_sample(sources)
        yield Case(
            f"blend of {sources} sources, {samples:,} samples",
            weights / weights.sum(),
            samples,
            (TOKSHARD_GREEDY, TOKSHARD_GREEDY_WARMING, TOKSHARD_GREEDY_CALL),
            (MEGATRON_BLEND, "", MEGATRON_GREEDY_CALL),
        )
    sizes = np.random.RandomState(3).multinomial(samples, [1 / EXHAUSTIVE_SOURCES] * EXHAUSTIVE_SOURCES)
    yield Case(
        f"exhaustive blend of {EXHAUSTIVE_SOURCES} sources, {samples:,} samples",
        sizes.astype(np.int64),
        0,
        (TOKSHARD_EXHAUSTIVE, TOKSHARD_EXHAUSTIVE_WARMING, TOKSHARD_EXHAUSTIVE_CALL),
        (MEGATRON_BLEND, "", MEGATRON_EXHAUSTIVE_CALL),
    )


def measure(python: str, program: Program, path: str, number: int) -> Measurement:
    """Run one side once in a fresh process."""
    imports, warming, call = program
    code = PROLOGUE + imports.replace("SEQUENCE_LENGTH", str(SEQUENCE_LENGTH)) + warming + STARTED + call
    done = subprocess.run(
        [python, "-c", code + EPILOGUE, path, str(number)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"a side failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return Measurement(*json.loads(done.stdout.splitlines()[-1]))


def compare(case: Case, options: argparse.Namespace, directory: str) -> None:
    """Run all sides in turn, check that their arrays are equal, and print their rows."""
    path = f"{directory}/values.npy"
    np.save(path, case.values)
    imports, _, call = case.ours
    sides = {"tokshard": (sys.executable, case.ours), "tokshard, cold": (sys.executable, (imports, "", call))}
    if options.megatron_python:
        sides["megatron-core"] = (options.megatron_python, case.theirs)
    # Once without measuring: it compiles what is compiled once for a machine, and warms the file's pages.
    measure(sys.executable, case.ours, path, case.number)
    found: dict[str, list[Measurement]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, (python, program) in sides.items():
            found[side].append(measure(python, program, path, case.number))
    if any(run.arrays != found["tokshard"][0].arrays for runs in found.values() for run in runs):
        sys.exit(f"{case.name}: the arrays differ")
    print(f"\n{case.name}")
    results = {side: summary(runs) for side, runs in found.items()}
    last = results[list(results)[-1]]
    for side, result in results.items():
        print(
            f"  {side:<15}{result.seconds:9.3f} s {last.seconds / result.seconds:6.2f} x   "
            f"peak {result.peak_bytes / 1e6:7.0f} MB {last.peak_bytes / result.peak_bytes:6.2f} x   "
            f"added {result.added_bytes / 1e6:7.0f} MB "
            f"{last.added_bytes / max(result.added_bytes, 1):6.2f} x",
            flush=True,
        )


def summary(runs: list[Measurement]) -> Measurement:
    """Return the median of the times and the largest memories."""
    return Measurement(
        statistics.median(run.seconds for run in runs),
        max(run.peak_bytes for run in runs),
        max(run.added_bytes for run in runs),
        runs[0].arrays,
    )


def main(arguments: list[str]) -> None:
    """Parse the arguments and measure every case."""
    parser = argparse.ArgumentParser(prog="scripts/bench indices", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=0.1, help="1 is 100 million documents, 10 million samples"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--megatron-python", help="an interpreter that has megatron-core")
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    peer = "nothing"
    if options.megatron_python:
        code = "import importlib.metadata as m; print(*(x + m.version(x[:-1]) for x in PACKAGES))"
        code = code.replace("PACKAGES", "('megatron-core ', 'numpy ')")
        command = [options.megatron_python, "-c", code]
        peer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    print(
        f"{machine('tokshard', 'numpy', 'numba')}\n"
        f"against {peer}; medians of {options.rounds} interleaved rounds"
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case in cases(options):
            if options.only in case.name:
                compare(case, options, directory)
