"""The files of OLMo-core and of the dolma toolkit.

``NAME-00000.npy`` holds the tokens of whole documents without a header, despite its name: little endian, of
the smallest unsigned dtype that holds the vocabulary, which OLMo-core derives from its own tokenizer
configuration. ``NAME-00000.csv.gz`` has one line per document with tokens: ``start,end,id,src,loc`` with
CRLF, as dolma writes it; OLMo-core reads the first two columns, and dolma's reshard command all five.
Positions count tokens of the file, and the end is exclusive.

Offered to readers of the format: :func:`boundary_path`.
"""

from __future__ import annotations

import csv
import io
import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.background import Background
from tokshard.exchange.formats import Format, Stage
from tokshard.exchange.records import Records, begin_of, boundaries, first_end_above
from tokshard.exchange.shards import Position, ShardRange, WrittenShard, next_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_TOKENS_SUFFIX, _BOUNDARIES_SUFFIX = ".npy", ".csv.gz"
_GZIP = zlib.MAX_WBITS | 16
# Digits compress to a third at any level, and the lowest one is several times as fast as the default.
_LEVEL = 1
_LINE_BREAKS = str.maketrans("\r\n", "  ")


def boundary_path(tokens: str) -> str:
    """Return the name of the file with the boundaries of the documents in a file of tokens.

    Example:
        >>> boundary_path("data/part-0-00000.npy")
        'data/part-0-00000.csv.gz'
    """
    return tokens.removesuffix(_TOKENS_SUFFIX) + _BOUNDARIES_SUFFIX


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

    def next_shard(self, number: int, position: Position) -> ShardRange | None:
        """Return the shard that begins at a position; no shard consists of empty documents."""
        begin = begin_of(self._records, position.record)
        filled = first_end_above(self._records, begin, first=position.record)
        return next_shard(self._records, number, filled, self._limit, "below")

    def count_files(self) -> int:
        """Return the number of files."""
        return 2 * self.count_shards()

    def write(self, shard: ShardRange, position: Position, stage: Stage) -> WrittenShard:  # noqa: ARG002
        """Write the tokens and the boundaries of a shard."""
        name = f"{self._name}-{shard.number:05d}{_TOKENS_SUFFIX}"
        # Formatting and compressing the boundaries takes about as long as copying the tokens.
        boundary_file = Background(lambda: self._write_boundaries(name, shard, stage))
        try:
            with stage.file(name, tokens=shard.tokens) as file:
                for block in self._conversion.blocks(shard.begin, shard.end):
                    file.write(block.data)
        finally:
            boundary_file.exception()  # waits
        boundary_file.result()
        return WrittenShard(stage.take(), Position(shard.stop, 0), 0)

    def _write_boundaries(self, tokens: str, shard: ShardRange, stage: Stage) -> None:
        with stage.file(boundary_path(tokens)) as file:
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
