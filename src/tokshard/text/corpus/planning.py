"""Planning: division of inputs into units without parsing the records.

Streams (compressed files, pipes and standard input) are divided in one pass and bounded memory: one process
decompresses, and each unit becomes a plain temporary file that any worker can read. The scan looks only for
the first and last newline of a chunk and the one that ends a unit, so it runs at about the speed of the
decompressor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tokshard.errors import InputError
from tokshard.storage import syscalls
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file, open_passed
from tokshard.text.corpus.compressed import CHUNK_BYTES, ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.text.corpus.content import HEAD_BYTES, identify, refuse_inside
from tokshard.text.corpus.fields import FieldNames
from tokshard.text.corpus.files import STDIN, CorpusFile
from tokshard.text.corpus.tables import TableGroup, table_groups
from tokshard.text.corpus.units import LineUnit, RowUnit, Unit


def plan_units(
    file_number: int,
    file: CorpusFile,
    unit_bytes: int,
    fields: Sequence[str] = (),
    *,
    key_field: str | None = None,
) -> Iterator[Unit]:
    """Yield the units of a seekable input: plain JSON lines, or a table.

    For streams (``file.is_stream``) see :func:`tokshard.text.corpus.planning.stream_units`.

    ``unit_bytes``: the nominal size of a unit. Consecutive row groups form a unit when they reach it.
    ``fields``, ``key_field``: columns that a table must have.

    Raises:
        InputError: The table cannot be read, or does not have one of the columns.
        MissingExtraError: The input is a table and pyarrow is not installed.
    """
    if file.size_bytes is None or file.compression != "none":
        raise ValueError(f"{file.path} can only be read as a stream")
    if file.format == "jsonl":
        return _line_units(file_number, file.path, file.size_bytes, unit_bytes)
    groups = table_groups(file.path, file.format, FieldNames(fields, key_field))
    return _row_units(file_number, file, unit_bytes, groups)


def _line_units(file_number: int, path: str, size_bytes: int, unit_bytes: int) -> Iterator[LineUnit]:
    count = max(1, -(-size_bytes // unit_bytes))
    for index in range(count):
        begin, end = index * unit_bytes, min((index + 1) * unit_bytes, size_bytes)
        yield LineUnit(
            file=file_number,
            index=index,
            last=index == count - 1,
            path=path,
            begin=begin,
            end=end,
            input_bytes=end - begin,
        )


def _row_units(
    file_number: int, file: CorpusFile, unit_bytes: int, groups: list[TableGroup]
) -> Iterator[RowUnit]:
    runs = list(_group_runs([group.size_bytes for group in groups], unit_bytes))
    total = sum(group.size_bytes for group in groups)
    file_bytes = file.size_bytes or 0
    first_row = done = 0
    for index, (first, stop) in enumerate(runs):
        rows = sum(group.row_count for group in groups[first:stop])
        size = sum(group.size_bytes for group in groups[first:stop])
        share = file_bytes * (done + size) // total - file_bytes * done // total if total else file_bytes
        yield RowUnit(
            file=file_number,
            index=index,
            last=index == len(runs) - 1,
            path=file.path,
            format=file.format,
            first_group=first,
            group_count=stop - first,
            first_row=first_row,
            row_count=rows,
            input_bytes=share,
        )
        first_row += rows
        done += size


def _group_runs(sizes: list[int], unit_bytes: int) -> Iterator[tuple[int, int]]:
    # [first, stop) of consecutive groups that reach unit_bytes together; at least one run.
    first = gathered = 0
    for number, size in enumerate(sizes):
        gathered += size
        if gathered >= unit_bytes:
            yield first, number + 1
            first, gathered = number + 1, 0
    if first < len(sizes) or not sizes:
        yield first, len(sizes)


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
        cutter = _Cutter(file_number, source, unit_bytes, max_document_bytes, directory, skip)
        try:
            for chunk in _text_chunks(source, chunk_bytes):
                for start in range(0, len(chunk), piece_bytes):
                    yield from cutter.feed(chunk[start : start + piece_bytes])
            yield from cutter.finish()
        except CorruptStreamError as error:
            yield from cutter.break_off(error.detail)
        finally:
            cutter.discard()


def first_line(file: CorpusFile, max_bytes: int) -> bytes:
    """Return the first line of JSON lines, without its newline; at most a chunk more than ``max_bytes``.

    Raises:
        InputError: The input cannot be read, or is not JSON lines.
    """
    line = bytearray()
    try:
        with _opened(file.path) as source:
            for chunk in _text_chunks(source, CHUNK_BYTES):
                piece, newline, _ = chunk.partition(b"\n")
                line += piece
                if newline or len(line) > max_bytes:
                    break
    except CorruptStreamError as error:
        raise InputError(f"{file.path}: {error.detail}", hint=f"fetch {file.path} again") from error
    return bytes(line)


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
    if content.format != "jsonl":
        raise InputError(
            f"cannot read {content.format.capitalize()} from a pipe: {source.path}",
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
        source: ByteSource,
        unit_bytes: int,
        max_document_bytes: int,
        directory: str,
        skip: Callable[[int], bool],
    ) -> None:
        self._file_number = file_number
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
            )
