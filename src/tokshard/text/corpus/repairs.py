"""Commands that repair an input in which all records are bad in the same way.

A repair is a sentence that ends with a command; :mod:`tokshard.text.corpus.hints` adds the names of the
files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from tokshard.text.corpus.fields import FieldPath

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

REPAIR_OF_LINE_ENDS = r"replace CR by newlines: tr '\r' '\n' <"


def repair_of_line(text: str, position: int) -> tuple[str, str] | None:
    """Return what follows a record that ends before ``position``, and the repair; None if it is unclear."""
    before = text[:position].rstrip()
    if not before.endswith("}"):
        return None
    if text.startswith("{", position):
        if "\r" in text[len(before) : position]:
            return "the lines end with CR, not with newlines", REPAIR_OF_LINE_ENDS
        return f"a second record begins at character {position}", "write each record on one line: jq -c ."
    if text[position:].strip() == ",":
        return f"a comma follows the record at character {position}", (
            "remove the commas: sed 's/,[[:space:]]*$//'"
        )
    return None


def repair_of_row(record: Any, fields: Sequence[FieldPath]) -> str:
    """Return the repair of rows that are strings instead of objects; empty for other rows."""
    if not isinstance(record, str) or len(fields) != 1 or len(fields[0].keys) != 1:
        return ""
    program = f'if type == "string" then {{{json.dumps(fields[0].keys[0])}: .}} else . end'
    return f"make each string a record: jq -c {shlex.quote(program)}"


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
