"""Documents from tables: Parquet, and Arrow in its file and its stream format. Needs pyarrow.

Parquet row groups are decoded page by page, Arrow record batches are mapped; both are converted to Python
strings one batch at a time. The offsets in an Arrow file are validated before use.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tokshard.core.formatting import count, counted, listed, visible
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TextFormat
from tokshard.errors import InputError, TokshardError
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file
from tokshard.text.corpus.batch import BatchBuilder, DocumentBatch, bytes_of
from tokshard.text.corpus.fields import (
    CHAT_HINT,
    MIXED_HINT,
    FieldPath,
    FieldPaths,
    decoded,
    hint_for_column,
    hint_for_key,
    index_of,
    is_chat_message,
    missing_column,
    missing_item,
    name_of,
    quoted,
    usable_value,
)
from tokshard.text.corpus.holdout_keys import encoded_key, plain_keys
from tokshard.text.corpus.record_format import Reading, RecordFormat
from tokshard.text.corpus.rejection import (
    TextCheck,
    UnusableRecordError,
    check_length,
    check_texts,
    excerpt_of,
)
from tokshard.text.corpus.selection import with_excluded
from tokshard.text.corpus.token_ids import ids_of_column, is_list_of_integers
from tokshard.text.corpus.units import RowUnit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_BATCH_ROWS = 1 << 16
_MAX_ITEMS = 2_000_000


class _Library:
    """A library that is imported when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


pa: Any = _Library("pyarrow")
pc: Any = _Library("pyarrow.compute")
parquet: Any = _Library("pyarrow.parquet")


class TableGroup(NamedTuple):
    """A row group or a record batch.

    Attributes:
        size_bytes: Its size in memory, all columns together.
    """

    row_count: int
    size_bytes: int


class _Layout(NamedTuple):
    """The parts of a table that differ between Parquet and Arrow.

    Attributes:
        groups: Returns the row groups (Parquet) or record batches (Arrow) of a file, after a check of its
            columns.
        batches: Yields the rows of a unit in batches of about some bytes.
        schema: Returns the schema of a file.
    """

    groups: Callable[[str, FieldPaths, ExitStack], list[TableGroup]]
    batches: Callable[[RowUnit, FieldPaths, int, ExitStack], Iterator[Any]]
    schema: Callable[[str, ExitStack], Any]


def _has_token_ids(layout: _Layout, path: str, field: FieldPath) -> bool:
    with _reading(path), ExitStack() as stack:
        return is_list_of_integers(_type_at(layout.schema(path, stack), field, path))


def _units(
    layout: _Layout, file_number: int, file: SourceFile, unit_bytes: int, paths: FieldPaths
) -> Iterator[RowUnit]:
    with _reading(file.path), ExitStack() as stack:
        groups = layout.groups(file.path, paths, stack)
    return _row_units(file_number, file, unit_bytes, groups)


def _row_units(
    file_number: int, file: SourceFile, unit_bytes: int, groups: list[TableGroup]
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
            format=cast("TextFormat", file.format),
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


def _rows(layout: _Layout, unit: RowUnit, reading: Reading) -> Iterator[DocumentBatch]:
    paths, selection = reading.paths, reading.selection
    done = 0
    with _reading(unit.path), ExitStack() as stack:
        for rows in layout.batches(unit, paths, reading.batch_bytes, stack):
            numbers = np.arange(unit.first_row + done, unit.first_row + done + rows.num_rows, dtype=np.int64)
            done += rows.num_rows
            sampled = selection.sampled(unit.file, numbers)
            columns = [
                _checked_column(
                    rows.column(path.keys[0]),
                    path,
                    unit.path,
                    sampled,
                    paths.vocab_size if path in paths.texts else None,
                )
                for path in paths.all
            ]
            kept = numbers if sampled is None else numbers[sampled]
            documents = _documents(
                columns, paths, kept, unit.first_row, reading.max_document_bytes, reading.check
            )
            excluded = Counter({"not-sampled": rows.num_rows - len(kept)})
            yield with_excluded(selection.divided(documents), excluded)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except TokshardError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"cannot read {path}: {text}", hint="fetch the file again: it is incomplete or damaged"
        ) from error


