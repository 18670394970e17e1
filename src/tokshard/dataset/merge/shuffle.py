"""Shuffling of the documents of a merge in bounded memory, in at most two passes over the tokens.

Documents are sorted by a hash of their number in the concatenation of the inputs. If they do not fit into
memory, the first pass scatters them to *buckets*, each of which has the documents of a range of hashes. The
second pass sorts one bucket after the other. Buckets determine how the output is made, never its content.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokshard.core.background import in_order
from tokshard.core.codec import Count, Positive, Record
from tokshard.core.formatting import counted, size
from tokshard.core.keyed_orders import derive_key, hashes
from tokshard.core.presentation import Facts
from tokshard.dataset.concatenate import StreamName
from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.manifest import ORDER_NAME, PIECES_NAME
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.piece import blocks, document_numbers
from tokshard.dataset.parameters import DocumentShuffle
from tokshard.dataset.records import PieceRecord, to_line
from tokshard.dataset.source import InputFile
from tokshard.storage import syscalls
from tokshard.storage.files import AppendFile
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.storage.syscalls import Buffer

    Integers = NDArray[np.int64]

PIECE_BYTES = 16 << 20
"""A piece ends with the first document at whose end it has this size. Digests of outputs depend on it."""

CHUNK_BYTES = 4 << 20
"""Tokens that are copied together before they are written."""

DOCUMENT_BYTES = 128
"""Memory of the columns of a document, and of copies of them while they are sorted."""

SEQUENCE_BYTES = 24
"""The same for a sequence."""

ROW = np.dtype(
    [("number", "<i8"), ("origin", "<i8"), ("begin", "<i8"), ("bytes", "<i8"), ("sequences", "<u4")]
)
"""A document: its number in the concatenation of the inputs, its number in the order of the units, where its
tokens are, their size, and the number of its sequences. ``begin`` is a position in memory. For a large
document, which is copied from its input to the output, it is ``-1 - position`` in the concatenation."""

# Two chunks or buckets are in memory: one is written while the next one is read. Buckets are not equal.
_LOADS = 3
# The memory has room for so many documents that are almost large.
_LARGE = 64
# Bytes of a file that a thread reads.
_READ_BYTES = 32 << 20
# Below this mean size, copying tokens by their numbers is faster than slicing the buffer.
_SHORT_BYTES = 100


@dataclass(frozen=True, slots=True)
class ShuffleSizes(Record):
    """Memory and disk space of a shuffle, known before it begins."""

    passes: Positive
    memory_bytes: Count
    scratch_bytes: Count
    disk_bytes: Count

    def facts(self, free_bytes: int | None) -> Facts:
        """Return the sizes and the free disk space for people."""
        means = f"{size(self.memory_bytes)} of memory"
        if self.scratch_bytes:
            means += f", {size(self.scratch_bytes)} of scratch files"
        free = "unknown" if free_bytes is None else size(free_bytes)
        return [
            ("shuffle", f"{counted(self.passes, 'pass', 'passes')} over the tokens, {means}"),
            ("disk", f"{size(self.disk_bytes)} required, {free} free"),
        ]


def shuffle_sizes(inputs: Sequence[MergeInput], memory_bytes: int) -> ShuffleSizes:
    """Return the sizes of a shuffle of datasets with an amount of memory."""
    tokens = sum(dataset.bin_bytes for dataset in inputs)
    documents = sum(dataset.header.document_count for dataset in inputs)
    sequences = sum(dataset.header.sequence_count for dataset in inputs)
    needed = tokens + DOCUMENT_BYTES * documents + SEQUENCE_BYTES * sequences
    is_single = needed <= memory_bytes
    return ShuffleSizes(
        passes=1 if is_single else 2,
        memory_bytes=min(needed, memory_bytes),
        scratch_bytes=0 if is_single else tokens + ROW.itemsize * documents + 5 * sequences,
        # The output with the streams of its index. The output repositions the buckets one by one.
        disk_bytes=tokens + 40 * documents + 20 * sequences,
    )


class ShuffledDocuments:
    """The documents of all inputs of a merge in a random order: one piece, without the records of the units.

    Args:
        directory: The staging directory, for the buckets.
        inputs: The datasets.
        shuffle: The order.
        memory_bytes: The memory for tokens and their index in two passes. If None, one pass.
        multimodal: Whether sequences have modes.
    """

    counts = NO_COUNTS

    def __init__(
        self,
        directory: str,
        inputs: Sequence[MergeInput],
        shuffle: DocumentShuffle,
        *,
        memory_bytes: int | None,
        multimodal: bool,
    ) -> None:
        self._directory = directory
        self._inputs = inputs
        self._key = np.full(1, derive_key(f"{shuffle.ALGORITHM}:documents", shuffle.seed, 0), np.uint64)
        self._multimodal = multimodal
        self._itemsize = inputs[0].header.dtype.itemsize
        self._documents = [0, *accumulate(dataset.header.document_count for dataset in inputs)]
        self._sequences = [0, *accumulate(dataset.header.sequence_count for dataset in inputs)]
        self._bytes = [0, *accumulate(dataset.bin_bytes for dataset in inputs)]
        self._columns = lru_cache(maxsize=2)(lambda number: inputs[number].columns(multimodal=multimodal))
        needed = self._needed_before(self._documents[-1])
        self._chunk_bytes = self._large_bytes = needed
        self._buckets = 0
        if memory_bytes is not None:
            self._chunk_bytes = max(1, memory_bytes // _LOADS)
            self._large_bytes = memory_bytes // _LARGE
            self._buckets = min(self._documents[-1], -(-needed // self._chunk_bytes))

    def scatter(self, tell: Callable[[int], None]) -> None:
        """Write the documents to the buckets of two passes; ``tell`` is called with the bytes written.

        Raises:
            IntegrityError: An input was truncated.
            StorageError: A file cannot be read or written.
        """
        begins = np.array([(bucket << 64) // self._buckets for bucket in range(1, self._buckets)], np.uint64)
        sizes = [0] * self._buckets
        for documents in in_order((partial(self._load, *chunk) for chunk in self._chunks()), 2):
            inner = np.searchsorted(hashes(self._key, documents.rows["number"]), begins).tolist()
            edges = [0, *inner, len(documents.rows)]
            for bucket in range(self._buckets):
                with closing(AppendFile(self._path(bucket), sizes[bucket], durable=False)) as file:
                    documents.write(file, *edges[bucket : bucket + 2])
                sizes[bucket] = file.size_bytes
            tell(sum(sizes))
            del documents  # the next ones are being read

    def streams(self) -> Iterator[tuple[StreamName, Buffer]]:
        """Yield the documents in their order, in one pass or from the buckets."""
        loads = (
            (partial(self._read, bucket) for bucket in range(self._buckets))
            if self._buckets
            else (partial(self._load, *chunk) for chunk in self._chunks())
        )
        piece = _OutputPiece(self._itemsize)
        for documents in in_order(loads, 2):
            rows = documents.rows
            ranges = list(documents.blocks(0, len(rows), piece.size_bytes))
            tokens = in_order((partial(self._tokens, documents, *block) for block in ranges), 2)
            for (first, stop), chunks in zip(ranges, tokens, strict=True):
                for chunk in chunks:
                    piece.append(chunk)
                    yield "bin", chunk
                piece.documents += stop - first
                piece.sequences += int(rows["sequences"][first:stop].sum())
                if piece.size_bytes >= PIECE_BYTES:
                    yield PIECES_NAME, piece.line()
                    piece = _OutputPiece(self._itemsize)
            yield "lengths", documents.lengths.data.cast("B")
            yield "sequences", rows["sequences"].tobytes()
            yield ORDER_NAME, rows["origin"].tobytes()
            if self._multimodal:
                yield "modes", documents.modes.data.cast("B")
            del documents, rows, tokens  # the next ones are being read
        if piece.documents:
            yield PIECES_NAME, piece.line()

    def _tokens(self, documents: SortedDocuments, first: int, stop: int) -> Iterable[Buffer]:
        row = documents.rows[first]
        if row["begin"] >= 0:
            return [documents.gather(first, stop)]
        position = -1 - int(row["begin"])
        number = bisect_right(self._bytes, position) - 1
        file = InputFile(bin_path(self._inputs[number].prefix))
        return blocks(file, position - self._bytes[number], int(row["bytes"]))

    def _path(self, bucket: int) -> str:
        return os.path.join(self._directory, f"shuffle-{bucket:05}.bin")

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of documents whose tokens and index fit the memory, or of a single document."""
        first = 0
        count = self._documents[-1]
        while first < count:
            limit = self._needed_before(first) + self._chunk_bytes
            stop = bisect_right(range(count + 1), limit, lo=first, key=self._needed_before) - 1
            stop = max(stop, first + 1)
            yield first, stop
            first = stop

    def _needed_before(self, document: int) -> int:
        """Return the bytes of memory that all documents before one need."""
        number = bisect_right(self._documents, document) - 1
        sequences = self._sequences[number]
        tokens = self._bytes[number]
        if number < len(self._inputs):
            inner = document - self._documents[number]
            sequence = int(self._columns(number).document_indices[inner : inner + 1][0])
            sequences += sequence
            tokens += self._position(number, sequence)
        return DOCUMENT_BYTES * document + SEQUENCE_BYTES * sequences + tokens

    def _position(self, number: int, sequence: int) -> int:
        """Return the byte offset of a sequence in the .bin file of an input."""
        pointers = self._columns(number).sequence_pointers[sequence : sequence + 1]
        return int(pointers[0]) if pointers.size else self._inputs[number].bin_bytes

    def _load(self, first: int, stop: int) -> SortedDocuments:
        """Read consecutive documents of the inputs and sort them."""
        columns = []
        ranges = []
        size_bytes = 0
        for number in range(bisect_right(self._documents, first) - 1, bisect_left(self._documents, stop)):
            base = self._documents[number]
            index = self._columns(number)
            begin = max(first, base)
            end = min(stop, self._documents[number + 1])
            bounds = index.document_indices[begin - base : end - base + 1]
            sequences = slice(int(bounds[0]), int(bounds[-1]))
            lengths = index.sequence_lengths[sequences]
            rows = np.empty(end - begin, ROW)
            rows["number"] = np.arange(begin, end)
            rows["origin"] = document_numbers(self._inputs[number], begin - base, end - base) + base
            rows["sequences"] = np.diff(bounds)
            rows["bytes"] = sizes = _document_sizes(bounds - bounds[0], lengths) * self._itemsize
            position = self._position(number, sequences.start)
            before = np.cumsum(sizes) - sizes
            in_input = -1 - (self._bytes[number] + position + before)
            rows["begin"] = np.where(sizes > self._large_bytes, in_input, size_bytes + before)
            columns.append((rows, lengths, index.sequence_modes[sequences]))
            ranges.append((number, position, int(sizes.sum())))
            size_bytes += int(sizes.sum())
        if stop == first + 1 and size_bytes > self._large_bytes:
            ranges = []
            size_bytes = 0
        tokens = np.empty(size_bytes, np.uint8)
        done = 0
        for number, position, size_of_range in ranges:
            _read_range(self._inputs[number], tokens.data[done : done + size_of_range], position)
            done += size_of_range
        return SortedDocuments.sort(columns, tokens, self._key, self._itemsize)

    def _read(self, bucket: int) -> SortedDocuments:
        """Read the documents of a bucket and sort them; remove the bucket."""
        path = self._path(bucket)
        file = InputFile(path)
        tokens = np.empty(file.size_bytes, np.uint8)
        columns = []
        position = 0
        done = 0
        while position < file.size_bytes:
            header = np.empty(3, np.int64)
            file.read_into(header.data.cast("B"), position)
            documents, sequences, token_bytes = header.tolist()
            rows = np.empty(documents, ROW)
            lengths = np.empty(sequences, "<i4")
            modes = np.empty(sequences if self._multimodal else 0, "i1")
            position += header.nbytes
            for column in (rows, lengths, modes):
                file.read_into(column.view(np.uint8).data, position)
                position += column.nbytes
            file.read_into(tokens.data[done : done + token_bytes], position)
            position += token_bytes
            rows["begin"][rows["begin"] >= 0] += done
            done += token_bytes
            columns.append((rows, lengths, modes))
        syscalls.unlink(path)
        return SortedDocuments.sort(columns, tokens, self._key, self._itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class SortedDocuments:
    """Documents in memory, in the order of their hashes.

    Attributes:
        rows: Rows of dtype ROW, of shape (documents,).
        lengths: The tokens of each sequence: int32 of shape (sequences,).
        modes: The mode of each sequence: int8 of shape (sequences,); of shape (0,) for text.
        tokens: Their tokens in any order: uint8 of shape (bytes,).
        ends: The bytes of all documents up to each: int64 of shape (documents,).
        sequence_ends: The sequences of all documents up to each: int64 of shape (documents,).
    """

    rows: NDArray[np.void]
    lengths: NDArray[np.int32]
    modes: NDArray[np.int8]
    tokens: NDArray[np.uint8]
    ends: Integers
    sequence_ends: Integers
    itemsize: int

    @classmethod
    def sort(
        cls,
        columns: Sequence[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]],
        tokens: NDArray[np.uint8],
        key: NDArray[np.uint64],
        itemsize: int,
    ) -> SortedDocuments:
        """Return documents whose rows, lengths and modes are in parts."""
        rows, lengths, modes = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        order = np.argsort(hashes(key, rows["number"]))
        counts = rows["sequences"].astype(np.int64)
        first = (np.cumsum(counts) - counts)[order]
        counts = counts[order]
        rows = rows[order]
        return cls(
            rows,
            _ragged(lengths, first, counts),
            _ragged(modes, first, counts) if modes.size else modes,
            tokens,
            np.cumsum(rows["bytes"]),
            np.cumsum(counts),
            itemsize,
        )

    def blocks(self, first: int, stop: int, piece_bytes: int = 0) -> Iterator[tuple[int, int]]:
        """Yield ranges of documents that are copied together; a large one is alone.

        A range ends where a piece of the output does, of which ``piece_bytes`` precede the first one.
        """
        while first < stop:
            before = int(self.ends[first] - self.rows["bytes"][first])
            wanted = before + min(CHUNK_BYTES, PIECE_BYTES - piece_bytes)
            end = min(int(np.searchsorted(self.ends, wanted)) + 1, stop)
            large = np.flatnonzero(self.rows["begin"][first:end] < 0)
            if large.size:
                end = first + max(1, int(large[0]))
            yield first, end
            piece_bytes += int(self.ends[end - 1]) - before
            if piece_bytes >= PIECE_BYTES:
                piece_bytes = 0
            first = end

    def gather(self, first: int, stop: int) -> Buffer:
        """Return the tokens of consecutive documents, none of which is large."""
        begins = self.rows["begin"][first:stop]
        sizes = self.rows["bytes"][first:stop]
        if int(sizes.sum()) < _SHORT_BYTES * len(sizes):
            items = self.tokens[: len(self.tokens) // self.itemsize * self.itemsize].view(f"u{self.itemsize}")
            return _ragged(items, begins // self.itemsize, sizes // self.itemsize).tobytes()
        tokens = self.tokens.data
        edges = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        views = [tokens[begin:end] for begin, end in edges]
        return views[0] if len(views) == 1 else b"".join(views)

    def write(self, file: AppendFile, first: int, stop: int) -> None:
        """Append consecutive documents to a bucket."""
        rows = self.rows[first:stop].copy()
        is_loaded = rows["begin"] >= 0
        sizes = np.where(is_loaded, rows["bytes"], 0)
        rows["begin"] = np.where(is_loaded, np.cumsum(sizes) - sizes, rows["begin"])
        end = int(self.sequence_ends[stop - 1]) if stop else 0
        sequences = slice(end - int(rows["sequences"].sum()), end)
        lengths = self.lengths[sequences]
        modes = self.modes[sequences]
        header = np.array([len(rows), len(lengths), sizes.sum()], np.int64)
        file.write(b"".join(part.tobytes() for part in (header, rows, lengths, modes)))
        for begin, end in self.blocks(first, stop):
            if self.rows["begin"][begin] >= 0:
                file.write(self.gather(begin, end))


class _OutputPiece:
    """A piece of the output that has not ended."""

    def __init__(self, itemsize: int) -> None:
        self.documents = 0
        self.sequences = 0
        self.size_bytes = 0
        self._itemsize = itemsize
        self._digest = xxhash.xxh3_128()

    def append(self, tokens: Buffer) -> None:
        """Append tokens."""
        self._digest.update(tokens)
        self.size_bytes += len(tokens)

    def line(self) -> bytes:
        """Return its record."""
        tokens = self.size_bytes // self._itemsize
        return to_line(PieceRecord(self.documents, self.sequences, tokens, self._digest.hexdigest()))


def _read_range(dataset: MergeInput, target: memoryview, position: int) -> None:
    file = InputFile(bin_path(dataset.prefix))
    begins = range(0, len(target), _READ_BYTES)
    reads = (
        partial(file.read_into, target[begin : begin + _READ_BYTES], position + begin) for begin in begins
    )
    for _ in in_order(reads, 2):
        pass


def _document_sizes(bounds: Integers, lengths: NDArray[np.int32]) -> Integers:
    """Return the tokens of documents whose sequences begin at bounds of the lengths."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    return np.diff(before[bounds])


def _ragged(values: NDArray[Any], first: Integers, counts: Integers) -> NDArray[Any]:
    """Return the concatenation of ``values[first[i] : first[i] + counts[i]]`` for all i."""
    ends = np.cumsum(counts)
    positions = np.repeat(first - (ends - counts), counts)
    positions += np.arange(positions.size)
    gathered: NDArray[Any] = values[positions]
    return gathered
