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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.background import Background
from tokshard.errors import InputError, IntegrityError
from tokshard.exchange.format import Format, ShardRange, Stage
from tokshard.exchange.reading import HeaderlessReader, LocalFile, Rows
from tokshard.exchange.records import Records, boundaries
from tokshard.storage.reading import open_file
from tokshard.text.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_DTYPES = ("uint8", "uint16", "uint32", "uint64")
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
_PLAIN_ROW = re.compile(rb'^([0-9]{1,18},[0-9]{1,18})(?:,[^"\r\n\x80-\xff]*)?\r?\n', re.MULTILINE)


class OlmoReader(HeaderlessReader):
    """Reader of OLMo-core's files."""

    NAME = "olmo"
    SUFFIX = _TOKENS_SUFFIX
    DTYPES = _DTYPES
    BOUNDARIES_SUFFIX = _BOUNDARIES_SUFFIX
    COMPRESSION = "gzip"
    MISSING = "no header, and {} is missing or empty"

    def _is_token_file(self, path: str) -> bool:
        return not os.path.basename(path).startswith(_LABEL_MASKS)

    def _check(self, source: LocalFile) -> None:
        if source.head(len(_NUMPY_MAGIC)) == _NUMPY_MAGIC:
            path = source.path
            raise InputError(
                f"{path} has the header of numpy.save; files of OLMo-core are raw tokens without a header",
                hint='write its tokens again with open("raw.npy", "wb")'
                f'.write(numpy.load("{path}").tobytes())',
            )

    def rows(self, file: LocalFile, tokens: int, read: Callable[[Any], None]) -> Rows:
        """Yield the starts and ends of documents in a file of comma-separated values.

        Raises:
            IntegrityError: A row is invalid, or the file lists more documents than the tokens allow.
        """
        number = 0
        for text in _whole_rows(file.path, read):
            edges = _edges(file.path, text, number)
            numbers = np.arange(number + 1, number + 1 + len(edges))
            most = np.minimum(edges[:, 1], tokens) + _MOST_EMPTY
            if (numbers > most).any():
                at = int((numbers > most).argmax())
                raise IntegrityError(
                    f"{file.path}: row {numbers[at]}: at most {_MOST_EMPTY} documents must be empty, got "
                    f"{numbers[at]} documents in {most[at] - _MOST_EMPTY} tokens",
                    path=file.path,
                    hint="remove the rows of empty documents, or remove the file to divide the documents at "
                    "the token --eod-id",
                )
            number += len(edges)
            yield edges


def _edges(path: str, text: bytes, before: int) -> Integers:
    """Return the starts and ends in a text that follows some rows.

    Further columns are the id, the source and the line of the document.

    Raises:
        IntegrityError: A row has no start and end, or the text is no CSV.
    """
    # Without quotes a line is a row, and ASCII is UTF-8: a regular expression is three times as fast as csv.
    edges = _PLAIN_ROW.findall(text)
    if len(edges) == text.count(b"\n") and text.endswith(b"\n"):
        return np.fromstring(b",".join(edges), np.int64, sep=",").reshape(-1, 2)
    number = before
    words: list[str] = []
    try:
        if len(text) >= _MAX_LINE_BYTES:
            raise csv.Error(f"a line has {_MAX_LINE_BYTES} or more bytes")  # noqa: TRY301
        for line in csv.reader(io.StringIO(text.decode(), newline="")):
            words += line[:2]
            number += 1
            if len(words) < 2 * (number - before):
                break
        if len(words) == 2 * (number - before) and _are_numbers(words):
            return np.array(list(map(int, words)), np.int64).reshape(-1, 2)
        pairs = zip(words[::2], [*words[1::2], ""], strict=False)
        wrong = next(
            (at for at, pair in enumerate(pairs) if not _are_numbers(list(pair))), number - before - 1
        )
        number = before + wrong + 1
        shown = ",".join(words[2 * wrong :][:2])[:_SHOWN_CHARACTERS]
        reason = f"it must begin with START,END in tokens, got {shown!r}"
    except (csv.Error, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            number = before + text.count(b"\n", 0, error.start)
        number += 1
        reason = f"it is not valid CSV ({error})"
    raise IntegrityError(
        f"{path}: row {number}: {reason}",
        path=path,
        hint="copy the file again, or remove it to divide the documents at the token --eod-id",
    )


def _are_numbers(words: list[str]) -> bool:
    digits = "".join(words)
    return all(words) and digits.isascii() and digits.isdigit() and max(map(len, words)) < 19


def _whole_rows(path: str, read: Callable[[Any], None]) -> Iterator[bytes]:
    """Yield the content of a compressed file in pieces that end with a row."""
    held = b""
    with open_file(path) as file:
        try:
            for chunk in decompressed_chunks(ByteSource(file, path), "gzip", chunk_bytes=_CHUNK_BYTES):
                read(chunk)
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

    DTYPES = _DTYPES
    SUFFIXES = (_TOKENS_SUFFIX, _BOUNDARIES_SUFFIX)
    SHARD_TOKENS = 1 << 30
    DEFAULT_NAME = "part-0"
    HAS_LAST_LABEL = False
    HAS_EMPTY_SHARDS = False
    RULE = "below"
    READER = OlmoReader()

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
            for lines in boundary_lines(self._records, shard):
                file.write(packer.compress(lines))
            file.write(packer.flush())


def boundary_lines(records: Records, shard: ShardRange) -> Iterator[bytes]:
    """Yield the lines about the records of a shard that have tokens.

    The columns are ``start``, ``end``, ``id`` (the number of the record), ``src`` (the file name of the
    dataset) and ``loc`` (the number of the record, from 1).
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow([os.path.basename(records.name).translate(_LINE_BREAKS), ""])
    source = text.getvalue().encode()
    for first, tokens in boundaries(records, shard.first, shard.stop):
        edges = tokens - shard.begin
        numbers = np.arange(first, first + len(edges) - 1)
        filled = np.flatnonzero(edges[1:] > edges[:-1])
        yield _numbered_lines(edges[:-1][filled], edges[1:][filled], numbers[filled], source)


def _numbered_lines(starts: Integers, ends: Integers, numbers: Integers, source: bytes) -> bytes:
    # Formatting in numpy takes a fifth of the time of a loop over the rows.
    if not len(starts):
        return b""
    parts = [
        *_decimal(starts),
        *_constant(b",", len(starts)),
        *_decimal(ends),
        *_constant(b",", len(starts)),
        *_decimal(numbers),
        *_constant(b"," + source, len(starts)),
        *_decimal(numbers + 1),
        *_constant(b"\r\n", len(starts)),
    ]
    characters = np.hstack([part for part, _ in zip(parts[::2], parts[1::2], strict=True)])
    shown = np.hstack(parts[1::2])
    return characters[shown].tobytes()


def _decimal(values: Integers) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    digits = len(str(int(values.max())))
    characters = np.empty((len(values), digits), np.uint8)
    shown = np.ones((len(values), digits), bool)
    for place in reversed(range(digits)):
        if place < digits - 1:
            shown[:, place] = values > 0
        values, rest = values // 10, values
        characters[:, place] = rest - values * 10
    characters += ord("0")
    return characters, shown


def _constant(text: bytes, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    characters = np.broadcast_to(np.frombuffer(text, np.uint8), (rows, len(text)))
    return characters, np.broadcast_to(np.True_, characters.shape)


FORMAT = OlmoFormat
