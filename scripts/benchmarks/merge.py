"""scripts/bench merge: tokshard merge against Megatron's IndexedDatasetBuilder.add_index.

Two datasets of many short documents, and two of long ones, are made in a temporary directory and merged
by each side in turn, several rounds; the table has the medians of time and the largest peak memory.
Without --megatron-python a stand-in does what Megatron's builder does (lists of numbers, 64 KB copies).
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tokshard
from tokshard.dataset.index_file import write_index
from tokshard.storage.files import AtomicFile

SHORT_DOCUMENTS = 5_000_000
SHORT_TOKENS = 20
LONG_BYTES = 2_000_000_000
LONG_TOKENS = 100_000
DTYPE = np.dtype("<u2")

OURS = "tokshard"
OURS_DIGESTING = "tokshard, no manifests"

MEGATRON = """
import sys, time, warnings
warnings.simplefilter("ignore")
import megatron.core.datasets.indexed_dataset as module
import numpy
started = time.perf_counter()
builder = module.IndexedDatasetBuilder(sys.argv[1] + ".bin", dtype=numpy.uint16)
for prefix in sys.argv[2:]:
    builder.add_index(prefix)
builder.finalize(sys.argv[1] + ".idx")
"""

STAND_IN = """
import shutil, struct, sys, time
import numpy
started = time.perf_counter()
lengths, documents = [], [0]
with open(sys.argv[1] + ".bin", "wb") as tokens:
    for prefix in sys.argv[2:]:
        with open(prefix + ".idx", "rb") as file:
            index = file.read()
        s, d = struct.unpack_from("<QQ", index, 18)
        documents.extend((len(lengths) + numpy.frombuffer(index, "<i8", d, 34 + 12 * s))[1:])
        lengths.extend(numpy.frombuffer(index, "<i4", s, 34))
        with open(prefix + ".bin", "rb") as file:
            shutil.copyfileobj(file, tokens)
pointers, end = [], 0
for length in lengths:
    pointers.append(end)
    end += length * 2
