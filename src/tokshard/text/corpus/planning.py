"""Units of inputs, which are divided without parsing the records, and the documents of units.

Streams (compressed files, pipes and standard input) are divided in one pass and bounded memory: one process
decompresses, and each unit becomes a plain temporary file that any worker can read. The scan looks only for
the first and last newline of a chunk and the one that ends a unit, so it runs at about the speed of the
decompressor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any

import numpy as np

from tokshard.dataset.parameters import TextFormat
from tokshard.errors import InputError, TokshardError
from tokshard.storage import syscalls
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file, open_passed
from tokshard.text.corpus.batch import DocumentBatch, LineBatch
from tokshard.text.corpus.compressed import CHUNK_BYTES, ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.text.corpus.content import HEAD_BYTES, identify, refuse_inside
from tokshard.text.corpus.fields import FieldPath, is_token_ids
from tokshard.text.corpus.files import STDIN, CorpusFile
from tokshard.text.corpus.formats import format_named, format_to_read
from tokshard.text.corpus.lines import UTF8_BYTE_ORDER_MARK
from tokshard.text.corpus.record_format import MAX_DOCUMENT_BYTES, Reading
from tokshard.text.corpus.rejection import RejectedRecord, UnusableRecordError
from tokshard.text.corpus.units import LineUnit, Unit
from tokshard.text.corpus.values import RecordFields

# A field is text if these have no value of it.
_DECIDING_INPUTS = 10
_DECIDING_LINES = 1000
# The first records of a compressed remote object cost one range.
_FIRST_LINES_BYTES = 1 << 16


def plan_units(
    file_number: int,
    file: CorpusFile,
    unit_bytes: int,
    fields: RecordFields | None = None,
) -> Iterator[Unit]:
    """Yield the units of a seekable input: plain lines, or a table.

    For streams (``file.is_stream``) see :func:`tokshard.text.corpus.planning.stream_units`.

    ``unit_bytes``: the nominal size of a unit. Consecutive row groups form a unit when they reach it.
    ``fields``: those that a table must have as columns.

    Raises:
        InputError: The table cannot be read, or does not have one of the columns.
        MissingExtraError: A package that the format needs is not installed.
    """
    if file.is_stream:
        raise ValueError(f"{file.path} can only be read as a stream")
    return format_to_read(file.format).units(file_number, file, unit_bytes, fields or RecordFields())


def read_documents(unit: Unit, reading: Reading) -> Iterator[DocumentBatch]:
    """Yield a unit's documents in batches, in order.

    Raises:
        InputError: The input cannot be read, or a table has no such column.
        MissingExtraError: A package that the format needs is not installed.
    """
    return format_to_read(unit.format).documents(unit, reading)


def first_rejected(file_number: int, file: CorpusFile, reading: Reading) -> list[RejectedRecord]:
    """Return the first record of an input if it is rejected, else nothing.

    Raises: see :func:`read_documents`.
    """
    sampled = reading.selection.sampled(file_number, np.zeros(1, np.int64))
    if sampled is not None and not sampled[0]:
        return []
    record_format = format_to_read(file.format)
    if record_format.documents_of_lines is not None:
        with closing(_lines_of(file, reading.max_document_bytes, CHUNK_BYTES)) as lines:
            line = next(lines)
        batch = LineBatch(line, [line], np.zeros(1, np.int64), np.array([len(line)]), complete=True)
        return record_format.documents_of_lines(batch, np.ones(1, np.int64), reading).rejected
    unit = next(record_format.units(file_number, file, 1, reading.fields))
    batches = record_format.documents(unit, reading._replace(batch_bytes=1))
    return next((documents.rejected for documents in batches), [])


def stream_units(
    file_number: int,
    file: CorpusFile,
    unit_bytes: int,
    max_document_bytes: int,
    directory: str,
    *,
    skip: Callable[[int], bool],
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[LineUnit]:
    """Yield the units of an input as temporary files ``raw-<file>-<index>.jsonl``, in order.

    The consumer removes each file after use. A line longer than ``max_document_bytes`` keeps its first
    ``max_document_bytes + 1`` bytes, so the reader detects that it is too long; ``elided`` records the
    rest. If the stream is corrupt, the complete lines before that position are kept; their unit is the last
    and has a ``stream_error``. Peak memory: two chunks and the decompressor.

    Args:
        file_number: The number of the input.
        file: The input; its format is detected from its first bytes.
        unit_bytes: The size of a unit in the decompressed stream.
        max_document_bytes: The longest line that can become a document.
        directory: Directory of the temporary files; existing files of their names are replaced.
        skip: Returns whether a unit is skipped: it is not written and not yielded.
        chunk_bytes: Bytes that are decompressed at a time.

    Raises:
        InputError: The input cannot be read or is not JSON lines.
        StorageError: A temporary file cannot be written.
    """
    piece_bytes = min(chunk_bytes, max_document_bytes)
    with _opened(file.path) as source:
        cutter = _Cutter(file_number, file.format, source, unit_bytes, max_document_bytes, directory, skip)
        try:
            for chunk in _text_chunks(source, chunk_bytes):
                for start in range(0, len(chunk), piece_bytes):
                    yield from cutter.feed(chunk[start : start + piece_bytes])
            yield from cutter.finish()
        except CorruptStreamError as error:
            yield from cutter.break_off(error.detail)
        finally:
            cutter.discard()


def has_token_ids(files: Sequence[CorpusFile], field: str) -> bool:
    """Return whether a field contains token ids: in the first table, or the first record with a value of it.

    Pipes count as text, and so do inputs that cannot be read: their errors are raised when they are read.
    """
    path = FieldPath.parse(field)
    for file in files[:_DECIDING_INPUTS]:
        if file.size_bytes is None:
            break
        with suppress(TokshardError):
            record_format = format_to_read(file.format)
            if record_format.has_token_ids is not None:
                return record_format.has_token_ids(file.path, path)
            with closing(_lines_of(file, MAX_DOCUMENT_BYTES, _FIRST_LINES_BYTES)) as lines:
                for line in islice(lines, _DECIDING_LINES):
                    if value := _value_in(line, path):
                        return is_token_ids(value[:1])
    return False


def _value_in(line: bytes, path: FieldPath) -> str | list[Any] | None:
    import orjson

    try:
        value = path.find(orjson.loads(line))
    except (ValueError, AttributeError, UnusableRecordError):  # not JSON, no object, no such field
        return None
    return value if isinstance(value, str | list) else None


def _lines_of(file: CorpusFile, max_bytes: int, chunk_bytes: int) -> Generator[bytes]:
    """Yield the lines, without newlines; the last is the first that is longer than ``max_bytes``."""
    line = b""
    chunks = 0
    try:
        with _opened(file.path) as source:
            for chunk in _text_chunks(source, chunk_bytes):
                data = line + chunk if chunks else chunk.removeprefix(UTF8_BYTE_ORDER_MARK)
                *lines, line = data.split(b"\n")
                yield from lines
                if len(line) > max_bytes:
                    break
                chunks += 1
    except CorruptStreamError as error:
        raise InputError(f"{file.path}: {error.detail}", hint=f"fetch {file.path} again") from error
    yield line


@contextmanager
def _opened(path: str) -> Iterator[ByteSource]:
    if is_remote(path):
        with open_file(path) as file:
            yield ByteSource(file, path)
        return
    try:
        file = open_passed(0 if path == STDIN else path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        # A shell or a parent may leave a pipe in non-blocking mode, in which "no data yet" looks like the
        # end of the input.
        os.set_blocking(file.fileno(), True)
        yield ByteSource(file, "standard input" if path == STDIN else path)
    finally:
        # What was read is unaffected if a file cannot be closed.
        with suppress(OSError):
            file.close()


def _text_chunks(source: ByteSource, chunk_bytes: int) -> Iterator[bytes]:
    # The decompressed data may not be text either, for example a tar archive.
    content = identify(source.head(HEAD_BYTES), source.path)
    record_format = format_named(content.format)
    if not record_format.has_lines:
        raise InputError(
            f"cannot read {record_format.title} from a pipe: {source.path}",
            hint="save the data to a file and pass the file",
        )
    checked = content.compression == "none"
    for chunk in decompressed_chunks(source, content.compression, chunk_bytes=chunk_bytes):
        if not checked:
            checked = True
            refuse_inside(chunk[:HEAD_BYTES], source.path, content.compression)
        yield chunk


class _UnitFile:
    def __init__(self, path: str | None, stream_offset: int) -> None:
        self.path = path
        self.stream_offset = stream_offset
        self.size_bytes = 0
        self.complete_bytes = 0
        self.elided: list[tuple[int, int]] = []
        self._descriptor = -1
        if path is not None:
            syscalls.unlink(path)
            self._descriptor = syscalls.create(path)

    def write(self, data: memoryview) -> None:
        if self.path is not None:
            syscalls.write(self._descriptor, data, self.path)
        self.size_bytes += len(data)

    def drop_incomplete_line(self) -> None:
        if self.path is not None:
            syscalls.truncate(self._descriptor, self.complete_bytes, self.path)
        self.size_bytes = self.complete_bytes

    def close(self) -> None:
        if self.path is not None:
            descriptor, self._descriptor = self._descriptor, -1
            syscalls.close(descriptor, self.path)

    def discard(self) -> None:
        if self.path is not None and self._descriptor >= 0:
            self.close()
            syscalls.unlink(self.path)


class _Cutter:
    # Pieces have at most max_document_bytes bytes, so only the line that a piece continues can be too long.
    def __init__(
        self,
        file_number: int,
        line_format: TextFormat,
        source: ByteSource,
        unit_bytes: int,
        max_document_bytes: int,
        directory: str,
        skip: Callable[[int], bool],
    ) -> None:
        self._file_number = file_number
        self._format = line_format
        self._source = source
        self._unit_bytes = unit_bytes
        self._keep_bytes = max_document_bytes + 1
        self._directory = directory
        self._skip = skip
        self._position = 0  # in the stream
        self._line_start = 0  # of the line that is not finished
        self._dropped = 0  # bytes of that line
        self._accounted = 0  # bytes of the source that belong to units yielded
        self._index = 0
        self._unit = self._new_unit()
        self._cut = False  # the unit has all its lines; another byte shows that it is not the last one

    def feed(self, piece: bytes) -> Iterator[LineUnit]:
        start = 0
        while start < len(piece):
            if self._cut:
                yield from self._advance(self._position // self._unit_bytes)
            stop = self._unit_end(piece, start)
            self._cut = stop > 0
            self._take(piece, start, stop or len(piece))
            start = stop or len(piece)

    def finish(self) -> Iterator[LineUnit]:
        self._note_elided()
        yield from self._advance(max(0, self._position - 1) // self._unit_bytes)
        yield from self._end_unit(last=True)

    def break_off(self, detail: str) -> Iterator[LineUnit]:
        self._unit.drop_incomplete_line()
        yield from self._end_unit(last=True, stream_error=detail)

    def discard(self) -> None:
        self._unit.discard()

    def _unit_end(self, piece: bytes, start: int) -> int:
        earliest = start + (self._index + 1) * self._unit_bytes - 1 - self._position
        return piece.find(b"\n", max(start, earliest)) + 1

    def _take(self, piece: bytes, start: int, stop: int) -> None:
        first = piece.find(b"\n", start, stop)
        line_end = first if first >= 0 else stop
        surplus = self._position + (line_end - start) - (self._line_start + self._keep_bytes)
        dropped = min(max(surplus, 0), line_end - start)
        view = memoryview(piece)
        if dropped:
            self._dropped += dropped
            self._unit.write(view[start : line_end - dropped])
            self._unit.write(view[line_end:stop])
        else:
            self._unit.write(view[start:stop])
        if first >= 0:
            self._note_elided()
            after = piece.rfind(b"\n", start, stop) + 1
            self._line_start = self._position + after - start
            self._unit.complete_bytes = self._unit.size_bytes - (stop - after)
        self._position += stop - start

    def _note_elided(self) -> None:
        if self._dropped:
            self._unit.elided.append((self._line_start, self._dropped))
            self._dropped = 0

    def _advance(self, index: int) -> Iterator[LineUnit]:
        while self._index < index:
            yield from self._end_unit(last=False)
            self._index += 1
            self._unit = self._new_unit()

    def _new_unit(self) -> _UnitFile:
        if self._skip(self._index):
            return _UnitFile(None, self._position)
        name = f"raw-{self._file_number}-{self._index}.jsonl"
        return _UnitFile(os.path.join(self._directory, name), self._position)

    def _end_unit(self, *, last: bool, stream_error: str | None = None) -> Iterator[LineUnit]:
        unit = self._unit
        unit.close()
        input_bytes = self._source.position - self._accounted
        self._accounted = self._source.position
        if unit.path is not None:
            yield LineUnit(
                file=self._file_number,
                index=self._index,
                last=last,
                path=unit.path,
                begin=0,
                end=unit.size_bytes,
                stream_offset=unit.stream_offset,
                elided=tuple(unit.elided),
                stream_error=stream_error,
                temporary=True,
                input_bytes=input_bytes,
                format=self._format,
            )
