"""scripts/bench indices: building indexes and blends against megatron-core's own C++ and Python.

The same lengths and weights are given to both sides in turn, each measurement in a process of its own. Added
memory is what came on top of what the process held when its imports were done. The arrays of both sides must
be equal. Files are neither written nor timed. Ours is measured twice: with its compiled loops loaded before,
as Megatron's C++ is, and "cold", with that as part of the work, as in a command that builds one index. Rates
are documents of the index or samples of the blend. Without --megatron-python only this side is measured.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from measure import CPU, ELAPSED, PEAK, Contender, Figure, Session, parser, program, rate, session

ADDED = Figure("added MB", lambda run: run["added_bytes"] / 1e6)
FIGURES = rate("million/s", 1e6), ELAPSED, CPU, PEAK, ADDED
SEQUENCE_LENGTH = 4096
LONGEST_DOCUMENT = 1400
DOCUMENTS = (10_000_000, 100_000_000)
EPOCHS = (1, 2)
SAMPLES = 10_000_000
SOURCES = (8, 40, 300)
EXHAUSTIVE_SOURCES = 64

SETUP = """
import numpy, zlib
values, number = numpy.load(sys.argv[1], mmap_mode="r"), int(sys.argv[2])
"""
DIGESTS = """
arrays = [numpy.ascontiguousarray(array).reshape(-1) for array in arrays]
report["arrays"] = [[array.dtype.str, array.size, zlib.crc32(array.view("u1"))] for array in arrays]
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
from tokshard.samples.index.index import GPTDatasetIndex
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
TOKSHARD_GREEDY = "from tokshard.samples.blend.order import build_blending_indices\n"
TOKSHARD_GREEDY_WARMING = "build_blending_indices([1.0], 100_000)\n"
TOKSHARD_GREEDY_CALL = "arrays = build_blending_indices(numpy.array(values), number)\n"
TOKSHARD_EXHAUSTIVE = "from tokshard.samples.blend.order import build_exhaustive_blending_indices\n"
TOKSHARD_EXHAUSTIVE_WARMING = "build_exhaustive_blending_indices([100_000])\n"
TOKSHARD_EXHAUSTIVE_CALL = "arrays = build_exhaustive_blending_indices(numpy.array(values))\n"


@dataclass(frozen=True)
class Case:
    """One table.

    Attributes:
        name: What is built.
        values: Lengths, weights or sizes.
        number: Epochs or samples.
        work: Entries of the document index, or samples.
        ours: Our imports, a call that loads the kernels, and the call to measure.
        theirs: Megatron's imports, and its call.
    """

    name: str
    values: np.ndarray
    number: int
    work: int
    ours: tuple[str, str, str]
    theirs: tuple[str, str]


def cases(options: argparse.Namespace):
    """Yield the cases one after the other: the lengths of one may be large."""
    for documents in DOCUMENTS:
        count = max(1000, int(documents * options.scale))
        lengths = np.random.RandomState(1).randint(1, LONGEST_DOCUMENT, size=count, dtype=np.int32)
        for epochs in EPOCHS:
            ours = TOKSHARD_INDEX, TOKSHARD_INDEX_WARMING, TOKSHARD_INDEX_CALL
            theirs = MEGATRON_INDEX, MEGATRON_INDEX_CALL
            yield Case(
                f"index of {count:,} documents, {epochs} epoch(s)",
                lengths,
                epochs,
                count * epochs,
                ours,
                theirs,
            )
    samples = max(1000, int(SAMPLES * options.scale))
    for sources in SOURCES:
        weights = np.random.RandomState(sources).random_sample(sources)
        yield Case(
            f"blend of {sources} sources, {samples:,} samples",
            weights / weights.sum(),
            samples,
            samples,
            (TOKSHARD_GREEDY, TOKSHARD_GREEDY_WARMING, TOKSHARD_GREEDY_CALL),
            (MEGATRON_BLEND, MEGATRON_GREEDY_CALL),
        )
    sizes = np.random.RandomState(3).multinomial(samples, [1 / EXHAUSTIVE_SOURCES] * EXHAUSTIVE_SOURCES)
    yield Case(
        f"exhaustive blend of {EXHAUSTIVE_SOURCES} sources, {samples:,} samples",
        sizes.astype(np.int64),
        0,
        samples,
        (TOKSHARD_EXHAUSTIVE, TOKSHARD_EXHAUSTIVE_WARMING, TOKSHARD_EXHAUSTIVE_CALL),
        (MEGATRON_BLEND, MEGATRON_EXHAUSTIVE_CALL),
    )


def compare(bench: Session, case: Case) -> None:
    """Run all sides in turn, check that their arrays are equal, and print their table."""
    path = bench.directory / "values.npy"
    np.save(path, case.values)

    def side(name: str, imports: str, warming: str, call: str, **options) -> Contender:
        setup = SETUP + imports.replace("SEQUENCE_LENGTH", str(SEQUENCE_LENGTH)) + warming
        command = program(setup, call, DIGESTS, arguments=[path, case.number], **options)
        return Contender(name, command, case.work, is_peer="python" in options)

    imports, warming, call = case.ours
    sides = [side("tokshard", imports, warming, call), side("tokshard, cold", imports, "", call)]
    # It compiles what is compiled once for a machine, and warms the file's pages.
    sides[0].run()
    base = sides[0].name
    if python := bench.options.megatron_python:
        their_imports, their_call = case.theirs
        base = "megatron-core"
        sides.append(side(base, their_imports, "", their_call, python=python))
    bench.compare(sides, title=case.name, base=base, figures=FIGURES, equal=["arrays"])


def main(arguments: list[str]) -> None:
    """Parse the arguments and measure every case."""
    options = parser("indices", __doc__)
    options.add_argument(
        "--scale", type=float, default=0.1, help="1 is 100 million documents, 10 million samples"
    )
    options.add_argument("--only", default="", help="cases whose name contains this")
    options.add_argument("--megatron-python", help="an interpreter that has megatron-core")
    packages = "tokshard", "numpy", "numba"
    with session(options, arguments, *packages, peers=["megatron-core", "numpy"]) as bench:
        for case in cases(bench.options):
            if bench.options.only in case.name:
                compare(bench, case)
