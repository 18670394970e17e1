"""Documents from JSON lines.

Each line is parsed by ``orjson``. A line that it refuses is parsed again by the standard library, which
accepts NaN, huge numbers and lone surrogates: a record is rejected only if a requested field is unusable.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tokshard.core.formatting import counted
from tokshard.text.corpus.batch import BatchBuilder, DocumentBatch, LineBatch, plain_batch
from tokshard.text.corpus.fields import FieldPath, hint_for_key, json_type, values_of
from tokshard.text.corpus.lines import (
    UTF8_BYTE_ORDER_MARK,
    UTF16_BYTE_ORDER_MARKS,
    line_format,
)
from tokshard.text.corpus.record_format import Reading
from tokshard.text.corpus.rejection import UnusableRecordError, excerpt_of, too_long
from tokshard.text.corpus.values import MAX_INTEGER, MIN_INTEGER, RecordFields

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The parser of the standard library is recursive; the limit makes its result independent of the caller's
# stack and of Python's version. (orjson accepts 1,024 levels.)
_MOST_LEVELS = 400
# Possessive, and with an optional end, so that no line takes more than linear time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _integer(digits: str) -> int | float:
    # As orjson does: keys are integers of 64 bits, all others are never used, but must parse.
    value = int(digits) if len(digits) <= _MOST_DIGITS else MAX_INTEGER + 1
    return value if MIN_INTEGER <= value <= MAX_INTEGER else 0.0


_MOST_DIGITS = 20
_TOLERANT = json.JSONDecoder(
    parse_int=_integer,
    parse_float=lambda _digits: 0.0,
    parse_constant=lambda _name: 0.0,
)


def _documents_of_lines(batch: LineBatch, numbers: NDArray[np.int64], reading: Reading) -> DocumentBatch:
    documents = _plain_documents(batch, numbers, reading)
    return _checked_documents(batch, numbers, reading) if documents is None else documents


def _plain_documents(batch: LineBatch, numbers: NDArray[np.int64], reading: Reading) -> DocumentBatch | None:
    import orjson

    is_long = not batch.lines or int(batch.lengths.max()) > reading.max_document_bytes
    if is_long or reading.check is not None:
        return None
    try:
        columns = values_of(reading.fields.all, map(orjson.loads, batch.lines))
    except (ValueError, LookupError, TypeError):
        # Not JSON, no such field or not an object: _checked_documents finds the line and the reason.
        return None
    plain = reading.fields.plain(columns)
    return None if plain is None else plain_batch(*plain, batch.offsets, numbers, batch.raw)


def _checked_documents(batch: LineBatch, numbers: NDArray[np.int64], reading: Reading) -> DocumentBatch:
    builder = BatchBuilder(reading.fields)
    blank_lines = 0
    places = zip(numbers.tolist(), batch.lines, batch.offsets.tolist(), batch.lengths.tolist(), strict=True)
    for number, content, offset, length in places:
        line = bytes(content)
        is_cut = not batch.complete and number == numbers[-1]
        try:
            if length > reading.max_document_bytes:
                raise too_long("the line", length, reading.max_document_bytes)
            if not line or line.isspace():
                blank_lines += 1
            else:
                record, is_strict = _record(line, reading.fields, is_cut=is_cut)
                usable = reading.fields.usable(
                    partial(FieldPath.find, record=record),
                    reading.check,
                    partial(hint_for_key, record),
                    is_unicode=is_strict,
                )
                builder.add(*usable, offset, number)
        except UnusableRecordError as error:
            builder.reject(offset, number, error, excerpt_of(line))
    return builder.batch(batch.raw, lines=len(batch.lines), blank_lines=blank_lines)


def _record(line: bytes, fields: RecordFields, *, is_cut: bool) -> tuple[dict[str, Any], bool]:
    """Return the record in a line, and whether it is strict JSON, which has no lone surrogates."""
    import orjson

    is_strict = True
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        is_strict = False
        record = _second_opinion(line, is_cut=is_cut)
    if not isinstance(record, dict):
        raise UnusableRecordError(
            "not-object",
            f"the record must be a JSON object, got {json_type(record)}",
            lambda: _repair_of_row(record, fields.texts),
        )
    return record, is_strict


def _second_opinion(line: bytes, *, is_cut: bool) -> Any:
    if line.startswith(UTF8_BYTE_ORDER_MARK):
        raise UnusableRecordError("byte-order-mark", "the line begins with a byte order mark (EF BB BF)")
    if looks_like_utf16(line):
        raise UnusableRecordError("utf-16", "the line is encoded as UTF-16, but must be UTF-8")
    text = _decoded(line, is_cut=is_cut)
    if nul_bytes := text.count("\0"):
        raise UnusableRecordError("nul-byte", f"the line contains {counted(nul_bytes, 'NUL byte')}")
    if _is_too_deep(line):
        raise UnusableRecordError("too-deep", f"the line must be nested at most {_MOST_LEVELS} levels deep")
    try:
        return _TOLERANT.decode(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and (found := _repair_of_line(text, error.pos)):
            detail, repair = found
            raise UnusableRecordError("invalid-json", f"invalid JSON: {detail}", lambda: repair) from None
        detail = f"{error.msg.removesuffix(' at')} at character {error.pos}"
    except ValueError as error:
        detail = str(error)
    if is_cut:
        raise UnusableRecordError("truncated-record", f"the last line is incomplete: {detail}")
    raise UnusableRecordError("invalid-json", f"invalid JSON: {detail}")


def _is_too_deep(line: bytes) -> bool:
    brackets = _STRING.sub(b"", line).translate(None, delete=_NOT_BRACKETS)
    return any(depth > _MOST_LEVELS for depth in accumulate(1 if b in b"[{" else -1 for b in brackets))


def _decoded(line: bytes, *, is_cut: bool) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = (
            f"invalid UTF-8 at byte {error.start} of the line (0x{line[error.start]:02x}): {error.reason}"
        )
        if is_cut and error.reason == "unexpected end of data":
            raise UnusableRecordError("truncated-record", f"the last line is incomplete: {detail}") from None
        repair = partial(repair_of_encoding, line, error.start)
        raise UnusableRecordError("invalid-utf8", detail, repair) from None


def looks_like_utf16(line: bytes) -> bool:
    """Return whether a line that is not UTF-8 JSON begins like JSON in UTF-16.

    The first characters of a JSON record are ASCII, so in UTF-16 every other byte is NUL, beginning with
    the first or the second byte (a line of little-endian text begins with the second half of a newline).

    Example:
        >>> looks_like_utf16('{"text"'.encode("utf-16-le")), looks_like_utf16(b"{}")
        (True, False)
    """
    if line.startswith(UTF16_BYTE_ORDER_MARKS):
        return True
    even = line[0:8:2]
    odd = line[1:8:2]
    # NULs on one side only
    return len(line) >= 4 and ((not any(even) and all(odd)) or (not any(odd) and all(even)))


# Repairs of an input in which all records are bad in the same way. Hints name the files: see
# tokshard.text.corpus.hints.named.
REPAIR_OF_LINE_ENDS = r"replace CR by newlines: <<tr '\r' '\n' <>> > OUT"
# Bytes after the first that is not ASCII, to recognize an encoding.
_SAMPLE_BYTES = 120
# The usual characters of texts in each encoding. Many texts can be decoded in several encodings: rare
# characters show that it is the wrong one. Korean and Japanese are here to keep the others from being named.
_ENCODINGS = {
    "GB18030": rb"[\xa1-\xa3\xb0-\xf7][\xa1-\xfe]",
    "BIG5": rb"[\xa1-\xc6][\x40-\x7e\xa1-\xfe]",
    "SHIFT_JIS": rb"[\x81-\x83\x88-\x97][\x40-\x7e\x80-\xfc]",
    "EUC-JP": rb"[\xa1-\xa5\xb0-\xcf][\xa1-\xfe]",
    "EUC-KR": rb"[\xa1-\xa3\xb0-\xc8][\xa1-\xfe]",
    "CP1252": (
        rb"[\x80\x85\x91-\x97\xa0\xa1\xa3\xa7\xa9\xab\xae\xb0\xb4\xb7\xbb\xbf\xc0\xc4\xc7\xc9\xd1\xd6\xdc\xdf"
        rb"\xe0-\xe5\xe7-\xeb\xed-\xef\xf1\xf3-\xf6\xf8-\xfc]{1,2}(?![\x80-\xff])"
    ),
}


def _repair_of_line(text: str, position: int) -> tuple[str, str] | None:
    """Return what follows a record that ends before ``position``, and the repair; None if it is unclear."""
    before = text[:position].rstrip()
    if not before.endswith("}"):
        return None
    if text.startswith("{", position):
        if "\r" in text[len(before) : position]:
            return "the lines end with CR, not with newlines", REPAIR_OF_LINE_ENDS
        return (
            f"a second record begins at character {position}",
            "write each record on one line: <<jq -c .>> > OUT",
        )
    if text[position:].strip() == ",":
        return f"a comma follows the record at character {position}", (
            "remove the commas: <<sed 's/,[[:space:]]*$//'>> > OUT"
        )
    return None


def _repair_of_row(record: Any, fields: Sequence[FieldPath]) -> str:
    """Return the repair of rows that are strings instead of objects; empty for other rows."""
    if not isinstance(record, str) or len(fields) != 1 or len(fields[0].keys) != 1:
        return ""
    program = f'if type == "string" then {{{json.dumps(fields[0].keys[0])}: .}} else . end'
    return f"make each string a record: <<jq -c {shlex.quote(program)}>> > OUT"


def repair_of_encoding(line: bytes, position: int) -> str:
    """Return the encoding of a line that is not UTF-8 at ``position``; empty if it is unclear."""
    if not line[:position].isascii():
        return ""
    sample = line[position : position + _SAMPLE_BYTES]
    fitting = [
        name
        for name, characters in _ENCODINGS.items()
        if re.fullmatch(rb"(?:[\0-\x7f]|%s)*[\x80-\xff]?" % characters, sample)
    ]
    return fitting[0] if len(fitting) == 1 else ""


JSON_LINES = line_format("jsonl", "JSON lines", (".jsonl", ".json", ".ndjson"), _documents_of_lines)
