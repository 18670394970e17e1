"""Documents from units: JSON lines here, tables in :mod:`tokshard.corpus.tables`.

``orjson`` reads each line, at memory speed. What it refuses is read once more with the standard
library's parser, which accepts what does no harm outside the wanted fields (NaN, huge numbers, half a
surrogate pair); a record is rejected only if a wanted field cannot be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from tokshard.corpus.batch import (
    REASONS,
    BatchBuilder,
    DocumentBatch,
    RejectedRecord,
    UnusableRecordError,
    check_length,
    excerpt_of,
    json_type,
    usable_value,
)
from tokshard.corpus.content import UTF8_BYTE_ORDER_MARK, looks_like_utf16
from tokshard.corpus.lines import LineBatch, line_batches
from tokshard.corpus.units import LineUnit, RowUnit

__all__ = ["REASONS", "DocumentBatch", "RejectedRecord", "read_documents"]

# Large enough that the work by batch vanishes, small enough to stay in a core's cache: 4 MiB is 10% slower.
BATCH_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 64_000_000
# Python's own parser recurses, so what orjson refuses is read again only up to here, whatever the
# caller's stack and Python's version. (orjson itself reads 1,024 levels.)
_SECOND_PARSER_DEPTH = 400

# The closing quote may be missing: of a line that was cut, the text is not to be taken for structure.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(r"[\[{]+|[\]}]+")
_TOLERANT = json.JSONDecoder(
    parse_int=lambda _digits: 0,  # values of other fields: only that they parse counts
    parse_float=lambda _digits: 0.0,
    parse_constant=lambda _name: 0.0,
)


def read_documents(
    unit: LineUnit | RowUnit,
    fields: Sequence[str],
    *,
    batch_bytes: int = BATCH_BYTES,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
) -> Iterator[DocumentBatch]:
    """Yield a unit's documents in batches, in order.

    The documents and rejected records do not depend on ``batch_bytes``.

    ``fields``: the fields that hold text, at least one, no two alike. A value is a string, or a list of
    strings: a document of several sequences, or of none. ``max_document_bytes``: longer lines (of a
    table: longer texts) are rejected without being held.

    Raises:
        InputError: The input cannot be read, or a table has no such column of text.
        MissingExtraError: A table, and pyarrow is not installed.
    """
    if isinstance(unit, RowUnit):
        from tokshard.corpus.tables import read_rows

        return read_rows(unit, fields, batch_bytes=batch_bytes, max_document_bytes=max_document_bytes)
    return _read_lines(unit, fields, batch_bytes, max_document_bytes)


def _read_lines(
    unit: LineUnit, fields: Sequence[str], batch_bytes: int, max_document_bytes: int
) -> Iterator[DocumentBatch]:
    first_line = 1
    position = unit.stream_offset + unit.begin
    for batch in line_batches(unit, batch_bytes, max_document_bytes):
        lines = batch.lines
        if lines and position == 0 and lines[0].startswith(UTF8_BYTE_ORDER_MARK):
            lines[0] = lines[0][len(UTF8_BYTE_ORDER_MARK) :]
        position += len(batch.raw)
        documents = _plain_documents(batch, fields, max_document_bytes)
        yield documents or _checked_documents(batch, fields, max_document_bytes, first_line)
        first_line += len(lines)
    if unit.stream_error is not None:
        yield _end_of_corrupt_stream(unit, len(fields), first_line)


def _plain_documents(
    batch: LineBatch, fields: Sequence[str], max_document_bytes: int
) -> DocumentBatch | None:
    import orjson

    if not batch.lines or int(batch.lengths.max()) > max_document_bytes:
        return None
    records = map(orjson.loads, batch.lines)
    try:
        if len(fields) == 1:
            columns: tuple[list[str], ...] = (list(map(itemgetter(fields[0]), records)),)
        else:
            columns = tuple(map(list, zip(*map(itemgetter(*fields), records), strict=True)))
    except (ValueError, KeyError, TypeError):
        # Not JSON, no such field, not an object: the checked way finds out which line and why.
        return None
    if not all({str}.issuperset(map(type, column)) for column in columns):
        return None
    return DocumentBatch.plain(columns, batch.offsets, batch.raw)


def _checked_documents(
    batch: LineBatch, fields: Sequence[str], max_document_bytes: int, first_line: int
) -> DocumentBatch:
    builder = BatchBuilder(len(fields))
    blank_lines = 0
    places = zip(batch.lines, batch.offsets.tolist(), batch.lengths.tolist(), strict=True)
    for number, (line, offset, length) in enumerate(places):
        is_cut = not batch.complete and number == len(batch.lines) - 1
        try:
            check_length(length, max_document_bytes, what="line", unit="bytes")
            if not line or line.isspace():
                blank_lines += 1
            else:
                builder.add(_field_values(line, fields, is_cut=is_cut), offset)
        except UnusableRecordError as error:
            builder.reject(offset, first_line + number, error, excerpt_of(line))
    return builder.batch(batch.raw, lines=len(batch.lines), blank_lines=blank_lines)


def _end_of_corrupt_stream(unit: LineUnit, field_count: int, line: int) -> DocumentBatch:
    # One rejected record stands for everything after the break.
    builder = BatchBuilder(field_count)
    offset = unit.stream_offset + unit.end + sum(dropped for _, dropped in unit.elided)
    builder.reject(offset, line, UnusableRecordError("corrupt-stream", str(unit.stream_error)), "")
    return builder.batch(b"", lines=1)


def _field_values(line: bytes, fields: Sequence[str], *, is_cut: bool) -> list[str | list[str]]:
    import orjson

    try:
        record, is_strict = orjson.loads(line), True
    except orjson.JSONDecodeError:
        record, is_strict = _second_opinion(line, is_cut=is_cut), False
    if not isinstance(record, dict):
        raise UnusableRecordError("not-object", f"the line is {json_type(record)}, not an object")
    values = [_field_value(record, field) for field in fields]
    if not is_strict:
        for field, value in zip(fields, values, strict=True):
            _refuse_surrogates(value, field)
    return values


def _field_value(record: dict[str, Any], field: str) -> str | list[str]:
    if field not in record:
        names = ", ".join(repr(name[:40]) for name in list(record)[:8])
        raise UnusableRecordError(
            "field-missing", f"no field {field!r}; the record has {names or 'no fields'}"
        )
    return usable_value(record[field], field)


def _refuse_surrogates(value: str | list[str], field: str) -> None:
    for text in [value] if isinstance(value, str) else value:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UnusableRecordError(
                "lone-surrogate",
                f"the field {field!r} has U+{ord(text[error.start]):04X} without its other half "
                f"at character {error.start}",
            ) from None


def _second_opinion(line: bytes, *, is_cut: bool) -> Any:
    if line.startswith(UTF8_BYTE_ORDER_MARK):
        raise UnusableRecordError("byte-order-mark", "the line begins with a byte order mark (EF BB BF)")
    if looks_like_utf16(line):
        raise UnusableRecordError(
            "utf-16", "the line is UTF-16: convert the file with iconv -f UTF-16 -t UTF-8"
        )
    text = _decoded(line, is_cut=is_cut)
    if "\0" in text:
        raise UnusableRecordError("nul-byte", f"the line has {text.count(chr(0))} NUL bytes")
    if _is_deeper_than(text, _SECOND_PARSER_DEPTH):
        raise UnusableRecordError("too-deep", f"more than {_SECOND_PARSER_DEPTH} levels, and not strict JSON")
    try:
        return _TOLERANT.decode(text)
    except json.JSONDecodeError as error:
        detail = f"{error.msg} at character {error.pos}"
    except ValueError as error:
        detail = str(error)
    if is_cut:
        raise UnusableRecordError("truncated-record", f"the input ends without a newline here: {detail}")
    raise UnusableRecordError("invalid-json", detail)


def _decoded(line: bytes, *, is_cut: bool) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte {error.start} of the line (0x{line[error.start]:02x}): {error.reason}"
        if is_cut and error.reason == "unexpected end of data":
            raise UnusableRecordError(
                "truncated-record", f"the input ends within a character: {detail}"
            ) from None
        raise UnusableRecordError("invalid-utf8", detail) from None


def _is_deeper_than(text: str, limit: int) -> bool:
    if text.count("[") + text.count("{") <= limit:
        return False
    depth = 0
    for run in _BRACKETS.finditer(_STRING.sub("", text)):
        length = run.end() - run.start()
        depth += length if run[0][0] in "[{" else -length
        if depth > limit:
            return True
    return False
