"""Documents from tables: Parquet, and Arrow in its file and its stream format. Needs pyarrow.

A Parquet row group is decoded page by page, an Arrow record batch is mapped; both are turned into
Python texts a batch at a time. What an Arrow file says of its own offsets is checked before use.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tokshard.corpus.batch import (
    BatchBuilder,
    DocumentBatch,
    UnusableRecordError,
    check_length,
    excerpt_of,
    usable_value,
)
from tokshard.corpus.content import Format
from tokshard.corpus.units import RowUnit
from tokshard.errors import InputError, MissingExtraError, TokshardError
from tokshard.storage.paths import is_remote
from tokshard.storage.remote.objects import open_binary

_MAX_BATCH_ROWS = 1 << 16


class TableGroup(NamedTuple):
    """A row group or a record batch.

    Attributes:
        size_bytes: Its size in memory, all columns together.
    """

    row_count: int
    size_bytes: int


def table_groups(path: str, table_format: Format) -> list[TableGroup]:
    """Return the row groups (Parquet) or record batches (Arrow) of a table, in order.

    Raises:
        InputError: The table cannot be read.
        MissingExtraError: pyarrow is not installed.
    """
    with _reading(path), ExitStack() as stack:
        if table_format == "arrow":
            _, batches = _open_arrow(path, 0, stack)
            return [TableGroup(batch.num_rows, batch.nbytes) for batch in batches]
        from pyarrow import parquet

        with parquet.ParquetFile(_place(path, stack)) as table:
            groups = (table.metadata.row_group(number) for number in range(table.metadata.num_row_groups))
            return [TableGroup(group.num_rows, group.total_byte_size) for group in groups]


def read_rows(
    unit: RowUnit, fields: Sequence[str], *, batch_bytes: int, max_document_bytes: int
) -> Iterator[DocumentBatch]:
    """Yield the documents of a unit of a table; see :func:`tokshard.corpus.records.read_documents`.

    Raises:
        InputError: The table cannot be read or has no such column of text.
        MissingExtraError: pyarrow is not installed.
    """
    read = _parquet_batches if unit.format == "parquet" else _arrow_batches
    done = 0
    with _reading(unit.path), ExitStack() as stack:
        for rows in read(unit, fields, batch_bytes, stack):
            columns = [_checked_column(rows.column(field), field, unit.path) for field in fields]
            yield _documents(columns, fields, unit.first_row + done, done, max_document_bytes)
            done += rows.num_rows


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtraError("Parquet and Arrow input", "parquet") from error
    try:
        yield
    except TokshardError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"the table {path} cannot be read: {text}", hint="check that it was written completely"
        ) from error


def _parquet_batches(
    unit: RowUnit, fields: Sequence[str], batch_bytes: int, stack: ExitStack
) -> Iterator[Any]:
    from pyarrow import parquet

    table = stack.enter_context(parquet.ParquetFile(_place(unit.path, stack)))
    _check_columns(table.schema_arrow, fields, unit.path)
    groups = range(unit.first_group, unit.first_group + unit.group_count)
    size = sum(table.metadata.row_group(number).total_byte_size for number in groups)
    # use_threads=False: every worker reads its own unit, and the job has as many workers as cores.
    yield from table.iter_batches(
        batch_size=_batch_rows(unit.row_count, size, batch_bytes),
        row_groups=list(groups),
        columns=list(fields),
        use_threads=False,
    )


def _arrow_batches(unit: RowUnit, fields: Sequence[str], batch_bytes: int, stack: ExitStack) -> Iterator[Any]:
    schema, batches = _open_arrow(unit.path, unit.first_group, stack)
    _check_columns(schema, fields, unit.path)
    for batch in islice(batches, unit.group_count):
        step = _batch_rows(batch.num_rows, batch.nbytes, batch_bytes)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _open_arrow(path: str, first_batch: int, stack: ExitStack) -> tuple[Any, Iterator[Any]]:
    import pyarrow as pa

    place = _place(path, stack)
    opened = pa.memory_map(place, "r") if isinstance(place, str) else pa.PythonFile(place, mode="r")
    file = stack.enter_context(opened)
    if file.read(6) == b"ARROW1":
        table = stack.enter_context(pa.ipc.open_file(file))
        return table.schema, map(table.get_batch, range(first_batch, table.num_record_batches))
    file.seek(0)
    stream = stack.enter_context(pa.ipc.open_stream(file))
    return stream.schema, islice(stream, first_batch, None)


def _place(path: str, stack: ExitStack) -> Any:
    return stack.enter_context(open_binary(path)) if is_remote(path) else path


def _batch_rows(row_count: int, size_bytes: int, batch_bytes: int) -> int:
    return max(1, min(_MAX_BATCH_ROWS, batch_bytes * row_count // max(1, size_bytes)))


def _check_columns(schema: Any, fields: Sequence[str], path: str) -> None:
    for field in fields:
        if schema.names.count(field) != 1:
            if field in schema.names:
                raise InputError(f"the table {path} has several columns {field!r}")
            near = difflib.get_close_matches(field, schema.names, 1)
            raise InputError(
                f"the table {path} has no column {field!r}; it has {', '.join(map(repr, schema.names))}",
                hint=f"--field {near[0]}" if near else "choose one with --field",
            )
        kind = schema.field(field).type
        if str(kind) != "null" and _binary_twin(kind) is None:
            raise InputError(
                f"the column {field!r} of the table {path} is of type {kind}, not text",
                hint="name a column of strings, or of lists of strings, with --field",
            )


def _binary_twin(kind: Any) -> Any:
    import pyarrow as pa

    twins = ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary()))
    for text, binary in (*twins, (pa.string_view(), pa.binary_view())):
        if kind == text:
            return binary
    if pa.types.is_dictionary(kind):
        value = _binary_twin(kind.value_type)
        return None if value is None else pa.dictionary(kind.index_type, value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = _binary_twin(kind.value_type)
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return None if value is None else make(value)
    return None


def _checked_column(column: Any, field: str, path: str) -> list[Any]:
    # Values are bytes where a column is not all UTF-8.
    import pyarrow as pa

    twin = _binary_twin(column.type)
    if twin is None:
        return [None] * len(column)
    binary = column.view(twin)
    try:
        binary.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputError(f"the column {field!r} of the table {path} contradicts itself: {error}") from error
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = binary.to_pylist()
    return values


def _documents(
    columns: list[list[Any]], fields: Sequence[str], first_row: int, done: int, max_document_bytes: int
) -> DocumentBatch:
    count = len(columns[0])
    is_plain = all(
        {str}.issuperset(map(type, column))
        and 4 * max(map(len, column), default=0) * len(fields) <= max_document_bytes
        for column in columns
    )
    if is_plain:
        return DocumentBatch.plain(tuple(columns), np.arange(first_row, first_row + count, dtype=np.int64))
    builder = BatchBuilder(len(fields))
    for row, values in enumerate(zip(*columns, strict=True)):
        try:
            usable = [_usable(value, field) for value, field in zip(values, fields, strict=True)]
            texts = (text for value in usable for text in ([value] if isinstance(value, str) else value))
            size = sum(len(text.encode("utf-8")) for text in texts)
            check_length(size, max_document_bytes, what="row", unit="bytes of text")
            builder.add(usable, first_row + row)
        except UnusableRecordError as error:
            builder.reject(first_row + row, done + row + 1, error, _excerpt(values))
    return builder.batch(None, lines=count)


def _usable(value: Any, field: str) -> str | list[str]:
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if isinstance(value, list):
            value = [item.decode("utf-8") if isinstance(item, bytes) else item for item in value]
    except UnicodeDecodeError as error:
        raise UnusableRecordError(
            "invalid-utf8", f"byte {error.start} of the field {field!r}: {error.reason}"
        ) from None
    return usable_value(value, field)


def _excerpt(values: Sequence[Any]) -> str:
    for value in values:
        text = next(iter(value), None) if isinstance(value, list) else value
        if text is not None:
            return excerpt_of(text if isinstance(text, bytes) else text[:60].encode("utf-8"))
    return ""
