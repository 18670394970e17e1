"""Documents from tables: Parquet, and Arrow in its file and its stream format. Needs pyarrow.

Parquet row groups are decoded page by page, Arrow record batches are mapped; both are converted to Python
strings one batch at a time. The offsets in an Arrow file are validated before use.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tokshard.core.formatting import count, counted
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TextFormat
from tokshard.errors import InputError, TokshardError
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file
from tokshard.text.corpus.batch import BatchBuilder, DocumentBatch, bytes_of, plain_batch
from tokshard.text.corpus.fields import (
    CHAT_HINT,
    IDS_HINT,
    TEXT_HINT,
    FieldPath,
    hint_for_field,
    hint_for_key,
    index_of,
    is_chat,
    missing_item,
    name_of,
    not_found,
    quoted,
)
from tokshard.text.corpus.record_format import Reading, RecordFormat
from tokshard.text.corpus.rejection import UnusableRecordError, excerpt_of, too_long
from tokshard.text.corpus.selection import with_excluded
from tokshard.text.corpus.units import RowUnit
from tokshard.text.corpus.values import RecordFields, divided_ids, texts_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_BATCH_ROWS = 1 << 16
_MAX_ITEMS = 2_000_000
_FETCH_AGAIN = "fetch the file again: it is incomplete or damaged"
_ROW = "the text of the row"
_ADD_COLUMN = "add a column of strings to the table"


class _Library:
    """A library that is imported when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


pa: Any = _Library("pyarrow")
pc: Any = _Library("pyarrow.compute")
parquet: Any = _Library("pyarrow.parquet")


class _TableGroup(NamedTuple):
    """A row group or a record batch.

    Attributes:
        size_bytes: Its size in memory, all columns together.
    """

    row_count: int
    size_bytes: int


class _ParquetTable:
    def __init__(self, path: str, stack: ExitStack) -> None:
        self._file = stack.enter_context(parquet.ParquetFile(_place(path, stack)))
        self.schema = self._file.schema_arrow

    def groups(self) -> list[_TableGroup]:
        metadata = self._file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [_TableGroup(group.num_rows, group.total_byte_size) for group in groups]

    def batches(self, unit: RowUnit, fields: RecordFields, batch_bytes: int) -> Iterator[Any]:
        groups = range(unit.first_group, unit.first_group + unit.group_count)
        size = sum(self._file.metadata.row_group(number).total_byte_size for number in groups)
        # use_threads=False: each worker reads its own unit, and there are as many workers as cores.
        yield from self._file.iter_batches(
            batch_size=_batch_rows(unit.row_count, size, batch_bytes),
            row_groups=list(groups),
            columns=list(map(self._name, fields.all)),
            use_threads=False,
        )

    def _name(self, path: FieldPath) -> str:
        # pyarrow reads only the columns below a name; the parts of a list have names that depend on the
        # writer.
        kind = self.schema.field(path.keys[0]).type
        depth = 1
        while pa.types.is_struct(kind) and depth < len(path.keys):
            kind = kind.field(path.keys[depth]).type
            depth += 1
        return ".".join(path.keys[:depth])


class _ArrowTable:
    def __init__(self, path: str, stack: ExitStack) -> None:
        place = _place(path, stack)
        opened = pa.memory_map(place, "r") if isinstance(place, str) else pa.PythonFile(place, mode="r")
        file = stack.enter_context(opened)
        if file.read(6) == b"ARROW1":
            table = stack.enter_context(pa.ipc.open_file(file))
            self._batch_numbers: range | None = range(table.num_record_batches)
        else:
            file.seek(0)
            table = stack.enter_context(pa.ipc.open_stream(file))
            self._batch_numbers = None
        self._table = table
        self.schema = table.schema

    def _batches(self, first: int, stop: int | None) -> Iterator[Any]:
        if self._batch_numbers is None:
            return islice(self._table, first, stop)
        return map(self._table.get_batch, self._batch_numbers[first:stop])

    def groups(self) -> list[_TableGroup]:
        return [_TableGroup(batch.num_rows, batch.nbytes) for batch in self._batches(0, None)]

    def batches(self, unit: RowUnit, _fields: RecordFields, batch_bytes: int) -> Iterator[Any]:
        for batch in self._batches(unit.first_group, unit.first_group + unit.group_count):
            step = _batch_rows(batch.num_rows, batch.nbytes, batch_bytes)
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)


