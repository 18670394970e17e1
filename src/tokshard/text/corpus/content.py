"""Format and compression of a file, detected from its first bytes; formats of text by the name."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokshard.dataset.parameters import Compression, TextFormat
from tokshard.errors import InputError
from tokshard.text.corpus.compressed import COMPRESSIONS, sniff
from tokshard.text.corpus.formats import FORMATS, KINDS, TITLES, format_of
from tokshard.text.corpus.hints import named
from tokshard.text.corpus.lines import UTF16_BYTE_ORDER_MARKS

HEAD_BYTES = 512

_UNPACK = "extract the archive and pass the files inside: {}"
_RECOMPRESS = "decompress the file: {}"
_CONVERT = f"convert the file to {FORMATS[0].title} or {FORMATS[1].title}"
_TEXT = f"pass a file of {KINDS}"
# Pattern of the first bytes, kind and hint.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive", _UNPACK.format("unzip FILE")),
    (rb".{257}ustar", "a tar archive", _UNPACK.format("tar -xf FILE")),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK.format("7z x FILE")),
    (rb"Rar!\x1a\x07", "a RAR archive", _UNPACK.format("unrar x FILE")),
    (rb"\x04\x22\x4d\x18", "compressed with lz4", _RECOMPRESS.format("lz4 -dc FILE > PLAIN")),
    (rb"\xff\x06\0\0sNaPpY", "compressed with snappy", _RECOMPRESS.format("snzip -dc FILE > PLAIN")),
    (rb"LZIP", "compressed with lzip", _RECOMPRESS.format("lzip -dc FILE > PLAIN")),
    (rb"\x1f\x9d", "compressed with compress (.Z)", _RECOMPRESS.format("gunzip -c FILE > PLAIN")),
    (rb"%PDF-", "a PDF document", "extract its text (pdftotext FILE) and write it as JSON lines"),
    (rb"\x89HDF\r\n", "an HDF5 file", _CONVERT),
    (rb"SQLite format 3\0", "an SQLite database", _CONVERT),
    (rb"Obj\x01", "an Avro file", _CONVERT),
    (rb"ORC[\x00-\x1f]", "an ORC file", _CONVERT),
    (rb"FEA1", "a Feather version 1 file", _CONVERT),
    (rb"\x93NUMPY", "a numpy array", _CONVERT),
    (rb"PARE", "an encrypted Parquet file", "decrypt the file first"),
    (
        rb"MMIDIDX\0\0",
        "the index of a tokenized dataset",
        "pass the raw text instead; `tokshard inspect` shows datasets",
    ),
    (rb"\x89PNG|\xff\xd8\xff", "an image", _TEXT),
    (rb"\x7fELF", "a program", _TEXT),
)


class Content(NamedTuple):
    """Format and compression of a file."""

    format: TextFormat
    compression: Compression


def _foreign(head: bytes) -> tuple[str, str]:
    """Return the kind of a file without text records, and the hint; empty for other files."""
    kinds = ((what, hint) for magic, what, hint in _FOREIGN if re.match(magic, head, re.DOTALL))
    return next(kinds, ("", ""))


def identify(head: bytes, path: str) -> Content:
    """Return the format and compression of a file that begins with ``head``, its first :data:`HEAD_BYTES`.

    Raises:
        InputError: The file is of a known kind without text records.
    """
    what, hint = _foreign(head)
    if what:
        raise InputError(f"{path} is {what}, not {TITLES}", hint=named(hint, path))
    record_format = format_of(head, path)
    compression = sniff(head) if record_format.has_lines else None
    return Content(record_format.name, "none" if compression is None else compression.name)


def refuse_inside(head: bytes, path: str, compression: Compression) -> None:
    """Raise InputError if ``head``, the first bytes in a compressed file, does not begin lines of text."""
    what, hint = _foreign(head)
    record_format = format_of(head)
    inner = sniff(head)
    if not what and record_format.has_lines and inner is None:
        return
    outer = next(outer for outer in COMPRESSIONS if outer.name == compression)
    unpack = f"{outer.unpack} FILE > PLAIN"
    if what == "a tar archive":
        hint = _UNPACK.format(f"tar {outer.tar_option} FILE")
    elif not what and inner is not None:
        what = inner.name
        hint = f"decompress the file once: {unpack}"
    else:
        then = hint.replace("FILE", "PLAIN")
        hint = f"decompress the file: {unpack}{', then ' if then else ''}{then}"
    raise InputError(
        f"cannot read {path}: it contains {what or record_format.title} inside {compression}",
        hint=named(hint, path),
    )


def refuse_utf16(head: bytes, path: str) -> None:
    """Raise InputError for a file that begins with a UTF-16 byte order mark."""
    if head.startswith(UTF16_BYTE_ORDER_MARKS):
        raise InputError(
            f"{path} is encoded as UTF-16, but {FORMATS[0].title} are UTF-8",
            hint=named("convert the file to UTF-8: <<iconv -f UTF-16 -t UTF-8>> > OUT", path),
        )
