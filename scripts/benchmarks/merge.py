"""scripts/bench merge: tokshard merge against Megatron's IndexedDatasetBuilder.add_index.

Two datasets of many short documents, and two of long ones, are made in a temporary directory and merged
by each side. The times contain the imports of tokshard, but not those of Megatron. Without --megatron-python
a stand-in does what Megatron's builder does (lists of numbers, 64 KB copies). The outputs must be equal.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measure import CPU, ELAPSED, PEAK, Contender, Session, parser, program, rate, session

import tokshard
from tokshard.dataset.index_file import write_index
from tokshard.storage.files import AtomicFile

SHORT_DOCUMENTS = 5_000_000
SHORT_TOKENS = 20
LONG_BYTES = 2_000_000_000
LONG_TOKENS = 100_000
DTYPE = np.dtype("<u2")

MEGATRON_IMPORTS = "import numpy, megatron.core.datasets.indexed_dataset as module"
MEGATRON = """
builder = module.IndexedDatasetBuilder(sys.argv[1] + ".bin", dtype=numpy.uint16)
for prefix in sys.argv[2:]:
    builder.add_index(prefix)
builder.finalize(sys.argv[1] + ".idx")
"""

STAND_IN_IMPORTS = "import numpy, shutil, struct"
STAND_IN = """
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
from tokshard import MergeOptions, merge
merge(MergeOptions(sys.argv[2:], sys.argv[1], force=True))
"""

COPY = """
with open(sys.argv[1], "wb") as target:
    for prefix in sys.argv[2:]:
        with open(prefix + ".bin", "rb") as source:
            left = os.path.getsize(source.name)
            while left:
                left -= os.copy_file_range(source.fileno(), target.fileno(), min(left, 1 << 26))
    os.fsync(target.fileno())
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


def copying(output: Path, inputs: Sequence[str]) -> Contender:
    """Return what the kernel needs to copy the tokens and force them to the disk."""
    size = sum(os.path.getsize(f"{prefix}.bin") for prefix in inputs)
    command = program("import os", COPY, arguments=[output, *inputs])
    return Contender("copying .bin, fsync", command, size, before=os.sync, is_peer=True)


def compare(bench: Session, name: str, directory: Path, inputs: list[str]) -> None:
    """Run all sides in turn, check that their outputs are equal, and print their table."""
    size = sum(os.path.getsize(f"{prefix}{suffix}") for prefix in inputs for suffix in (".bin", ".idx"))

    def side(label: str, setup: str, work: str, prefixes: list[str], **options) -> Contender:
        output = directory / f"out-{len(sides)}"

        def clean() -> None:
            for path in directory.glob(f"{output.name}.*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            os.sync()  # what one side wrote is not written back in the time of the other

        command = program(setup, work, arguments=[output, *prefixes], **options)
        sides.append(Contender(label, command, size, clean, is_peer=bool(setup)))
        return sides[-1]

    sides: list[Contender] = []
    if python := bench.options.megatron_python:
        peer = side("Megatron add_index", MEGATRON_IMPORTS, MEGATRON, inputs, python=python)
    else:
        peer = side("stand-in for add_index", STAND_IN_IMPORTS, STAND_IN, inputs)
    side("tokshard", "", TOKSHARD, with_manifests(directory, inputs))
    side("tokshard, no manifests", "", TOKSHARD, inputs)
    bench.compare(
        [*sides, copying(directory / "copy", inputs)],
        title=f"{name}, {size / 1e9:.2f} GB",
        base=peer.name,
        figures=[rate("MB/s", 1e6), ELAPSED, CPU, PEAK],
    )
    for suffix in (".bin", ".idx"):
        outputs = [directory / f"out-{number}{suffix}" for number in range(len(sides))]
        if not all(filecmp.cmp(outputs[0], other, shallow=False) for other in outputs[1:]):
            sys.exit(f"the bytes of {suffix} differ")


def with_manifests(directory: Path, inputs: list[str]) -> list[str]:
    """Return datasets of the same bytes that have manifests, as tokshard's own have."""
    made = []
    for number, prefix in enumerate(inputs):
        made.append(f"{directory}/known{number}")
        tokshard.merge(tokshard.MergeOptions(inputs=[prefix], output=made[-1]))
    return made


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the datasets, compare."""
    options = parser("merge", __doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1 is 2 x 5 million documents, 2 x 2 GB")
    options.add_argument("--megatron-python", help="an interpreter that has megatron-core")
    with session(options, arguments, "tokshard", "numpy", peers=["megatron-core", "numpy"]) as bench:
        for name, make, whole in (
            ("short documents", make_short, SHORT_DOCUMENTS),
            ("long documents", make_long, LONG_BYTES),
        ):
            directory = bench.directory / name.split()[0]
            directory.mkdir()
            inputs = [str(directory / letter) for letter in "ab"]
            amount = int(whole * bench.options.scale)
            for prefix in inputs:
                make(prefix, amount)
            compare(bench, f"{name}, 2 x {amount:,}", directory, inputs)
            shutil.rmtree(directory)