with open(sys.argv[1] + ".idx", "wb") as file:
    file.write(b"MMIDIDX\\0\\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents)))
    file.write(numpy.array(lengths, dtype=numpy.int32).tobytes())
    file.write(numpy.array(pointers, dtype=numpy.int64).tobytes())
    file.write(numpy.array(documents, dtype=numpy.int64).tobytes())
"""

TOKSHARD = """
import time
started = time.perf_counter()
import sys
from tokshard import MergeOptions, merge
merge(MergeOptions(sys.argv[2:], sys.argv[1], force=True))
"""

EPILOGUE = """
import json, resource
print(json.dumps([time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def make_short(prefix: str, documents: int) -> None:
    """Write a dataset of many documents of 1 to 39 tokens."""
    rng = np.random.RandomState(1)
    lengths = rng.randint(1, 2 * SHORT_TOKENS, size=documents).astype("<i4")
    _write(prefix, lengths)


def make_long(prefix: str, size: int) -> None:
    """Write a dataset of documents of 100,000 tokens, about ``size`` bytes in all."""
    _write(prefix, np.full(max(1, size // (LONG_TOKENS * DTYPE.itemsize)), LONG_TOKENS, "<i4"))


def _write(prefix: str, lengths: np.ndarray) -> None:
    block = np.random.RandomState(2).randint(0, 50000, size=1 << 21).astype(DTYPE)
    left = int(lengths.sum(dtype=np.int64))
    with open(f"{prefix}.bin", "wb") as file:
        while left:
            file.write(block[:left].tobytes())
            left -= min(left, len(block))
    ones = np.ones(1 << 18, "<i4")
    with AtomicFile(f"{prefix}.idx") as file:
        write_index(
            file,
            dtype=DTYPE,
            sequence_count=len(lengths),
            document_count=len(lengths),
            lengths=lambda: [lengths],
            sequences_per_document=lambda: (
                ones[: len(lengths) - first] for first in range(0, len(lengths), len(ones))
            ),
        )


def measure(python: str, program: str, output: str, inputs: list[str]) -> tuple[float, float]:
    """Return seconds (imports of tokshard included, of Megatron not) and peak MB of one merge."""
    for path in Path(output).parent.glob(f"{Path(output).name}.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()  # what one side wrote is not written back in the time of the other
    done = subprocess.run(
        [python, "-c", program + EPILOGUE, output, *inputs], capture_output=True, text=True, check=True
    )
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak * 1024 / 1e6


def floor(output: str, inputs: list[str]) -> float:
    """Return the seconds that the kernel needs to copy the tokens and force them to the disk."""
    os.sync()
    started = time.perf_counter()
    with open(output, "wb") as target:
        for prefix in inputs:
            with open(f"{prefix}.bin", "rb") as source:
                left = os.path.getsize(source.name)
                while left:
                    left -= os.copy_file_range(source.fileno(), target.fileno(), min(left, 1 << 26))
        os.fsync(target.fileno())
    seconds = time.perf_counter() - started
    os.unlink(output)
    return seconds


def compare(name: str, directory: str, inputs: list[str], known: list[str], options) -> None:
    """Run all sides in turn, and print their row of the table."""
    peer_python, peer = options.megatron_python or sys.executable, "Megatron add_index"
    program = MEGATRON
    if not options.megatron_python:
        program, peer = STAND_IN, "stand-in for add_index"
    sides = {
        OURS: (sys.executable, TOKSHARD, known),
        OURS_DIGESTING: (sys.executable, TOKSHARD, inputs),
        peer: (peer_python, program, inputs),
    }
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    floors = []
    for _ in range(options.rounds):
        for number, (side, (python, code, prefixes)) in enumerate(sides.items()):
            found[side].append(measure(python, code, f"{directory}/out{number}", prefixes))
        floors.append(floor(f"{directory}/floor.bin", inputs))
    for suffix in (".bin", ".idx"):
        outputs = [f"{directory}/out{number}{suffix}" for number in range(len(sides))]
        if not all(filecmp.cmp(outputs[0], other, shallow=False) for other in outputs[1:]):
            sys.exit(f"the bytes of {suffix} differ")
    size = sum(os.path.getsize(f"{prefix}{suffix}") for prefix in inputs for suffix in (".bin", ".idx"))
    medians = {side: statistics.median(seconds for seconds, _ in runs) for side, runs in found.items()}
    print(f"\n{name}: {size / 1e9:.2f} GB; copying and fsync of .bin alone {statistics.median(floors):.2f} s")
    for side, runs in found.items():
        seconds, peak = medians[side], max(megabytes for _, megabytes in runs)
        ratio = medians[peer] / seconds
        print(f"  {side:<24} {seconds:7.2f} s {size / seconds / 1e6:7.0f} MB/s {peak:6.0f} MB {ratio:5.1f} x")


def with_manifests(directory: str, inputs: list[str]) -> list[str]:
    """Return datasets of the same bytes that have manifests, as tokshard's own have."""
    made = []
    for number, prefix in enumerate(inputs):
        made.append(f"{directory}/known{number}")
        tokshard.merge(tokshard.MergeOptions([prefix], made[-1]))
    return made


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the datasets, compare."""
    parser = argparse.ArgumentParser(prog="bench merge", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="1 is 2 x 5 million documents, 2 x 2 GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megatron-python", help="an interpreter that has megatron-core")
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    peer = "a stand-in"
    if options.megatron_python:
        code = 'import importlib.metadata as m; print("megatron-core", m.version("megatron-core"))'
        peer = subprocess.run(
            [options.megatron_python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    print(
        f"tokshard {tokshard.__version__} against {peer}; Python {platform.python_version()}, "
        f"numpy {np.__version__}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; "
        f"medians of {options.rounds} interleaved rounds"
    )
    cases = {
        "many short documents": (make_short, int(SHORT_DOCUMENTS * options.scale)),
        "long documents": (make_long, int(LONG_BYTES * options.scale)),
    }
    for name, (make, amount) in cases.items():
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            inputs = [f"{directory}/{letter}" for letter in "ab"]
            for prefix in inputs:
                make(prefix, amount)
            known = with_manifests(directory, inputs)
            compare(f"{name}, 2 x {amount:,}", directory, inputs, known, options)


if __name__ == "__main__":
    main(sys.argv[1:])