def _parquet_schema(path: str, stack: ExitStack) -> Any:
    return stack.enter_context(parquet.ParquetFile(_place(path, stack))).schema_arrow


def _parquet_groups(path: str, paths: FieldPaths, stack: ExitStack) -> list[TableGroup]:
    table = stack.enter_context(parquet.ParquetFile(_place(path, stack)))
    _check_columns(table.schema_arrow, paths, path)
    groups = (table.metadata.row_group(number) for number in range(table.metadata.num_row_groups))
    return [TableGroup(group.num_rows, group.total_byte_size) for group in groups]


def _parquet_batches(unit: RowUnit, paths: FieldPaths, batch_bytes: int, stack: ExitStack) -> Iterator[Any]:
    table = stack.enter_context(parquet.ParquetFile(_place(unit.path, stack)))
    schema = table.schema_arrow
    _check_columns(schema, paths, unit.path)
    groups = range(unit.first_group, unit.first_group + unit.group_count)
    size = sum(table.metadata.row_group(number).total_byte_size for number in groups)
    # use_threads=False: each worker reads its own unit, and there are as many workers as cores.
    yield from table.iter_batches(
        batch_size=_batch_rows(unit.row_count, size, batch_bytes),
        row_groups=list(groups),
        columns=[_parquet_name(schema, path) for path in paths.all],
        use_threads=False,
    )


def _parquet_name(schema: Any, path: FieldPath) -> str:
    # pyarrow reads only the columns below a name; the parts of a list have names that depend on the writer.
    kind, depth = schema.field(path.keys[0]).type, 1
    while pa.types.is_struct(kind) and depth < len(path.keys):
        kind, depth = kind.field(path.keys[depth]).type, depth + 1
    return ".".join(path.keys[:depth])


def _arrow_schema(path: str, stack: ExitStack) -> Any:
    return _open_arrow(path, 0, stack)[0]


def _arrow_groups(path: str, paths: FieldPaths, stack: ExitStack) -> list[TableGroup]:
    schema, batches = _open_arrow(path, 0, stack)
    _check_columns(schema, paths, path)
    return [TableGroup(batch.num_rows, batch.nbytes) for batch in batches]


def _arrow_batches(unit: RowUnit, paths: FieldPaths, batch_bytes: int, stack: ExitStack) -> Iterator[Any]:
    schema, batches = _open_arrow(unit.path, unit.first_group, stack)
    _check_columns(schema, paths, unit.path)
    for batch in islice(batches, unit.group_count):
        step = _batch_rows(batch.num_rows, batch.nbytes, batch_bytes)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _open_arrow(path: str, first_batch: int, stack: ExitStack) -> tuple[Any, Iterator[Any]]:
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
    return stack.enter_context(open_file(path)) if is_remote(path) else path


