"""Hints for rejected records: what to change in the command or in the input."""

from __future__ import annotations

import os
import re
import shlex

from tokshard.storage.paths import is_remote
from tokshard.text.corpus.compressed import COMPRESSIONS
from tokshard.text.corpus.fields import CHAT_HINT, MIXED_HINT
from tokshard.text.corpus.formats import KINDS, LINE_SUFFIXES, PACKED
from tokshard.text.corpus.rejection import RejectedRecord
from tokshard.text.corpus.repairs import REPAIR_OF_LINE_ENDS

_SKIP = "pass --on-error skip to skip bad records and list them in rejected.jsonl"
_DECOMPRESSORS = {compression.suffix: compression.unpack for compression in COMPRESSIONS}
_TEXT_SUFFIXES = (*LINE_SUFFIXES, ".txt", ".text", ".csv", ".tsv")
_TEXT_NAME = re.compile(rf"({'|'.join(map(re.escape, _TEXT_SUFFIXES))}){PACKED}", re.IGNORECASE)
_TABLE_NAME = re.compile(rf"\.(csv|tsv){PACKED}", re.IGNORECASE)
_REMOVE_MARKS = r"sed 's/^\xEF\xBB\xBF//'"
_ITEMS = "jq -c '.[]'"
_ONE = "jq -Rsc '{text: .}'"
_PARTS = r"""jq -Rsc 'split("\n\n")[] | select(test("\\S")) | {text: .}'"""
_HTML = "extract the text of the pages to JSON lines, for example with trafilatura"
# Hints by the beginning of the file, lowercase; the first that fits.
_MARKUP = {
    "warc/": "extract the text of the WARC records to JSON lines, for example with datatrove (WarcReader, "
    "Trafilatura)",
    "<mediawiki": "extract the articles of the dump: wikiextractor --json FILE -o articles, and pass "
    "'articles/*/wiki_*'",
    "<doc ": "run wikiextractor with --json",
    "<html": _HTML,
    "<!doctype html": _HTML,
    "<": "parse the XML and write each document as a JSON line with its text",
}
# Reasons whose hint is a sentence and the command that repairs the file; of invalid-utf8, the encoding.
_REPAIRED = {"invalid-json", "not-object"}
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
    is_unparsable = record.reason in {"invalid-json", "truncated-record", "not-object"}
    if record.hint and record.reason not in {*_REPAIRED, "invalid-utf8"}:
        return record.hint
    if record.reason in {"invalid-utf8", "nul-byte"} and _BINARY.search(start[:8]):
        return f"name a file of {KINDS}"
    if start.startswith("[") and (is_unparsable or record.reason == "too-long"):
        return f"convert the JSON array to JSON lines: {conversion(path, _ITEMS)}"
    if "\r{" in start and record.reason == "too-long":
        return _completed(path, REPAIR_OF_LINE_ENDS)
    return _hint_for_text(path, start, record.reason) if is_unparsable else None


def _hint_for_text(path: str, start: str, reason: str) -> str | None:
    """Return the hint for a file that does not begin with a JSON object; None if a record of it is bad."""
    if table := _TABLE_NAME.search(path):
        separator = ", sep='\\t'" if table[1].lower() == "tsv" else ""
        convert = (
            f"pandas.read_csv({path!r}{separator}).to_json({_output(path)!r}, orient='records', lines=True)"
        )
        return f"convert the table to JSON lines, for example with {convert}"
    if start == "{":
        return f"write each record on one line: {conversion(path, 'jq -c .')}"
    if start.startswith("{'"):
        return "write the records with json.dumps: JSON strings need double quotes"
    if start.startswith(("{", '"')) or reason == "not-object":
        return None
    for beginning, hint in _MARKUP.items():
        if start.lower().startswith(beginning):
            return with_names(hint, path)
    return (
        f"make the file one document: {conversion(path, _ONE)} (or each part between blank lines: "
        f"{conversion(path, _PARTS)})"
    )


