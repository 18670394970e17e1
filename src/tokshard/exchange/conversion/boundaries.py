"""The boundaries of documents in files beside the tokens: datatrove's ``.ds.index``, dolma's ``.csv.gz``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.exchange.conversion.files import LocalFile, TokenFile
from tokshard.storage.reading import open_file
from tokshard.text.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_CHUNK_ENTRIES = 1 << 16
_HIGHEST = 2**63 - 1
# A compressed file of a few kB can list any number of empty documents.
_MOST_EMPTY = 1 << 20
_MAX_LINE_BYTES = 1 << 20

Rows = Iterator["NDArray[np.int64]"]
"""Starts and ends of documents, of shape (rows, 2), or ends alone, of shape (rows, 1)."""


class DocumentEnds:
    """The ends of the documents of a token file, taken in order.

    Attributes:
        content_bytes: Bytes of the boundary file, decompressed, that were read so far.
        digest: XXH3-128 of these bytes.

    Args:
        file: The token file, which has a boundary file.
    """

    def __init__(self, file: TokenFile) -> None:
        assert file.boundaries is not None  # noqa: S101 - for the type checker
        self._file = file
        self._boundaries = file.boundaries
        self.digest = xxhash.xxh3_128()
        self.content_bytes = 0
        self._rows = _rows(file.boundaries, file.tokens, self._read)
        self._row_count = 0
        self._held: Integers = np.empty(0, np.int64)
        self._last = 0

    def take(self, stop: int) -> Iterator[Integers]:
        """Yield the next ends that are at most ``stop``, a token of the file, in pieces."""
        while self._fill() and (size := int(np.searchsorted(self._held, stop, side="right"))):
            taken, self._held = self._held[:size], self._held[size:]
            yield taken

    def finish(self) -> None:
        """Raise IntegrityError if the documents do not end where the tokens do."""
        if self._fill() or self._last != self._file.tokens:
            found = int(self._held[-1]) if len(self._held) else self._last
            raise IntegrityError(
                f"{self._boundaries.path}: the last document must end at token {self._file.tokens}, the size "
                f"of {self._file.path} in {self._file.dtype}, got {found}",
                path=self._boundaries.path,
                hint="copy both files again: one is truncated, they do not belong together, or "
                "--source-dtype is wrong",
            )

    def _fill(self) -> bool:
        while not len(self._held):
            rows = next(self._rows, None)
            if rows is None:
                return False
            self._held = rows[:, -1].copy()
            self._check(rows)
        return True

    def _check(self, rows: NDArray[np.int64]) -> None:
        # An end is never before the end of the previous document, and a start, if there is one, is it.
        ends = rows[:, -1]
        limit = self._file.tokens
        begins = np.concatenate(([self._last], ends[:-1]))
        wrong = (ends < begins) | (ends > limit) | (rows[:, 0] != begins if rows.shape[1] > 1 else False)
        if wrong.any():
            at = int(wrong.argmax())
            start = int(rows[at, 0])
            begin = int(begins[at])
            row = self._row_count + at
            if rows.shape[1] > 1 and start != begin:
                text = f"the document must start at token {begin}, where the last one ended, got {start}"
            else:
                text = (
                    f"the end of the document must be from {begin}, its start, to {limit}, the number of "
                    f"tokens in {self._file.path} ({self._file.dtype}), got {ends[at]}"
                )
            place = f"byte {8 * row}" if self._boundaries.compression == "none" else f"row {row + 1}"
            raise IntegrityError(
                f"{self._boundaries.path}: {place}: {text}",
                path=self._boundaries.path,
                hint="copy both files again: one is damaged, they do not belong together, or "
                "--source-dtype is wrong",
            )
        self._row_count += len(rows)
        self._last = int(ends[-1])

    def _read(self, content: Any) -> None:
        self.digest.update(content)
        self.content_bytes += len(content)


def last_end(boundaries: LocalFile, tokens: int) -> int | None:
    """Return the end of the last document of a boundary file; None if it has none.

    Of a compressed file, everything is read, unless it lists more documents than ``tokens``, the most that
    the token file can have, allow.

    Raises:
        IntegrityError: The file is damaged.
    """
    if boundaries.compression == "none":
        file = InputFile(boundaries.path)
        if file.size_bytes < 8 or file.size_bytes % 8:
            return None  # reported when the documents are read
        entry = np.empty(1, "<u8")
        file.read_into(entry.data.cast("B"), file.size_bytes - 8)
        return int(entry[0])
    last = None
    for rows in _rows(boundaries, tokens, lambda _: None):
        last = int(rows[-1, -1])
    return last


def _rows(boundaries: LocalFile, tokens: int, read: Callable[[Any], None]) -> Rows:
    """Yield the rows of a boundary file in chunks; ``read`` is called with its content."""
    path = boundaries.path
    return _index_rows(path, read) if boundaries.compression == "none" else _csv_rows(path, tokens, read)


def _index_rows(path: str, read: Callable[[Any], None]) -> Rows:
    file = InputFile(path)
    if file.size_bytes % 8:
        raise IntegrityError(
            f"{path} must have 8 bytes for each document, got {file.size_bytes} bytes",
            path=path,
            offset=file.size_bytes // 8 * 8,
            hint="copy the file again: it is truncated or not an index of datatrove",
        )
    for offset in range(0, file.size_bytes, 8 * _CHUNK_ENTRIES):
        entries = np.empty((min(_CHUNK_ENTRIES, (file.size_bytes - offset) // 8), 1), "<u8")
        file.read_into(entries.data.cast("B"), offset)
        read(entries.data.cast("B"))
        yield np.minimum(entries, np.uint64(_HIGHEST)).astype(np.int64)


def _csv_rows(path: str, tokens: int, read: Callable[[Any], None]) -> Rows:
    # The tokens are the most that the token file can have.
    rows: list[tuple[int, int]] = []
    number = 1
    try:
        for row in csv.reader(_lines(path, read)):
            rows.append(_boundaries(row, path, number))
            most = min(rows[-1][1], tokens) + _MOST_EMPTY
            if number > most:
                raise IntegrityError(
                    f"{path}: row {number}: at most {_MOST_EMPTY} documents must be empty, got "
                    f"{number} documents in {most - _MOST_EMPTY} tokens",
                    path=path,
                    hint="remove the rows of empty documents, or remove the file to divide the documents at "
                    "the token --eod-id",
                )
            number += 1
            if len(rows) == _CHUNK_ENTRIES:
                yield np.array(rows, np.int64)
                rows = []
    except (csv.Error, UnicodeDecodeError) as error:
        raise _csv_error(path, number, f"it is not valid CSV ({error})") from error
    if rows:
        yield np.array(rows, np.int64)


def _boundaries(row: list[str], path: str, number: int) -> tuple[int, int]:
    # Further columns are the id, the source and the line of the document.
    if len(row) < 2 or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in row[:2]):
        raise _csv_error(
            path, number, f"it must begin with START,END in tokens, got {','.join(row[:2])[:60]!r}"
        )
    return int(row[0]), int(row[1])


def _csv_error(path: str, number: int, text: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: row {number}: {text}",
        path=path,
        hint="copy the file again, or remove it to divide the documents at the token --eod-id",
    )


def _lines(path: str, read: Callable[[Any], None]) -> Iterator[str]:
    """Yield the lines of a compressed file with their ends."""
    held = b""
    for chunk in _content(path):
        read(chunk)
        # The last line may continue in the next chunk, and so may its end, CR LF.
        *lines, held = (held + chunk).splitlines(keepends=True)
        yield from map(_text_of, lines)
        if len(held) >= _MAX_LINE_BYTES:
            break
    if held:
        yield _text_of(held)


def _text_of(line: bytes) -> str:
    if len(line) >= _MAX_LINE_BYTES:
        raise csv.Error(f"a line has {_MAX_LINE_BYTES} or more bytes")
    return line.decode()


def _content(path: str) -> Iterator[bytes]:
    with open_file(path) as file:
        try:
            yield from decompressed_chunks(ByteSource(file, path), "gzip")
        except CorruptStreamError as error:
            raise IntegrityError(
                f"{path} at byte {error.offset}: {error.detail}",
                path=path,
                offset=error.offset,
                hint="copy the file again: it is damaged or truncated",
            ) from error
