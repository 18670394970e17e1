"""The files of OLMo-core and of the dolma toolkit.

``NAME-00000.npy`` holds the tokens of whole documents without a header, despite its name: little endian, of
the smallest unsigned dtype that holds the vocabulary, which OLMo-core derives from its own tokenizer
configuration. ``NAME-00000.csv.gz`` has one line per document with tokens: ``start,end,id,src,loc`` with
CRLF, as dolma writes it; OLMo-core reads the first two columns, and dolma's reshard command all five.
Positions count tokens of the file, and the end is exclusive.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zlib
from collections.abc import Iterator

import numpy as np

from tokshard.core.background import Background
from tokshard.errors import InputError, IntegrityError
from tokshard.exchange.format import Format, ShardRange, Stage
from tokshard.exchange.reading import LocalFile, Rows, TokenReader
from tokshard.exchange.records import Integers, Records
from tokshard.storage.reading import open_file
from tokshard.text.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks

_TOKENS_SUFFIX = ".npy"
_BOUNDARIES_SUFFIX = ".csv.gz"
_GZIP = zlib.MAX_WBITS | 16
# Digits compress to a third at any level, and the lowest one is several times as fast as the default.
_LEVEL = 1
_LINE_BREAKS = str.maketrans("\r\n", "  ")
_LABEL_MASKS = "labels_mask"
_NUMPY_MAGIC = b"\x93NUMPY"
# A compressed file of a few kB can list any number of empty documents.
_MOST_EMPTY = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_SHOWN_CHARACTERS = 60
_EDGES = re.compile("[0-9]{1,18},[0-9]{1,18}")
_PLAIN_ROW = re.compile(rb'^([0-9]{1,18},[0-9]{1,18})(?:,[^"\r\n]*)?\r?\n', re.MULTILINE)


class _OlmoReader(TokenReader):
    COMPRESSION = "gzip"
    MISSING = "no header, and {} is missing or empty"

    def _is_token_file(self, path: str) -> bool:
        return not os.path.basename(path).startswith(_LABEL_MASKS)

    def _metadata(self, source: LocalFile) -> None:
        if source.head(len(_NUMPY_MAGIC)) == _NUMPY_MAGIC:
            path = source.path
            raise InputError(
                f"{path} has the header of numpy.save; files of OLMo-core are raw tokens without a header",
                hint='write its tokens again with open("raw.npy", "wb")'
                f'.write(numpy.load("{path}").tobytes())',
            )

    def rows(self, path: str, tokens: int) -> Rows:
        """Yield the starts and ends of documents in a file of comma-separated values.

        Raises:
            IntegrityError: A row is invalid, or the file lists more documents than the tokens allow.
        """
        number = 0
        for text in _whole_rows(path):
            edges = _edges(path, text, number)
            numbers = np.arange(number + 1, number + 1 + len(edges))
            most = np.minimum(edges[:, 1], tokens) + _MOST_EMPTY
            if (numbers > most).any():
                at = int((numbers > most).argmax())
                raise IntegrityError(
                    f"{path}: row {numbers[at]}: at most {_MOST_EMPTY} documents must be empty, got "
                    f"{numbers[at]} documents in {most[at] - _MOST_EMPTY} tokens",
                    path=path,
                    hint="remove the rows of empty documents, or remove the file to divide the documents at "
                    "the token --eod-id",
                )
            number += len(edges)
            yield text, edges


def _edges(path: str, text: bytes, before: int) -> Integers:
    """Return the starts and ends in a text that follows some rows.

    Further columns are the id, the source and the line of the document.

    Raises:
        IntegrityError: A row has no start and end, or the text is no CSV.
    """
    # Without quotes a line is a row, and ASCII is UTF-8: a regular expression is three times as fast as csv.
    # Directly after ISA-L's decompressor, the expression takes two to three times the time (measured). A
    # computation of numpy between them, such as this maximum, ends that.
    is_ascii = int(np.frombuffer(text, np.uint8).max()) < 128
    plain = _PLAIN_ROW.findall(text) if is_ascii else []
    if len(plain) == text.count(b"\n") and text.endswith(b"\n"):
        return np.fromstring(b",".join(plain), np.int64, sep=",").reshape(-1, 2)
    number = before + 1
    edges: list[int] = []
    try:
        if len(text) >= _MAX_LINE_BYTES:
            raise csv.Error(f"a line has {_MAX_LINE_BYTES} or more bytes")  # noqa: TRY301
        for row in csv.reader(io.StringIO(text.decode(), newline="")):
            words = ",".join(row[:2])
            if len(row) < 2 or not _EDGES.fullmatch(words):
                reason = f"it must begin with START,END in tokens, got {words[:_SHOWN_CHARACTERS]!r}"
                break
            edges += map(int, row[:2])
            number += 1
        else:
            return np.array(edges, np.int64).reshape(-1, 2)
    except csv.Error as error:
        reason = f"it is not valid CSV ({error})"
    except UnicodeDecodeError as error:
        number += text.count(b"\n", 0, error.start)
        reason = f"it is not valid CSV ({error})"
    raise IntegrityError(
        f"{path}: row {number}: {reason}",
        path=path,
        hint="copy the file again, or remove it to divide the documents at the token --eod-id",
    )


def _whole_rows(path: str) -> Iterator[bytes]:
    """Yield the content of a compressed file in pieces that end with a row."""
    held = b""
    with open_file(path) as file:
        try:
            for chunk in decompressed_chunks(ByteSource(file, path), "gzip", chunk_bytes=_CHUNK_BYTES):
                held += chunk
                stop = held.rfind(b"\n") + 1
                # A quoted source may have a line break.
                if stop and held.count(b'"', 0, stop) % 2 == 0:
                    yield held[:stop]
                    held = held[stop:]
                if len(held) >= _MAX_LINE_BYTES:
                    break
        except CorruptStreamError as error:
            raise IntegrityError(
                f"{path} at byte {error.offset}: {error.detail}",
                path=path,
                offset=error.offset,
                hint="copy the file again: it is damaged or truncated",
            ) from error
    if held:
        yield held


class OlmoFormat(Format):
    """Writer of OLMo-core's files: a shard stays below the limit, unless its first record alone has more.

    The dtypes are in the order in which OLMo-core looks for the smallest that holds the vocabulary. The limit
    is dolma's ``max_size``, which counts tokens, and the name that of the files of its first process.
    """

    DTYPES = ("uint8", "uint16", "uint32", "uint64")
    SUFFIXES = (_TOKENS_SUFFIX, _BOUNDARIES_SUFFIX)
    SHARD_TOKENS = 1 << 30
    DEFAULT_NAME = "part-0"
    HAS_LAST_LABEL = False
    HAS_EMPTY_SHARDS = False
    RULE = "below"
    READER = _OlmoReader("olmo", DTYPES, SUFFIXES)

    def write(self, shard: ShardRange, stage: Stage) -> None:
        """Write the tokens and the boundaries of a shard."""
        name = f"{self._name}-{shard.number:05d}"
        # Formatting and compressing the boundaries takes about as long as copying the tokens.
        boundary_file = Background(lambda: self._write_boundaries(name + _BOUNDARIES_SUFFIX, shard, stage))
        try:
            self._write_tokens(name + _TOKENS_SUFFIX, shard, stage)
        finally:
            boundary_file.exception()  # waits
        boundary_file.result()

    def _write_boundaries(self, name: str, shard: ShardRange, stage: Stage) -> None:
        with stage.file(name) as file:
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            for lines in _boundary_lines(self._records, shard):
                file.write(packer.compress(lines))
            file.write(packer.flush())


def _boundary_lines(records: Records, shard: ShardRange) -> Iterator[bytes]:
    """Yield the lines about the records of a shard that have tokens.

    The columns are ``start``, ``end``, ``id`` (the number of the record), ``src`` (the file name of the
    dataset) and ``loc`` (the number of the record, from 1).
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow([os.path.basename(records.name).translate(_LINE_BREAKS), ""])
    line = b"%d,%d,%d," + text.getvalue().encode().replace(b"%", b"%%") + b"%d\r\n"
    for first, tokens in records.edges(shard.first, shard.stop):
        edges = tokens - shard.begin
        filled = np.flatnonzero(np.diff(edges))
        numbers = first + filled
        columns = np.column_stack((edges[filled], edges[filled + 1], numbers, numbers + 1))
        # One call formats all lines: a loop over the rows takes twice the time.
        yield line * len(filled) % tuple(columns.reshape(-1).tolist())


FORMAT = OlmoFormat
