"""Hints for rejected records: what to change in the command or in the input."""

from __future__ import annotations

import os
import re
import shlex

from tokshard.corpus.fields import CHAT_HINT
from tokshard.corpus.rejection import RejectedRecord
from tokshard.storage.paths import is_remote

_SKIP = "pass --on-error skip to skip bad records and list them in rejected.jsonl"
_TEXT_NAME = re.compile(r"\.(jsonl?|ndjson|txt|csv|tsv)$", re.IGNORECASE)
_TABLE_NAME = re.compile(r"\.(csv|tsv)$", re.IGNORECASE)
_REMOVE_MARKS = r"s/^\xEF\xBB\xBF//"
# Characters that text files do not contain, and bytes that are not UTF-8.
_BINARY = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]|\\x")


def hint_for(path: str, line: int | None, record: RejectedRecord, *, skips: bool = False) -> str:
    """Return the hint for a rejected record.

    If it is the first line of an input, the whole file is probably of another kind; later, the record is bad.

    Args:
        path: The input.
        line: The line number of the record in the input.
        record: The record.
        skips: Whether the run skips bad records.
    """
    whole_file = _hint_for_file(path, record) if line == 1 else None
    if (hint := whole_file or _hint_for_rest(path, record)) is not None:
        return hint
    hint = _hint_for_record(path, record)
    return hint if skips else f"{hint}, or {_SKIP}"


def _hint_for_file(path: str, record: RejectedRecord) -> str | None:
    start = record.excerpt.strip()
    unparsable = record.reason in {"invalid-json", "truncated-record", "not-object"}
    binary = record.reason in {"invalid-utf8", "nul-byte"} and _BINARY.search(start[:8]) is not None
    separator = ", sep='\\t'" if path.lower().endswith(".tsv") else ""
    table = f"pandas.read_csv({path!r}{separator}).to_json({_output(path)!r}, orient='records', lines=True)"
    hints = (
        (record.hint, record.hint),
        (binary, "name a file of JSON lines (also compressed), Parquet or Arrow"),
        (not unparsable, None),
        (_TABLE_NAME.search(path), f"convert the table to JSON lines, for example with {table}"),
        (
            start.startswith("["),
            f"convert the JSON array to JSON lines: {conversion(path, 'jq', '-c', '.[]')}",
        ),
        (start == "{", f"write each record on one line: {conversion(path, 'jq', '-c', '.')}"),
        (start.startswith("{'"), "write the records with json.dumps: JSON strings need double quotes"),
        (start.startswith(("{", '"')) or record.reason == "not-object", None),
        (True, f"make each line of text a record: {conversion(path, 'jq', '-Rc', '{text: .}')}"),
    )
    return next(hint for applies, hint in hints if applies)


def _hint_for_rest(path: str, record: RejectedRecord) -> str | None:
    # More records are lost or bad for the same reason.
    hints = {
        "corrupt-stream": f"fetch {'the input' if path == '-' else path} again: it is incomplete or damaged",
        "chat-messages": CHAT_HINT,
        "utf-16": f"convert the file to UTF-8: {conversion(path, *_iconv(record))}",
        "byte-order-mark": f"remove the byte order marks: {conversion(path, 'sed', _REMOVE_MARKS)}",
    }
    return hints.get(record.reason)


def _hint_for_record(path: str, record: RejectedRecord) -> str:
    hints = {
        "too-long": "raise --max-document-bytes",
        "truncated-record": "fetch the file again if it is incomplete",
    }
    if record.reason == "invalid-utf8" and _TEXT_NAME.search(path):
        convert = conversion(path, "iconv", "-f", "LATIN1", "-t", "UTF-8")
        return f"convert the file to UTF-8, for example with {convert}"
    return hints.get(record.reason, "fix the record")


def _iconv(record: RejectedRecord) -> tuple[str, ...]:
    # Without a byte order mark the position of the NULs tells the byte order.
    kind = "UTF-16BE" if record.excerpt.startswith("\0") else "UTF-16LE"
    return ("iconv", "-f", kind, "-t", "UTF-8")


def conversion(path: str, *command: str) -> str:
    """Return the shell command that converts a file by ``command`` into a new file."""
    words = shlex.join(command)
    if path == "-" or is_remote(path) or not _TEXT_NAME.search(path):
        return f"{words} FILE > FILE.jsonl"
    return f"{words} {shlex.quote(path)} > {shlex.quote(_output(path))}"


def _output(path: str) -> str:
    stem = os.path.splitext(path)[0]
    return f"{stem}.jsonl" if f"{stem}.jsonl" != path else f"{stem}-converted.jsonl"