def _batch_rows(row_count: int, size_bytes: int, batch_bytes: int) -> int:
    return max(1, min(_MAX_BATCH_ROWS, batch_bytes * row_count // max(1, size_bytes)))


def _check_columns(schema: Any, paths: FieldPaths, table: str) -> None:
    if paths.key is not None:
        kind = _type_at(schema, paths.key, table, is_key=True)
        if not (str(kind) == "null" or _is_scalar(kind)):
            raise InputError(
                f"{table}: column {quoted(paths.key.name)} must contain strings or integers, got {kind}",
                hint="pass a column of keys with --holdout-key",
            )
    for path in paths.texts:
        kind = _type_at(schema, path, table)
        if paths.vocab_size is not None:
            if str(kind) == "null" or is_list_of_integers(kind):
                continue
            raise InputError(
                f"{table}: column {quoted(path.name)} must contain lists of token ids, got {kind}",
                hint=MIXED_HINT if _binary_twin(kind) is not None else "cast the column to lists of integers",
            )
        if str(kind) == "null" or _binary_twin(kind) is not None:
            continue
        if _is_chat(kind):
            raise InputError(
                f"{table}: column {quoted(path.name)} contains chat messages, which are not supported yet",
                hint=CHAT_HINT,
            )
        raise InputError(
            f"{table}: column {quoted(path.name)} must contain strings or lists of strings, got {kind}",
            hint=_hint_for_type(kind, schema),
        )


def _hint_for_type(kind: Any, schema: Any) -> str:
    texts = [name for name, column in _columns_of(schema) if _binary_twin(column) is not None]
    if texts:
        return f"choose a text column with --field: {listed([visible(name) for name in texts], 12)}"
    if is_list_of_integers(kind):
        return MIXED_HINT
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return 'convert the column to strings, for example with its method cast("string") in pyarrow'
    return "add a column of strings to the table"


def _is_scalar(kind: Any) -> bool:
    if pa.types.is_integer(kind):
        return True
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _binary_twin(kind) is not None and not _is_list(kind)


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
            columns = list(_columns_of(schema))
            texts = [name for name, column in columns if _binary_twin(column) is not None]
            if is_key:
                hint = hint_for_key([name for name, column in columns if _is_scalar(column)])
            elif not texts and any(_is_chat(column) for _, column in columns):
                hint = CHAT_HINT
            elif not texts and (ids := [name for name, column in columns if is_list_of_integers(column)]):
                hint = f"pass --field {shlex.quote(ids[0])}"
            else:
                hint = hint_for_column(path, texts)
            raise InputError(f"{table}: {missing_column(path, [name for name, _ in columns])}", hint=hint)
    return kind


def _columns_of(fields: Iterable[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for field in fields:
        keys = (*above, field.name)
        if pa.types.is_struct(field.type) and field.type.num_fields:
            yield from _columns_of(field.type, keys)
        else:
            yield name_of(keys), field.type


def _is_list(kind: Any) -> Any:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_chat(kind: Any) -> bool:
    return (
        _is_list(kind)
        and pa.types.is_struct(kind.value_type)
        and is_chat_message([field.name for field in kind.value_type])
    )


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


def _checked_column(
    column: Any, path: FieldPath, table: str, sampled: NDArray[np.bool_] | None, vocab_size: int | None
) -> list[Any]:
    # The values of the sampled rows. They are bytes if the column is not valid UTF-8, and errors where a list
    # is too short or, with `vocab_size`, is not token ids.
    try:
        _validate(column, path.keys[1:])
        errors: dict[int, UnusableRecordError] = {}
        for depth, key in enumerate(path.keys[1:], 1):
            column = _inside(column, key, name_of(path.keys[: depth + 1]), errors)
        if vocab_size is not None:
            column.validate(full=True)
            values = ids_of_column(column, path.name, vocab_size, errors)
        elif _is_list(column.type):
            column = _without_long_lists(column, path.name, errors)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{table}: column {quoted(path.name)} contradicts itself: {error}",
            hint="fetch the file again: it is incomplete or damaged",
        ) from error
    if vocab_size is not None:
        values = values if sampled is None else [*compress(values, sampled)]
    elif sampled is None:
        values = _values(column)
    else:
        try:
            values = _values(column.filter(pa.array(sampled)))
        except pa.ArrowNotImplementedError:  # views of strings
            values = [*compress(_values(column), sampled)]
    if sampled is not None:
        rows = {row: place for place, row in enumerate(np.flatnonzero(sampled).tolist())}
        errors = {rows[row]: error for row, error in errors.items() if row in rows}
    for row, missing in errors.items():
        values[row] = missing
    return values


def _values(column: Any) -> list[Any]:
    twin = _binary_twin(column.type)
    if twin is None:  # integers, or nothing but nulls
        return column.to_pylist() if _is_scalar(column.type) else [None] * len(column)
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = column.view(twin).to_pylist()
    return values


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
    if twin is not None:
        column.view(twin).validate(full=True)


def _inside(column: Any, key: str, name: str, errors: dict[int, UnusableRecordError]) -> Any:
    if pa.types.is_struct(column.type):
        return pc.struct_field(column, [column.type.get_field_index(key)])
    index = int(key)
    lengths = pc.list_value_length(column)
    too_short = pc.fill_null(pc.less_equal(lengths, index), fill_value=False)
    for row in np.flatnonzero(np.asarray(too_short)).tolist():
        errors.setdefault(row, missing_item(name, lengths[row].as_py()))
    return pc.list_element(pc.if_else(too_short, pa.scalar(None, column.type), column), index)


def _without_long_lists(column: Any, name: str, errors: dict[int, UnusableRecordError]) -> Any:
    # Before they are converted: empty strings take no space in a table.
    lengths = pc.list_value_length(column)
    too_long = pc.fill_null(pc.greater(lengths, _MAX_ITEMS), fill_value=False)
    rows = np.flatnonzero(np.asarray(too_long)).tolist()
    for row in rows:
        errors[row] = UnusableRecordError(
            "too-many-values",
            f"the list of field {quoted(name)} must have at most {counted(_MAX_ITEMS, 'item')}, "
            f"got {count(lengths[row].as_py())}",
        )
    return pc.if_else(too_long, pa.scalar(None, column.type), column) if rows else column


def _documents(
    columns: list[list[Any]],
    paths: FieldPaths,
    numbers: NDArray[np.int64],
    first_row: int,
    max_document_bytes: int,
    check: TextCheck | None,
) -> DocumentBatch:
    count = len(columns[0])
    text_columns = columns[: len(paths.texts)]
    plain_type = {str if paths.vocab_size is None else np.ndarray}
    is_plain = check is None and all(
        plain_type.issuperset(map(type, column))
        and 4 * max(map(len, column), default=0) * len(paths.texts) <= max_document_bytes
        for column in text_columns
    )
    key_column = None if paths.key is None else columns[-1]
    keys = plain_keys(key_column) if is_plain and key_column is not None else None
    if is_plain and (key_column is None or keys is not None):
        return DocumentBatch.plain(tuple(text_columns), numbers, keys=keys)
    builder = BatchBuilder(paths)
    for place, values in enumerate(zip(*text_columns, strict=True)):
        row = int(numbers[place])
        try:
            usable = [_usable(value, path.name) for value, path in zip(values, paths.texts, strict=True)]
            texts = (text for value in usable for text in (value if isinstance(value, list) else [value]))
            size = sum(len(bytes_of(text)) for text in texts)
            check_length(size, max_document_bytes, what="the text of the row")
            check_texts(usable, check)
            key = None if paths.key is None else encoded_key(columns[-1][place], paths.key.name)
            builder.add(usable, row, key)
        except UnusableRecordError as error:
            builder.reject(row, row - first_row + 1, error, _excerpt(values))
    return builder.batch(None, lines=count)


def _usable(value: Any, field: str) -> Any:
    if isinstance(value, UnusableRecordError):
        raise value
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bytes):
        return decoded(value, field)
    if isinstance(value, list):
        value = [decoded(item, field) if isinstance(item, bytes) else item for item in value]
    return usable_value(value, field)


def _excerpt(values: Sequence[Any]) -> str:
    for value in values:
        text = next(iter(value), None) if isinstance(value, list) else value
        if isinstance(text, str | bytes):
            return excerpt_of(text if isinstance(text, bytes) else text[:60].encode("utf-8"))
    return ""


def _table_format(
    name: TextFormat, title: str, suffixes: tuple[str, ...], magic: bytes, layout: _Layout
) -> RecordFormat:
    return RecordFormat(
        name=name,
        title=title,
        suffixes=suffixes,
        magic=re.compile(magic, re.DOTALL),
        extra="parquet",
        units=partial(_units, layout),
        documents=partial(_rows, layout),
        has_token_ids=partial(_has_token_ids, layout),
    )


PARQUET = _table_format(
    "parquet", "Parquet", (".parquet",), rb"PAR1", _Layout(_parquet_groups, _parquet_batches, _parquet_schema)
)
ARROW = _table_format(
    "arrow",
    "Arrow",
    (".arrow", ".arrows"),
    # The Arrow stream has no magic number: a continuation marker and the length of the first message.
    rb"ARROW1\0\0|\xff{4}[^\xff]{2}..",
    _Layout(_arrow_groups, _arrow_batches, _arrow_schema),
)