def _place(path: str, stack: ExitStack) -> Any:
    return stack.enter_context(open_file(path)) if is_remote(path) else path


def _batch_rows(row_count: int, size_bytes: int, batch_bytes: int) -> int:
    return max(1, min(_MAX_BATCH_ROWS, batch_bytes * row_count // max(1, size_bytes)))


_Kind = type[_ParquetTable] | type[_ArrowTable]


@contextmanager
def _opened(kind: _Kind, path: str) -> Iterator[_ParquetTable | _ArrowTable]:
    try:
        with ExitStack() as stack:
            yield kind(path, stack)
    except TokshardError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"cannot read {path}: {text}", hint=_FETCH_AGAIN) from error


def _has_token_ids(kind: _Kind, path: str, field: FieldPath) -> bool:
    with _opened(kind, path) as table:
        return _is_list_of_integers(_type_at(table.schema, field, path))


def _units(
    kind: _Kind, file_number: int, file: SourceFile, unit_bytes: int, fields: RecordFields
) -> Iterator[RowUnit]:
    with _opened(kind, file.path) as table:
        _check_columns(table.schema, fields, file.path)
        groups = table.groups()
    return _row_units(file_number, file, unit_bytes, groups)


def _row_units(
    file_number: int, file: SourceFile, unit_bytes: int, groups: list[_TableGroup]
) -> Iterator[RowUnit]:
    """Yield units of consecutive groups that reach ``unit_bytes`` together; at least one."""
    ends = [0, *accumulate(group.size_bytes for group in groups)]
    rows = [0, *accumulate(group.row_count for group in groups)]
    stops = [0]
    for stop, end in enumerate(ends[1:], 1):
        if end - ends[stops[-1]] >= unit_bytes:
            stops.append(stop)
    if stops[-1] < len(groups) or not groups:
        stops.append(len(groups))
    file_bytes = file.size_bytes or 0
    total = ends[-1]
    for index, (first, stop) in enumerate(pairwise(stops)):
        share = file_bytes * ends[stop] // total - file_bytes * ends[first] // total if total else file_bytes
        yield RowUnit(
            file=file_number,
            index=index,
            last=stop == len(groups),
            path=file.path,
            format=cast("TextFormat", file.format),
            first_group=first,
            group_count=stop - first,
            first_row=rows[first],
            row_count=rows[stop] - rows[first],
            input_bytes=share,
        )


def _rows(kind: _Kind, unit: RowUnit, reading: Reading) -> Iterator[DocumentBatch]:
    fields = reading.fields
    first = unit.first_row
    with _opened(kind, unit.path) as table:
        _check_columns(table.schema, fields, unit.path)
        for batch in table.batches(unit, fields, reading.batch_bytes):
            numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
            first += batch.num_rows
            sampled = reading.selection.sampled(unit.file, numbers)
            rows = None if sampled is None else np.flatnonzero(sampled).tolist()
            columns = [_column(batch, path, rows, reading, unit.path) for path in fields.all]
            kept = numbers if sampled is None else numbers[sampled]
            documents = _documents(columns, kept, unit.first_row, reading)
            excluded = Counter({"not-sampled": batch.num_rows - len(kept)})
            yield with_excluded(reading.selection.divided(documents), excluded)


_EXPECTED = {
    "text": "strings or lists of strings",
    "ids": "lists of token ids",
    "key": "strings or integers",
}


def _check_columns(schema: Any, fields: RecordFields, table: str) -> None:
    expected = "text" if fields.vocab_size is None else "ids"
    for path in fields.texts:
        _check_type(schema, path, expected, table)
    if fields.key is not None:
        _check_type(schema, fields.key, "key", table)


def _check_type(schema: Any, path: FieldPath, expected: str, table: str) -> None:
    kind = _type_at(schema, path, table, is_key=expected == "key")
    example = _example(kind)
    is_text = _binary_twin(kind) is not None
    is_usable = {
        "text": is_text,
        "ids": _is_list_of_integers(kind),
        "key": type(example) in {str, int},
    }
    if is_usable[expected] or pa.types.is_null(kind):
        return
    column = f"{table}: column {quoted(path.name)}"
    if expected == "text" and is_chat(example):
        raise InputError(f"{column} contains chat messages, which are not supported yet", hint=CHAT_HINT)
    convert = _ADD_COLUMN
    if _is_list_of_integers(kind):
        convert = IDS_HINT
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        convert = 'convert the column to strings, for example with its method cast("string") in pyarrow'
    hints = {
        "text": hint_for_field(None, _example(pa.struct(list(schema))), convert),
        "ids": TEXT_HINT if is_text else "cast the column to lists of integers",
        "key": "pass a column of keys with --holdout-key",
    }
    raise InputError(f"{column} must contain {_EXPECTED[expected]}, got {kind}", hint=hints[expected])


def _type_at(schema: Any, path: FieldPath, table: str, *, is_key: bool = False) -> Any:
    # A schema and a struct type both have `field` and `get_field_index`, which is -1 also for two of a name.
    kind: Any = pa.struct(list(schema))
    for key in path.keys:
        if pa.types.is_struct(kind) and kind.get_field_index(key) >= 0:
            kind = kind.field(key).type
        elif _is_list(kind) and index_of(key) is not None:
            kind = kind.value_type
        elif pa.types.is_struct(kind) and key in [field.name for field in kind]:
            raise InputError(
                f"{table}: several columns are named {quoted(path.name)}", hint="rename all of them but one"
            )
        else:
            record = _example(pa.struct(list(schema)))
            hint = hint_for_key(record) if is_key else hint_for_field(path, record, _ADD_COLUMN)
            raise InputError(f"{table}: {not_found(path, record, 'column', 'table')}", hint=hint)
    return kind


def _example(kind: Any) -> Any:
    """Return the value that a record would have: "" for text, 0 for integers, None for other scalars."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if _is_list(kind) or _is_list_of_integers(kind):
        return [_example(kind.value_type)]
    if pa.types.is_integer(kind):
        return 0
    return None if _binary_twin(kind) is None else ""


def _is_list(kind: Any) -> Any:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_list_of_integers(kind: Any) -> bool:
    is_list = _is_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _binary_twin(kind: Any) -> Any:
    """Return the type of the same values as bytes, for text and lists of text; None for other types."""
    if pa.types.is_dictionary(kind):
        value = _binary_twin(kind.value_type)
        return None if value is None else pa.dictionary(kind.index_type, value)
    if _is_list(kind):
        value = _binary_twin(kind.value_type)
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return None if value is None else make(value)
    twins = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    return twins.get(kind)


def _column(batch: Any, path: FieldPath, rows: list[int] | None, reading: Reading, table: str) -> list[Any]:
    """Return the values of some rows of a field; of all if ``rows`` is None.

    Strings are bytes if one of them is not UTF-8. Rows of token ids are arrays if all of them are usable.
    Lists that are too short or too long are UnusableRecordErrors.
    """
    column = batch.column(path.keys[0])
    errors: dict[int, UnusableRecordError] = {}
    try:
        _validate(column, path.keys[1:])
        for depth, key in enumerate(path.keys[1:], 1):
            column = _inside(column, key, name_of(path.keys[: depth + 1]), errors)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{table}: column {quoted(path.name)} contradicts itself: {error}", hint=_FETCH_AGAIN
        ) from error
    has_ids = _is_list_of_integers(column.type)
    if has_ids and (ids := _token_ids(column, reading.fields.vocab_size)) is not None:
        return ids if rows is None else [ids[row] for row in rows]
    if has_ids or _is_list(column.type):
        errors |= _long_lists(column, path.name, reading)
    try:
        return _values(column, rows, errors)
    except UnicodeDecodeError:
        return _values(column.view(_binary_twin(column.type)), rows, errors)


def _values(column: Any, rows: list[int] | None, errors: dict[int, UnusableRecordError]) -> list[Any]:
    if rows is None and not errors:
        values: list[Any] = column.to_pylist()
        return values
    rows = list(range(len(column))) if rows is None else rows
    return [errors[row] if row in errors else column[row].as_py() for row in rows]


def _validate(column: Any, keys: Sequence[str]) -> None:
    # Only what is read: the lists on the way, and the text without its encoding.
    column.validate()
    for key in keys:
        if pa.types.is_struct(column.type):
            column = column.field(column.type.get_field_index(key))
            continue
        offsets = np.asarray(column.offsets)
        if len(offsets) and (
            offsets[0] < 0 or offsets[-1] > len(column.values) or np.any(np.diff(offsets) < 0)
        ):
            raise pa.ArrowInvalid("the offsets of a list are not ascending or point outside its items")
        column = column.values
    twin = _binary_twin(column.type)
    (column if twin is None else column.view(twin)).validate(full=True)


def _inside(column: Any, key: str, name: str, errors: dict[int, UnusableRecordError]) -> Any:
    if pa.types.is_struct(column.type):
        return pc.struct_field(column, [column.type.get_field_index(key)])
    index = int(key)
    lengths = pc.list_value_length(column)
    too_short = pc.fill_null(pc.less_equal(lengths, index), fill_value=False)
    for row in np.flatnonzero(np.asarray(too_short)).tolist():
        errors.setdefault(row, missing_item(name, lengths[row].as_py()))
    return pc.list_element(pc.if_else(too_short, pa.scalar(None, column.type), column), index)


def _token_ids(column: Any, vocab_size: int | None) -> list[Any] | None:
    """Return lists of token ids as arrays, uint32 [tokens]; None if one is null or not in the vocabulary."""
    items = column.flatten()
    if vocab_size is None or column.null_count or items.null_count:
        return None
    lengths = pc.list_value_length(column).to_numpy()
    offsets = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
    return divided_ids(items.to_numpy(zero_copy_only=False), offsets, vocab_size)


def _long_lists(column: Any, name: str, reading: Reading) -> dict[int, UnusableRecordError]:
    """Return the errors of lists that must not be converted: empty strings take no space in a table."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    if reading.fields.vocab_size is not None:
        limit = reading.max_document_bytes
        long = np.flatnonzero(4 * lengths.astype(np.int64) > limit).tolist()
        return {row: too_long(_ROW, 4 * int(lengths[row]), limit) for row in long}
    detail = f"the list of field {quoted(name)} must have at most {counted(_MAX_ITEMS, 'item')}, got "
    long = np.flatnonzero(lengths > _MAX_ITEMS).tolist()
    return {row: UnusableRecordError("too-many-values", detail + count(int(lengths[row]))) for row in long}


def _documents(
    columns: list[list[Any]], numbers: NDArray[np.int64], first_row: int, reading: Reading
) -> DocumentBatch:
    fields = reading.fields
    limit = reading.max_document_bytes
    plain = None if reading.check is not None else fields.plain(columns)
    if plain is not None:
        # A character has at most 4 bytes, and a token id has 4.
        longest = sum(4 * max(map(len, texts), default=0) for texts in plain[0])
        if longest <= limit:
            return plain_batch(*plain, numbers, numbers - first_row + 1, None)
    builder = BatchBuilder(fields)
    for row, *values in zip(numbers.tolist(), *columns, strict=True):
        line = row - first_row + 1
        try:
            value_at = partial(_value_at, dict(zip(fields.all, values, strict=True)))
            texts, key = fields.usable(value_at, reading.check)
            size = sum(len(bytes_of(text)) for value in texts for text in texts_in(value))
            if size > limit:
                raise too_long(_ROW, size, limit)
            builder.add(texts, key, row, line)
        except UnusableRecordError as error:
            builder.reject(row, line, error, _excerpt(values[: len(fields.texts)]))
    return builder.batch(None, lines=len(numbers))


def _value_at(values: dict[FieldPath, Any], path: FieldPath) -> Any:
    if isinstance(value := values[path], UnusableRecordError):
        raise value
    return value


def _excerpt(values: Sequence[Any]) -> str:
    for value in values:
        text = next(iter(value), None) if isinstance(value, list) else value
        if isinstance(text, str | bytes):
            return excerpt_of(text if isinstance(text, bytes) else text[:60].encode("utf-8"))
    return ""


def _table_format(
    name: TextFormat, title: str, suffixes: tuple[str, ...], magic: bytes, kind: _Kind
) -> RecordFormat:
    return RecordFormat(
        name=name,
        title=title,
        suffixes=suffixes,
        magic=re.compile(magic, re.DOTALL),
        extra="parquet",
        units=partial(_units, kind),
        documents=partial(_rows, kind),
        has_token_ids=partial(_has_token_ids, kind),
    )


PARQUET = _table_format("parquet", "Parquet", (".parquet",), rb"PAR1", _ParquetTable)
ARROW = _table_format(
    "arrow",
    "Arrow",
    (".arrow", ".arrows"),
    # The Arrow stream has no magic number: a continuation marker and the length of the first message.
    rb"ARROW1\0\0|\xff{4}[^\xff]{2}..",
    _ArrowTable,
)