def _hint_for_rest(path: str, record: RejectedRecord) -> str | None:
    # More records are lost or bad for the same reason.
    if record.reason in _REPAIRED and record.hint:
        return _completed(path, record.hint)
    hints = {
        "corrupt-stream": f"fetch {'the input' if path == '-' else path} again: it is incomplete or damaged",
        "chat-messages": CHAT_HINT,
        "utf-16": f"convert the file to UTF-8: {conversion(path, _iconv(record))}",
        "byte-order-mark": f"remove the byte order marks: {conversion(path, _REMOVE_MARKS)}",
    }
    return hints.get(record.reason)


def _completed(path: str, repair: str) -> str:
    sentence, _, command = repair.partition(": ")
    return f"{sentence}: {conversion(path, command)}"


def _hint_for_record(path: str, record: RejectedRecord) -> str:
    if record.hint == MIXED_HINT:
        return record.hint
    hints = {
        "too-long": "raise --max-document-bytes (a process takes up to 0.5 GB of memory for a document of "
        "16 MB with the fast encoder, 3.1 GB with the reference encoder)",
        "truncated-record": "fetch the file again if it is incomplete",
    }
    if record.reason == "invalid-utf8" and _TEXT_NAME.search(path):
        encoding = record.hint or "ENCODING"
        convert = f"iconv -f {encoding} -t UTF-8"
        if record.hint:
            return (
                f"check that the file is {encoding} ({preview(path, convert)}), and convert it: "
                f"{conversion(path, convert)}"
            )
        return f"convert the file from its encoding to UTF-8: {conversion(path, convert)}"
    return hints.get(record.reason, "fix the record")


def _iconv(record: RejectedRecord) -> str:
    # Without a byte order mark the position of the NULs tells the byte order.
    kind = "UTF-16BE" if record.excerpt.startswith("\0") else "UTF-16LE"
    return f"iconv -f {kind} -t UTF-8"


def conversion(path: str, command: str) -> str:
    """Return the shell command that converts a file by a command, into a new file.

    ``command`` reads the file that is named after it, or standard input.
    """
    if not _is_named(path):
        return f"{command} FILE > FILE.jsonl"
    return f"{_reading(path, command)} > {shlex.quote(_output(path))}"


def preview(path: str, command: str) -> str:
    """Return the shell command that shows the first lines of a file converted by a command."""
    return f"{_reading(path, command) if _is_named(path) else f'{command} FILE'} | head"


def with_names(hint: str, path: str) -> str:
    """Return a hint with the names of a file and of its decompressed copy for FILE and PLAIN."""
    if path == "standard input" or not _can_be_read(path):
        return hint
    stem, suffix = os.path.splitext(path)
    plain = (
        stem if suffix.lower() in _DECOMPRESSORS or suffix in {".lz4", ".sz", ".lz", ".Z"} else f"{path}.out"
    )
    names = {"FILE": shlex.quote(path), "PLAIN": shlex.quote(plain)}
    return re.sub("FILE|PLAIN", lambda word: names[word[0]], hint)


def _can_be_read(path: str) -> bool:
    return path != "-" and not is_remote(path)


def _is_named(path: str) -> bool:
    return _can_be_read(path) and _TEXT_NAME.search(path) is not None


def _reading(path: str, command: str) -> str:
    decompress = _DECOMPRESSORS.get(os.path.splitext(path)[1].lower())
    if decompress is None:
        return f"{command} {shlex.quote(path)}"
    return f"{decompress} {shlex.quote(path)} | {command.removesuffix(' <')}"


def _output(path: str) -> str:
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _DECOMPRESSORS:
        stem, suffix = os.path.splitext(stem)
    return f"{stem}.jsonl" if f"{stem}.jsonl" != path and suffix != ".jsonl" else f"{stem}-converted.jsonl"
