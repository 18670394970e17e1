"""Lines of a unit, in batches, with their positions in the input's stream."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TextFormat
from tokshard.errors import InputError, TokshardError
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_regular, read_at
from tokshard.storage.remote.objects import BLOCK_BYTES, RemoteFile
from tokshard.text.corpus.batch import BatchBuilder, DocumentBatch, LineBatch
from tokshard.text.corpus.record_format import Reading, RecordFormat
from tokshard.text.corpus.rejection import UnusableRecordError
from tokshard.text.corpus.selection import sampled_lines, with_excluded
from tokshard.text.corpus.units import LineUnit
from tokshard.text.corpus.values import RecordFields


@contextmanager
def _open_ranges(path: str, end: int) -> Iterator[_LocalRanges | _RemoteRanges]:
    """Open an input to read it up to about ``end``, or further."""
    if is_remote(path):
        yield _RemoteRanges(path, end)
        return
    descriptor = open_regular(path)
    try:
        yield _LocalRanges(descriptor)
    finally:
        os.close(descriptor)


class _LocalRanges:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        return read_at(self._descriptor, count, offset)


class _RemoteRanges:
    """Larger ranges than the ones asked for: consecutive ones need fewer requests."""

    def __init__(self, url: str, end: int) -> None:
        self._file = RemoteFile(url)
        self.size_bytes = self._file.size_bytes
        self._expected_end = end + _OVERHANG_BYTES
        self._begin, self._window = 0, b""

    def read(self, offset: int, count: int) -> bytes:
        skipped = offset - self._begin
        if skipped < 0 or skipped + count > len(self._window):
            size = max(count, min(BLOCK_BYTES, self._expected_end - offset))
            self._begin, self._window, skipped = offset, self._file.read(offset, size), 0
        return self._window[skipped : skipped + count]


# Bytes that the first read requests beyond the unit's end, where its last line usually ends.
_OVERHANG_BYTES = 1 << 16
_SCAN_BYTES = 1 << 20
# Bytes kept of a line that is too long, for its excerpt.
_HEAD_BYTES = 256
# Lines that are longer on average, at the beginning of a batch, are not copied.
_LONG_LINE_BYTES = 1024
_SAMPLED_BYTES = 1 << 14
_NEWLINE = ord("\n")
UTF8_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF16_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")


def line_format(
    name: TextFormat,
    title: str,
    suffixes: tuple[str, ...],
    documents_of_lines: Callable[[LineBatch, npt.NDArray[np.int64], Reading], DocumentBatch],
) -> RecordFormat:
    """Return the descriptor of a format whose records are lines; see :class:`RecordFormat`."""
    return RecordFormat(
        name=name,
        title=title,
        suffixes=suffixes,
        units=_line_units,
        documents=partial(_documents, documents_of_lines),
        documents_of_lines=documents_of_lines,
    )


def _line_units(
    file_number: int, file: SourceFile, unit_bytes: int, _fields: RecordFields
) -> Iterator[LineUnit]:
    size_bytes = file.size_bytes or 0
    count = max(1, -(-size_bytes // unit_bytes))
    for index in range(count):
        begin = index * unit_bytes
        end = min(begin + unit_bytes, size_bytes)
        yield LineUnit(
            file=file_number,
            index=index,
            last=index == count - 1,
            path=file.path,
            begin=begin,
            end=end,
            input_bytes=end - begin,
            format=cast("TextFormat", file.format),
        )


def _documents(
    documents_of_lines: Callable[[LineBatch, npt.NDArray[np.int64], Reading], DocumentBatch],
    unit: LineUnit,
    reading: Reading,
) -> Iterator[DocumentBatch]:
    selection = reading.selection
    first_line = 1
    position = unit.stream_offset + unit.begin
    for batch in line_batches(unit, reading.batch_bytes, reading.max_document_bytes):
        lines = batch.lines
        if lines and position == 0 and bytes(lines[0][:3]) == UTF8_BYTE_ORDER_MARK:
            lines[0] = lines[0][len(UTF8_BYTE_ORDER_MARK) :]
        position += len(batch.raw)
        numbers = np.arange(first_line, first_line + len(lines))
        first_line += len(lines)
        sampled = selection.sampled(unit.file, batch.offsets)
        excluded: Counter[str] = Counter()
        blank_lines = 0
        chosen = batch
        if sampled is not None:
            numbers = numbers[sampled]
            chosen, excluded, blank_lines = sampled_lines(batch, sampled, reading.max_document_bytes)
        documents = selection.divided(documents_of_lines(chosen, numbers, reading))
        lines.clear()  # they can be long
        yield with_excluded(documents, excluded, blank_lines)
    if unit.stream_error is not None:
        yield selection.divided(_end_of_corrupt_stream(unit, reading.fields, first_line))


def _end_of_corrupt_stream(unit: LineUnit, fields: RecordFields, line: int) -> DocumentBatch:
    # One rejected record represents the rest of the input.
    builder = BatchBuilder(fields)
    offset = unit.stream_offset + unit.end + sum(dropped for _, dropped in unit.elided)
    builder.reject(offset, line, UnusableRecordError("corrupt-stream", str(unit.stream_error)), "")
    return builder.batch(b"", lines=1)


def line_batches(unit: LineUnit, batch_bytes: int, max_line_bytes: int) -> Iterator[LineBatch]:
    """Yield the lines of a unit in batches of about ``batch_bytes``.

    Peak memory: a few times the larger of ``batch_bytes`` and the longest line of at most
    ``max_line_bytes``.

    ``batch_bytes``: size of a batch; a longer line is a batch of its own. ``max_line_bytes``: longer
    lines are never in memory as a whole.

    Raises:
        InputError: The file cannot be read or ends before the end of the unit.
    """
    try:
        with _open_ranges(unit.path, unit.end) as ranges:
            reader = _LineUnitReader(ranges, unit)
            reader.check_size()
            yield from reader.batches(batch_bytes, max_line_bytes)
    except TokshardError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {unit.path}: {error.strerror}") from error


class _LineUnitReader:
    # Positions are offsets in the file until _batch turns them into offsets in the stream.
    def __init__(self, ranges: _LocalRanges | _RemoteRanges, unit: LineUnit) -> None:
        self._read = ranges.read
        self._size = ranges.size_bytes
        self._unit = unit
        starts = np.array([start for start, _ in unit.elided], np.int64)
        self._dropped = np.array([0, *(dropped for _, dropped in unit.elided)], np.int64)
        self._dropped_before = np.cumsum(self._dropped)
        self._elided_starts = starts - unit.stream_offset - self._dropped_before[:-1]

    def check_size(self) -> None:
        if self._size < self._unit.end:
            raise self._shorter(self._size)

    def batches(self, batch_bytes: int, max_line_bytes: int) -> Iterator[LineBatch]:
        position = self._first_line_start()
        end = self._unit.end
        size = 0
        while position < end:
            size = size or min(batch_bytes, end - position + _OVERHANG_BYTES)
            block = self._read(position, size)
            stop = _lines_end(block, end - position)
            if stop:
                batch = self._batch(block, stop, position)
                del block  # may be as long as the longest line
                yield batch
                del batch
                position += stop
                size = 0
            elif not block:
                raise self._shorter(position)
            elif len(block) < size:
                yield self._batch(block, len(block), position)
                return
            else:
                # It is read again when its length is known: joining its parts would take twice the memory.
                size = self._line_size(position, size, max_line_bytes)
                if not size:
                    position = yield from self._long_line(position)

    def _first_line_start(self) -> int:
        begin, end = self._unit.begin, self._unit.end
        position = begin - 1
        while 0 <= position < end - 1:
            block = self._read(position, min(_SCAN_BYTES, end - 1 - position))
            if not block:
                raise self._shorter(position)
            newline = block.find(b"\n")
            if newline >= 0:
                return position + newline + 1
            position += len(block)
        return end if begin > 0 else 0

    def _line_size(self, start: int, known: int, max_line_bytes: int) -> int:
        # With its newline, or one more than there is at the end of the input; 0 if it is too long.
        size = known
        while size <= max_line_bytes:
            block = self._read(start + size, min(_SCAN_BYTES, max_line_bytes + 1 - size))
            newline = block.find(b"\n")
            if newline >= 0:
                return size + newline + 1
            if not block:
                return size + 1
            size += len(block)
        return 0

    def _long_line(self, start: int) -> Generator[LineBatch, None, int]:
        none = np.empty(0, np.int64)
        head = self._read(start, _HEAD_BYTES)
        position = start
        while True:
            block = self._read(position, _SCAN_BYTES)
            newline = block.find(b"\n")
            if newline >= 0 or not block:
                break
            yield LineBatch(block, [], none, none, complete=True)
            position += len(block)
        raw = block[: newline + 1]
        line_end = position + max(newline, 0)
        offsets, lengths = self._in_stream(
            np.array([start], np.int64), np.array([line_end - start], np.int64)
        )
        yield LineBatch(raw, [head], offsets, lengths, complete=newline >= 0)
        return line_end + 1

    def _batch(self, block: bytes, size: int, position: int) -> LineBatch:
        lines = _lines_of(block, size)
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        ends = np.cumsum(lengths + 1)
        offsets, lengths = self._in_stream(ends - (lengths + 1) + position, lengths)
        raw = block if size == len(block) else memoryview(block)[:size]
        return LineBatch(raw, lines, offsets, lengths, complete=block[size - 1] == _NEWLINE)

    def _in_stream(
        self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        offsets = starts + self._unit.stream_offset
        if not self._unit.elided:
            return offsets, lengths
        before = np.searchsorted(self._elided_starts, starts, side="left")
        through = np.searchsorted(self._elided_starts, starts, side="right")
        dropped = np.where(through > before, self._dropped[through], 0)
        return offsets + self._dropped_before[before], lengths + dropped

    def _shorter(self, size: int) -> InputError:
        return InputError(
            f"{self._unit.path} must have at least {self._unit.end} bytes as when the run began, got {size}",
            hint="run the command again when no other process writes to the input",
        )


def _lines_of(block: bytes, size: int) -> list[bytes | memoryview]:
    # To create a view takes longer than to copy a short line. Counting in the whole block would take as long
    # as copying it.
    sampled = min(size, _SAMPLED_BYTES)
    if block.count(b"\n", 0, sampled) * _LONG_LINE_BYTES > sampled:
        lines: list[bytes | memoryview] = list(block[:size].split(b"\n"))
        if not lines[-1]:
            lines.pop()
        return lines
    view = memoryview(block)
    lines, begin = [], 0
    while begin < size:
        end = block.find(b"\n", begin, size)
        end = end if end >= 0 else size
        lines.append(view[begin:end])
        begin = end + 1
    return lines


def _lines_end(block: bytes, remaining: int) -> int:
    # `remaining` is the unit's nominal end relative to the start of `block`, and can be behind its end.
    ending = block.find(b"\n", remaining - 1) + 1
    return ending or block.rfind(b"\n", 0, remaining) + 1
