"""Output of a shuffle: tokens, columns of the index, order and pieces, appended in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokshard.dataset.index_file import FileColumn
from tokshard.dataset.manifest import ORDER_NAME
from tokshard.dataset.merge.documents import NOT_LOADED, Documents
from tokshard.dataset.records import PieceRecord
from tokshard.dataset.source import InputFile
from tokshard.storage.digest import READ_BYTES
from tokshard.storage.files import AppendFile, EarlyForce

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = 16 << 20
"""A piece ends with the first document at whose end it has this size. Digests of outputs depend on it."""

CACHED_BYTES = 1 << 30
"""Tokens that stay in the page cache, which must have room for the inputs."""

TOKENS_NAME = "0.bin"
LENGTHS_NAME = "0.lengths"
COUNTS_NAME = "0.sequences"
MODES_NAME = "0.modes"
STAGED_ORDER_NAME = f"0.{ORDER_NAME}"
_NAMES = (TOKENS_NAME, LENGTHS_NAME, COUNTS_NAME, MODES_NAME, STAGED_ORDER_NAME)


class ShuffledOutput:
    """Writer of the output.

    Args:
        directory: The work directory.
        sizes: The sizes from which files of an earlier run are continued, by name.
        pieces: The pieces that an earlier run finished.
        itemsize: The bytes of a token.
        position: Returns the file and the first byte of the tokens of a document that is not loaded.
        finish: Called with each finished piece.
    """

    def __init__(
        self,
        directory: str,
        sizes: Mapping[str, int],
        pieces: Sequence[PieceRecord],
        itemsize: int,
        position: Callable[[int], tuple[str, int]],
        finish: Callable[[PieceRecord], None],
    ) -> None:
        self._itemsize = itemsize
        self._position = position
        self._finish = finish
        self.files: dict[str, AppendFile] = {}
        try:
            for name in _NAMES:
                self.files[name] = AppendFile(os.path.join(directory, name), sizes.get(name, 0))
        except BaseException:
            self._close_files()
            raise
        self._early = EarlyForce(self._force_tokens, self.size_bytes)
        self._piece = xxhash.xxh3_128()
        done = sum(piece.tokens for piece in pieces) * itemsize
        self._documents = self.documents - sum(piece.documents for piece in pieces)
        sequences = self.files[LENGTHS_NAME].size_bytes // 4
        self._sequences = sequences - sum(piece.sequences for piece in pieces)
        self._bytes = self.size_bytes - done
        self._digest_again(done)

    @property
    def documents(self) -> int:
        """The number of documents that have been written."""
        return self.files[STAGED_ORDER_NAME].size_bytes // 8

    @property
    def size_bytes(self) -> int:
        """The bytes of tokens that have been written."""
        return self.files[TOKENS_NAME].size_bytes

    def write(self, documents: Documents, threads: int, tell: Callable[[], None]) -> None:
        """Append documents that have been sorted.

        Args:
            documents: The documents.
            threads: The maximum number of chunks of tokens that are copied in memory at a time.
            tell: Called after each chunk.
        """
        places = list(documents.chunks(0, len(documents)))
        loaded = [place for place in places if documents.begins[place[0]] != NOT_LOADED]
        chunks = documents.gather(loaded, threads)
        for first, stop in places:
            if documents.begins[first] == NOT_LOADED:
                path, begin = self._position(int(documents.numbers[first]))
                for block in blocks(path, begin, int(documents.sizes[first])):
                    self._append(block)
                    tell()
                self._add(1, int(documents.counts[first]))
            else:
                self._write_chunk(documents, first, stop, memoryview(next(chunks)))
                tell()
        for name, column in (
            (LENGTHS_NAME, documents.lengths.astype("<i4", copy=False)),
            (COUNTS_NAME, documents.counts.astype("<i8", copy=False)),
            (MODES_NAME, documents.modes),
            (STAGED_ORDER_NAME, documents.origins.astype("<i8", copy=False)),
        ):
            self.files[name].write(column.data.cast("B"))

    def finish(self) -> None:
        """End the last piece."""
        if self._documents:
            self._end_piece()
        self._early.settle()

    def close(self) -> None:
        """Close all files. An fsync in progress is awaited, even if it fails."""
        self._early.wait()
        self._close_files()

    def _close_files(self) -> None:
        for file in self.files.values():
            file.close()

    def _write_chunk(self, documents: Documents, first: int, stop: int, tokens: memoryview) -> None:
        ends, counts = np.cumsum(documents.sizes[first:stop]), documents.counts[first:stop]
        done = begin = 0
        while done < len(ends):
            last = int(np.searchsorted(ends, begin + PIECE_BYTES - self._bytes, side="left"))
            upto = min(last + 1, len(ends))
            self._append(tokens[begin : int(ends[upto - 1])])
            self._add(upto - done, int(counts[done:upto].sum()))
            done, begin = upto, int(ends[upto - 1])

    def _add(self, documents: int, sequences: int) -> None:
        # Documents whose tokens have been appended.
        self._documents += documents
        self._sequences += sequences
        if self._bytes >= PIECE_BYTES:
            self._end_piece()

    def _append(self, block: bytes | memoryview) -> None:
        self._piece.update(block)
        file = self.files[TOKENS_NAME]
        file.write(block)
        self._bytes += len(block)
        self._early.written(file.size_bytes)

    def _force_tokens(self) -> None:
        file, size = self.files[TOKENS_NAME], self.size_bytes
        file.force()
        if size > CACHED_BYTES:
            file.uncache(CACHED_BYTES, size - CACHED_BYTES)

    def _end_piece(self) -> None:
        self._finish(
            PieceRecord(
                self._documents, self._sequences, self._bytes // self._itemsize, self._piece.hexdigest()
            )
        )
        self._piece = xxhash.xxh3_128()
        self._documents = self._sequences = self._bytes = 0

    def _digest_again(self, begin: int) -> None:
        # The beginning of an unfinished piece, which an earlier run wrote.
        for block in blocks(self.files[TOKENS_NAME].path, begin, self._bytes):
            self._piece.update(block)


def blocks(path: str, offset: int, size: int) -> Iterator[memoryview]:
    """Yield a range of bytes of a file; each block is valid until the next one is read."""
    if not size:
        return
    file = InputFile(path)
    buffer = memoryview(bytearray(min(READ_BYTES, size)))
    for begin in range(offset, offset + size, READ_BYTES):
        block = buffer[: offset + size - begin]
        file.read_into(block, begin)
        yield block


def column(directory: str, name: str, dtype: str) -> Iterator[NDArray[Any]]:
    """Yield a column of the finished output, a few MB at a time."""
    file = InputFile(os.path.join(directory, name))
    return FileColumn(file, dtype, file.size_bytes // np.dtype(dtype).itemsize, 0).pieces()
