"""scripts/bench trace: time of a trace from records to reads, over 100 million synthetic documents.

Everything but the tokens is written: the index of 100 million documents of 1 to 999 tokens, the provenance,
the three arrays of its samples, a blend with a second dataset, and a plan of 64 ranks. The command is run
whole; its first run finds the files as the machine has left them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from measure import CPU, OWN, SECONDS, TOKSHARD, Contender, parser, session, yardstick

if TYPE_CHECKING:
    from tokshard.ranks.choices import ShuffleName

DOCUMENTS = 100_000_000
LONGEST_DOCUMENT = 1000
SEQUENCE_LENGTH = 4096
RECORD_BYTES = 2000
UNIT_DOCUMENTS = 10_000
LISTS = (1, 1000, 100_000)
RANKS = 64
_CHUNK = 1 << 22


def write_dataset(prefix: Path, count: int) -> None:
    """Write an index, a provenance and an empty ``.bin`` of the right size."""
    lengths = np.random.RandomState(1).randint(1, LONGEST_DOCUMENT, size=count, dtype=np.int32)
    write_sidecars(prefix, count, write_pair(prefix, lengths))


def write_pair(prefix: Path, lengths: np.ndarray) -> int:
    """Write an index and an empty ``.bin`` of the right size; return the number of tokens."""
    from tokshard.dataset.layout import IndexHeader

    count, tokens = len(lengths), int(lengths.sum(dtype=np.int64))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(IndexHeader(np.dtype("<u2"), count, count).to_bytes())
        file.write(lengths.data)
        begin = 0
        for first in range(0, count, _CHUNK):
            ends = np.cumsum(lengths[first : first + _CHUNK], dtype=np.int64) * 2 + begin
            file.write((ends - lengths[first : first + _CHUNK] * np.int64(2)).data)
            begin = int(ends[-1])
        for first in range(0, count + 1, _CHUNK):
            file.write(np.arange(first, min(first + _CHUNK, count + 1), dtype="<i8").data)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(tokens * 2)
    return tokens


def write_sidecars(prefix: Path, count: int, tokens: int) -> None:
    """Write what tells where the documents come from."""
    from tokshard.core.codec import TOOL
    from tokshard.dataset.concatenate import input_records
    from tokshard.dataset.counts import NO_COUNTS
    from tokshard.dataset.manifest import (
        DatasetFiles,
        DatasetRecord,
        Manifest,
        SourceFile,
        TokenFileRecord,
    )
    from tokshard.dataset.parameters import AdoptionParameters
    from tokshard.dataset.provenance import ORIGIN
    from tokshard.dataset.records import UnitRecord, read_records, to_line
    from tokshard.storage.digest import UNSEALED, FileRecord, sealed

    directory = Path(f"{prefix}.tokshard")
    directory.mkdir()
    with open(directory / "provenance.bin", "wb") as file:
        for first in range(0, count, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, count))
            origins = np.empty(len(numbers), ORIGIN)
            origins["offset"] = numbers * RECORD_BYTES
            origins["line"] = numbers + 1
            file.write(origins.tobytes())
    digest = "0" * 32
    units = directory / "units.jsonl"
    with open(units, "wb") as file:
        for number, first in enumerate(range(0, count, UNIT_DOCUMENTS)):
            size = min(UNIT_DOCUMENTS, count - first)
            counts = replace(
                NO_COUNTS,
                records=size,
                documents=size,
                lines=size,
                content_bytes=size * RECORD_BYTES,
                sequences=size,
                tokens=tokens if first == 0 else 0,
                longest_sequence=LONGEST_DOCUMENT - 1,
                encoders={"unknown": size},
            )
            unit = UnitRecord(
                input=0, unit=number, content_xxh3_128=digest, tokens_xxh3_128=digest, counts=counts
            )
            file.write(to_line(unit))
    source = SourceFile(
        path="corpus.jsonl",
        size_bytes=count * RECORD_BYTES,
        mtime_ns=None,
        format="jsonl",
        compression="none",
    )
    inputs = input_records([source], read_records(UnitRecord, str(units)))
    manifest = sealed(
        Manifest(
            tool=TOOL,
            fingerprint="0" * 64,
            dataset=DatasetRecord(
                "uint16", multimodal=False, field="text", units=-(-count // UNIT_DOCUMENTS)
            ),
            counts=inputs[0].counts,
            files=DatasetFiles(
                bin=TokenFileRecord(os.path.getsize(f"{prefix}.bin"), digest),
                idx=FileRecord(os.path.getsize(f"{prefix}.idx"), digest),
                units=FileRecord(os.path.getsize(units), digest),
                provenance=FileRecord(os.path.getsize(directory / "provenance.bin"), digest),
            ),
            tokenizer=None,
            options=AdoptionParameters(multimodal=False, eod_id=None),
            inputs=inputs,
            seal=UNSEALED,
        )
    )
    (directory / "manifest.json").write_bytes(manifest.to_bytes())


def reference(directory: Path, number: int, count: int, sequence_length: int):
    """Write a dataset and its index; return what a plan says of it."""
    from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
    from tokshard.dataset.reader import IndexedDataset
    from tokshard.ranks.sources import DatasetReference
    from tokshard.samples.index.index import GPTDatasetIndex

    prefix = directory / f"data{number}"
    write_dataset(prefix, count)
    lengths = IndexedDataset(prefix).sequence_lengths
    index = GPTDatasetIndex.build(
        lengths, range(count), sequence_length=sequence_length, seed=1, num_samples=None
    )
    names = ("document_index", "sample_index", "shuffle_index")
    files = cached(directory, number, "GPTDataset", {name: getattr(index, name) for name in names})
    return DatasetReference(
        path_prefix=str(prefix),
        first=0,
        samples=len(index),
        bin=FileFingerprint.of(f"{prefix}.bin"),
        idx=FileFingerprint.of(f"{prefix}.idx"),
        multimodal=False,
        fingerprint=DatasetFingerprint(
            bin_bytes=os.path.getsize(f"{prefix}.bin"), idx_bytes=os.path.getsize(f"{prefix}.idx")
        ),
        index=files,
        epochs=index.plan,
    )


def cached(directory: Path, number: int, kind: str, arrays: dict[str, np.ndarray]):
    """Write arrays as a cache has them; return what a plan says of them."""
    from tokshard.samples.index.entry import CachedArrays
    from tokshard.samples.index.npy import write_npy

    prefix = str(directory / f"{number:032x}-{kind}-train")
    for name, array in arrays.items():
        write_npy(f"{prefix}-{name}.npy", array)
    return CachedArrays.at(prefix)


def write_world(
    directory: Path, count: int, sequence_length: int = SEQUENCE_LENGTH, shuffle: ShuffleName = "samples"
) -> None:
    """Write two datasets, their blend and a plan."""
    from tokshard.ranks.choices import Shuffling
    from tokshard.ranks.options import ShardPlanOptions
    from tokshard.ranks.planning import plan_shards, sources_file
    from tokshard.ranks.publication import write_plan
    from tokshard.ranks.sources import SampleSource
    from tokshard.samples.blend.order import build_exhaustive_blending_indices

    references = tuple(
        reference(directory, number, size, sequence_length)
        for number, size in enumerate((count, count // 10))
    )
    arrays = build_exhaustive_blending_indices(np.array([dataset.samples for dataset in references]))
    names = ("dataset_index", "dataset_sample_index")
    order = cached(directory, 99, "BlendedDataset", dict(zip(names, arrays, strict=True)))
    source = SampleSource("blend", "train", len(arrays[0]), references, order)
    options = ShardPlanOptions(
        sources=("data",), output="plan", data_parallel=RANKS, shuffle=Shuffling(shuffle)
    )
    described_in = sources_file({"train": source}, directory / "plan", {})
    write_plan(plan_shards({"train": source}, options, described_in), directory / "plan")


def main(arguments: list[str]) -> None:
    """Write two datasets, trace lists of lines through them, and print seconds and memory."""
    options = parser("trace", __doc__)
    options.add_argument("--scale", type=float, default=1.0, help="1 is 100 million documents: 5 GB of disk")
    with session(options, arguments, "tokshard", "numpy") as bench:
        directory = bench.directory
        count = max(200_000, int(DOCUMENTS * bench.options.scale))
        write_world(directory, count)
        used = sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))
        base, commands = yardstick(), []
        draw = np.random.RandomState(2)
        for size in LISTS:
            lines = draw.choice(count, size=size, replace=False) + 1
            names = directory / f"list{size}.txt"
            names.write_text("".join(f"corpus.jsonl:{line}\n" for line in lines))
            command = [*TOKSHARD, "trace", str(directory / "plan"), "--list", str(names)]
            command += ["--consumed-samples", "1M", "--json"]
            commands.append(Contender(f"{size:,} lines to their steps", command, is_watched=True))
        bench.compare(
            [base, *commands],
            title=f"{count:,} documents and {count // 10:,} more, {used / 1e9:.1f} GB of disk",
            base=base.name,
            figures=[SECONDS, CPU, OWN],
        )
