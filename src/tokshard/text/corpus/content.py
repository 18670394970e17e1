"""Format and compression of a file, detected from its first bytes, never from its name."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokshard.dataset.parameters import Compression, TextFormat
from tokshard.errors import InputError
from tokshard.text.corpus.compressed import COMPRESSIONS, sniff
from tokshard.text.corpus.hints import conversion, with_names

Format = TextFormat

HEAD_BYTES = 512

UTF8_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")

# The Arrow stream has no magic number: a continuation marker and the length of the first message.
_TABLES: tuple[tuple[Format, re.Pattern[bytes]], ...] = (
    ("parquet", re.compile(rb"PAR1")),
    ("arrow", re.compile(rb"ARROW1\0\0|\xff{4}[^\xff]{2}..", re.DOTALL)),
)

_UNPACK = "extract the archive and pass the files inside: {}"
_RECOMPRESS = "decompress the file: {}"
_CONVERT = "convert the file to JSON lines or Parquet"
_TEXT = "pass a file of JSON lines (also compressed), Parquet or Arrow"
_FOREIGN: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"PK(\x03\x04|\x05\x06)"), "a zip archive", _UNPACK.format("unzip FILE")),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", _UNPACK.format("tar -xf FILE")),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7z archive", _UNPACK.format("7z x FILE")),
    (re.compile(rb"Rar!\x1a\x07"), "a RAR archive", _UNPACK.format("unrar x FILE")),
    (re.compile(rb"\x04\x22\x4d\x18"), "compressed with lz4", _RECOMPRESS.format("lz4 -dc FILE > PLAIN")),
    (
        re.compile(rb"\xff\x06\0\0sNaPpY"),
        "compressed with snappy",
        _RECOMPRESS.format("snzip -dc FILE > PLAIN"),
    ),
    (re.compile(rb"LZIP"), "compressed with lzip", _RECOMPRESS.format("lzip -dc FILE > PLAIN")),
    (re.compile(rb"\x1f\x9d"), "compressed with compress (.Z)", _RECOMPRESS.format("gunzip -c FILE > PLAIN")),
    (re.compile(rb"%PDF-"), "a PDF document", "extract its text (pdftotext FILE) and write it as JSON lines"),
    (re.compile(rb"\x89HDF\r\n"), "an HDF5 file", _CONVERT),
    (re.compile(rb"SQLite format 3\0"), "an SQLite database", _CONVERT),
    (re.compile(rb"Obj\x01"), "an Avro file", _CONVERT),
    (re.compile(rb"ORC[\x00-\x1f]"), "an ORC file", _CONVERT),
    (re.compile(rb"FEA1"), "a Feather version 1 file", _CONVERT),
    (re.compile(rb"\x93NUMPY"), "a numpy array", _CONVERT),
    (re.compile(rb"PARE"), "an encrypted Parquet file", "decrypt the file first"),
    (
        re.compile(rb"MMIDIDX\0\0"),
        "the index of a tokenized dataset",
        "pass the raw text instead; `tokshard inspect` shows datasets",
    ),
    (re.compile(rb"\x89PNG|\xff\xd8\xff"), "an image", _TEXT),
    (re.compile(rb"\x7fELF"), "a program", _TEXT),
)


class Content(NamedTuple):
    """Format and compression of a file.

    Attributes:
        format: The kind of records; ``"jsonl"`` for every compressed file.
    """

    format: Format
    compression: Compression


def identify(head: bytes, path: str) -> Content:
    """Return the format and compression of a file that begins with ``head``, its first :data:`HEAD_BYTES`.

    Raises:
        InputError: The file is of a known kind without text records.
    """
    for magic, what, hint in _FOREIGN:
        if magic.match(head):
            raise InputError(
                f"{path} is {what}, not JSON lines, Parquet or Arrow", hint=with_names(hint, path)
            )
    table = next((name for name, magic in _TABLES if magic.match(head)), None)
    compression = None if table else sniff(head)
    return Content(table or "jsonl", "none" if compression is None else compression.name)


def refuse_inside(head: bytes, path: str, compression: Compression) -> None:
    """Raise InputError if ``head``, the first bytes in a compressed file, does not begin lines of text."""
    what, hint = next(((what, hint) for magic, what, hint in _FOREIGN if magic.match(head)), ("", ""))
    table = next((name for name, magic in _TABLES if magic.match(head)), None)
    inner = sniff(head)
    if not what and table is None and inner is None:
        return
    outer = next(outer for outer in COMPRESSIONS if outer.name == compression)
    unpack = f"{outer.unpack} FILE > PLAIN"
    if what == "a tar archive":
        hint = _UNPACK.format(f"tar {outer.tar_option} FILE")
    elif inner is not None:
        what = inner.name
        hint = f"decompress the file once: {unpack}"
    else:
        then = hint.replace("FILE", "PLAIN")
        hint = f"decompress the file: {unpack}{', then ' if then else ''}{then}"
    raise InputError(
        f"cannot read {path}: it contains {what or (table or '').capitalize()} inside {compression}",
        hint=with_names(hint, path),
    )


def refuse_utf16(head: bytes, path: str) -> None:
    """Raise InputError for a file that begins with a UTF-16 byte order mark."""
    if head.startswith(_UTF16_BYTE_ORDER_MARKS):
        raise InputError(
            f"{path} is encoded as UTF-16, but JSON lines are UTF-8",
            hint=f"convert the file to UTF-8: {conversion(path, 'iconv -f UTF-16 -t UTF-8')}",
        )


def looks_like_utf16(line: bytes) -> bool:
    """Return whether a line that is not UTF-8 JSON begins like JSON in UTF-16.

    The first characters of a JSON record are ASCII, so in UTF-16 every other byte is NUL, beginning with
    the first or the second byte (a line of little-endian text begins with the second half of a newline).

    Example:
        >>> looks_like_utf16('{"text"'.encode("utf-16-le")), looks_like_utf16(b"{}")
        (True, False)
    """
    if line.startswith(_UTF16_BYTE_ORDER_MARKS):
        return True
    even, odd = line[0:8:2], line[1:8:2]
    return len(line) >= 4 and (
        (not any(even) and all(odd)) or (not any(odd) and all(even))  # NULs on one side only
    )
