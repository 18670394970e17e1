"""Scratch files of a shuffle: sorted runs, from which the documents of one range after the other are read.

For each run, the columns and the tokens of its documents are appended to the files ``shuffle-GG.bin``, one
for each group of ranges, and their positions by range to ``segments.bin``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.merge.documents import NOT_LOADED, Documents, document_sizes
from tokshard.dataset.merge.shuffle_layout import MAX_GROUPS, ShuffleLayout
from tokshard.dataset.merge.token_stores import BufferPool, LoadedTokens, TokenStore
from tokshard.dataset.source import InputFile
from tokshard.storage import syscalls
from tokshard.storage.files import AppendFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

SEGMENTS_NAME = "segments.bin"

SEGMENT = np.dtype(
    [("columns", "<i8"), ("tokens", "<i8"), ("documents", "<i8"), ("sequences", "<i8"), ("bytes", "<i8")]
)
"""The documents of a run in a range: the positions of their columns and tokens in the file of the group, the
number of documents and sequences, and the bytes of the tokens."""


def group_name(group: int) -> str:
    """Return the name of the scratch file of a group of ranges."""
    return f"shuffle-{group:02}.bin"


SCRATCH_NAMES = (SEGMENTS_NAME, *map(group_name, range(MAX_GROUPS)))


class RunWriter:
    """Writer of sorted runs.

    Args:
        sizes: The sizes from which files of an earlier run are continued, by name.
        threads: The maximum number of chunks of tokens that are copied in memory at a time.
    """

    def __init__(self, directory: str, layout: ShuffleLayout, sizes: Mapping[str, int], threads: int) -> None:
        self._layout = layout
        self._threads = threads
        self.files: dict[str, AppendFile] = {}
        try:
            for name in [SEGMENTS_NAME, *map(group_name, range(layout.group_count))]:
                self.files[name] = AppendFile(os.path.join(directory, name), sizes.get(name, 0))
        except BaseException:
            self.close()
            raise

    @property
    def finished(self) -> int:
        """The number of runs that have been written."""
        return self.files[SEGMENTS_NAME].size_bytes // (SEGMENT.itemsize * self._layout.range_count)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files.values())

    def write(self, documents: Documents, keys: NDArray[np.uint64], tell: Callable[[], None]) -> None:
        """Write a run.

        Args:
            documents: Its documents, sorted.
            keys: Their hashes.
            tell: Called after each chunk.
        """
        edges = self._layout.edges(keys)
        sequences = np.concatenate((np.zeros(1, np.int64), np.cumsum(documents.counts)))[edges]
        loaded = np.where(documents.begins == NOT_LOADED, 0, documents.sizes)
        sizes = np.concatenate((np.zeros(1, np.int64), np.cumsum(loaded)))[edges]
        row = np.zeros(self._layout.range_count, SEGMENT)
        row["documents"], row["sequences"], row["bytes"] = np.diff(edges), np.diff(sequences), np.diff(sizes)
        for group in range(self._layout.group_count):
            file, ranges = self.files[group_name(group)], self._layout.ranges_of(group)
            columns: list[bytes] = []
            begin = file.size_bytes
            for number in ranges:
                row["columns"][number] = begin
                first, stop = int(edges[number]), int(edges[number + 1])
                columns.append(_columns(documents, first, stop, *sequences[number : number + 2].tolist()))
                begin += len(columns[-1])
            file.write(b"".join(columns))
            begin = int(sizes[ranges.start])
            row["tokens"][ranges.start : ranges.stop] = (
                file.size_bytes + sizes[ranges.start : ranges.stop] - begin
            )
            chunks = documents.chunks(int(edges[ranges.start]), int(edges[ranges.stop]))
            places = [place for place in chunks if documents.begins[place[0]] != NOT_LOADED]
            for chunk in documents.gather(places, self._threads):
                file.write(chunk)
                tell()
        self.files[SEGMENTS_NAME].write(row.tobytes())

    def close(self) -> None:
        """Close all files."""
        for file in self.files.values():
            file.close()


def _columns(documents: Documents, first: int, stop: int, first_sequence: int, last_sequence: int) -> bytes:
    apart = documents.begins[first:stop] == NOT_LOADED
    parts = (
        documents.numbers[first:stop],
        documents.origins[first:stop],
        documents.counts[first:stop],
        apart,
        documents.lengths[first_sequence:last_sequence],
        documents.modes[first_sequence:last_sequence],
    )
    return b"".join(part.tobytes() for part in parts)


class RunReader:
    """Reader of ranges from finished runs. Threads may share it."""

    def __init__(
        self, directory: str, layout: ShuffleLayout, itemsize: int, pool: BufferPool, *, multimodal: bool
    ) -> None:
        self._layout = layout
        self._pool = pool
        self._itemsize = itemsize
        self._multimodal = multimodal
        self._directory = directory
        self._segments = InputFile(os.path.join(directory, SEGMENTS_NAME))

    def load(self, number: int) -> Documents:
        """Return the documents of a range, those of each run sorted.

        Raises:
            IntegrityError: A scratch file is too short.
            StorageError: It cannot be read.
        """
        group = next(g for g in range(self._layout.group_count) if number in self._layout.ranges_of(g))
        file = InputFile(os.path.join(self._directory, group_name(group)))
        segments = self._column(number)
        tokens = self._pool.take(int(segments["bytes"].sum()), self._layout.block_bytes)
        view, position = tokens.data, 0
        parts = []
        for segment in segments:
            size = int(segment["bytes"])
            if segment["documents"]:
                parts.append(self._read(file, segment, position))
                file.read_into(view[position : position + size], int(segment["tokens"]))
            position += size
        return _concatenated(parts, LoadedTokens(tokens, self._itemsize, self._pool))

    def _column(self, number: int) -> NDArray[np.void]:
        # The segments of one range in all runs.
        segments = np.empty(self._layout.run_count, SEGMENT)
        view = segments.data.cast("B")
        row = SEGMENT.itemsize * self._layout.range_count
        for run in range(self._layout.run_count):
            target = view[run * SEGMENT.itemsize : (run + 1) * SEGMENT.itemsize]
            self._segments.read_into(target, run * row + number * SEGMENT.itemsize)
        return segments

    def _read(self, file: InputFile, segment: np.void, position: int) -> _Columns:
        count, sequences = int(segment["documents"]), int(segment["sequences"])
        sizes = (8 * count, 8 * count, 8 * count, count, 4 * sequences, sequences * self._multimodal)
        content = bytearray(sum(sizes))
        file.read_into(memoryview(content), int(segment["columns"]))
        columns, begin = [], 0
        for size, dtype in zip(sizes, ("<i8", "<i8", "<i8", "?", "<i4", "i1"), strict=True):
            columns.append(np.frombuffer(content, dtype, size // np.dtype(dtype).itemsize, begin))
            begin += size
        numbers, origins, counts, apart, lengths, modes = columns
        bytes_of = document_sizes(counts, lengths, self._itemsize)
        loaded = np.where(apart, 0, bytes_of)
        begins = np.where(apart, NOT_LOADED, np.cumsum(loaded) - loaded + position)
        return _Columns(numbers, origins, counts, lengths, modes, begins, bytes_of)


def _concatenated(parts: list[_Columns], tokens: TokenStore) -> Documents:
    def joined(name: str, dtype: str) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *(getattr(part, name) for part in parts)])

    return Documents(
        numbers=joined("numbers", "i8"),
        origins=joined("origins", "i8"),
        counts=joined("counts", "i8"),
        lengths=joined("lengths", "i4"),
        modes=joined("modes", "i1"),
        begins=joined("begins", "i8"),
        sizes=joined("sizes", "i8"),
        tokens=tokens,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    numbers: Integers
    origins: Integers
    counts: Integers
    lengths: NDArray[np.int32]
    modes: NDArray[np.int8]
    begins: Integers
    sizes: Integers


def remove_scratch(directory: str, names: Iterable[str] = SCRATCH_NAMES) -> None:
    """Remove scratch files; absent ones are fine."""
    for name in names:
        syscalls.unlink(os.path.join(directory, name))
