"""Hints for rejected records and refused files: what to change in the command or in the input.

A hint may name the file with words that :func:`named` replaces.
"""

from __future__ import annotations

import os
import re
import shlex

from tokshard.storage.paths import is_remote
from tokshard.text.corpus.compressed import COMPRESSIONS
from tokshard.text.corpus.fields import CHAT_HINT, IDS_HINT, INTEGERS_HINT, TEXT_HINT
from tokshard.text.corpus.formats import KINDS, LINE_SUFFIXES, PACKED
from tokshard.text.corpus.records import REPAIR_OF_LINE_ENDS
from tokshard.text.corpus.rejection import RejectedRecord

_SKIP = "pass --on-error skip to skip bad records and list them in rejected.jsonl"
_DECOMPRESSORS = {compression.suffix: compression.unpack for compression in COMPRESSIONS}
_PACKED_SUFFIXES = {*_DECOMPRESSORS, ".lz4", ".sz", ".lz", ".z"}
_TEXT_SUFFIXES = (*LINE_SUFFIXES, ".txt", ".text", ".csv", ".tsv")
_TEXT_NAME = re.compile(rf"({'|'.join(map(re.escape, _TEXT_SUFFIXES))}){PACKED}", re.IGNORECASE)
_TABLE_NAME = re.compile(rf"\.(csv|tsv){PACKED}", re.IGNORECASE)
_NAMES = re.compile(r"<<(.*?)>>|\b(?:FILE|PLAIN|OUT)\b", re.DOTALL)
_ONE_DOCUMENT = (
    "make the file one document: <<jq -Rsc '{text: .}'>> > OUT (or each part between blank lines: "
    r"""<<jq -Rsc 'split("\n\n")[] | select(test("\\S")) | {text: .}'>> > OUT)"""
)
_HTML = "extract the text of the pages to JSON lines, for example with trafilatura"
# Hints by the beginning of the file, lowercase; the first that fits.
_MARKUP = {
    "{'": "write the records with json.dumps: JSON strings need double quotes",
    "warc/": "extract the text of the WARC records to JSON lines, for example with datatrove (WarcReader, "
    "Trafilatura)",
    "<mediawiki": "extract the articles of the dump: wikiextractor --json FILE -o articles, and pass "
    "'articles/*/wiki_*'",
    "<doc ": "run wikiextractor with --json",
    "<html": _HTML,
    "<!doctype html": _HTML,
    "<": "parse the XML and write each document as a JSON line with its text",
}
# Reasons whose hint repairs the file, for which it is named.
_REPAIRED = {"invalid-json", "not-object"}
_UNPARSABLE = {*_REPAIRED, "truncated-record"}
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
    if record.reason == "corrupt-stream":
        return f"fetch {'the input' if path == '-' else path} again: it is incomplete or damaged"
    if line == 1:
        if record.hint and record.reason not in {*_REPAIRED, "invalid-utf8"}:
            return record.hint
        if record.reason in _UNPARSABLE and (table := _TABLE_NAME.search(path)):
            separator = ", sep='\\t'" if table[1].lower() == "tsv" else ""
            convert = f"pandas.read_csv({path!r}{separator}).to_json({_output(path)!r}, "
            return f"convert the table to JSON lines, for example with {convert}orient='records', lines=True)"
    hint = _hint_for_file(record.excerpt.strip(), record.reason) if line == 1 else None
    if hint := hint or _hint_for_rest(record):
        return named(hint, path)
    hint = record.hint
    if hint not in {IDS_HINT, INTEGERS_HINT, TEXT_HINT}:
        hint = named(_hint_for_record(path, record), path)
    return hint if skips else f"{hint}, or {_SKIP}"


def _hint_for_file(start: str, reason: str) -> str | None:
    """Return the hint for a file that does not contain JSON objects; None if a record of it is bad."""
    if reason in {"invalid-utf8", "nul-byte"} and _BINARY.search(start[:8]):
        return f"name a file of {KINDS}"
    if start.startswith("[") and reason in {*_UNPARSABLE, "too-long"}:
        return "convert the JSON array to JSON lines: <<jq -c '.[]'>> > OUT"
    if "\r{" in start and reason == "too-long":
        return REPAIR_OF_LINE_ENDS
    if reason not in _UNPARSABLE:
        return None
    if start == "{":
        return "write each record on one line: <<jq -c .>> > OUT"
    hints = (hint for beginning, hint in _MARKUP.items() if start.lower().startswith(beginning))
    is_json = start.startswith(("{", '"')) or reason == "not-object"
    return next(hints, None if is_json else _ONE_DOCUMENT)


def _hint_for_rest(record: RejectedRecord) -> str | None:
    """Return the hint if more records are lost or bad for the same reason."""
    if record.reason in _REPAIRED and record.hint:
        return record.hint
    # Without a byte order mark the position of the NULs tells the byte order.
    utf16 = "UTF-16BE" if record.excerpt.startswith("\0") else "UTF-16LE"
    hints = {
        "chat-messages": CHAT_HINT,
        "utf-16": f"convert the file to UTF-8: <<iconv -f {utf16} -t UTF-8>> > OUT",
        "byte-order-mark": r"remove the byte order marks: <<sed 's/^\xEF\xBB\xBF//'>> > OUT",
    }
    return hints.get(record.reason)


def _hint_for_record(path: str, record: RejectedRecord) -> str:
    hints = {
        "too-long": "raise --max-document-bytes (a process takes up to 0.5 GB of memory for a document of "
        "16 MB with the fast encoder, 3.1 GB with the reference encoder)",
        "truncated-record": "fetch the file again if it is incomplete",
    }
    if record.reason == "invalid-utf8" and _TEXT_NAME.search(path):
        convert = f"<<iconv -f {record.hint or 'ENCODING'} -t UTF-8>>"
        if not record.hint:
            return f"convert the file from its encoding to UTF-8: {convert} > OUT"
        return f"check that the file is {record.hint} ({convert} | head), and convert it: {convert} > OUT"
    return hints.get(record.reason, "fix the record")


def named(hint: str, path: str) -> str:
    """Return a hint with the names of a file.

    FILE is its name, PLAIN and OUT are names for a decompressed and a converted copy, and ``<<command>>`` is
    the command that reads its decompressed content. Inputs without a name keep the words.
    """
    is_local = path not in {"-", "standard input"} and not is_remote(path)
    stem, suffix = os.path.splitext(path)
    plain = stem if suffix.lower() in _PACKED_SUFFIXES else f"{path}.out"
    names = {"FILE": shlex.quote(path), "PLAIN": shlex.quote(plain)} if is_local else {}
    is_text = is_local and _TEXT_NAME.search(path) is not None
    names["OUT"] = shlex.quote(_output(path)) if is_text else "FILE.jsonl"
    unpack = _DECOMPRESSORS.get(suffix.lower()) if is_text else None

    def replaced(word: re.Match[str]) -> str:
        if (command := word[1]) is None:
            return names.get(word[0], word[0])
        if unpack is not None:
            return f"{unpack} {names['FILE']} | {command.removesuffix(' <')}"
        return f"{command} {names['FILE'] if is_text else 'FILE'}"

    return _NAMES.sub(replaced, hint)


def _output(path: str) -> str:
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _DECOMPRESSORS:
        stem, suffix = os.path.splitext(stem)
    return f"{stem}.jsonl" if f"{stem}.jsonl" != path and suffix != ".jsonl" else f"{stem}-converted.jsonl"
