"""The files of modded-nanogpt, of llm.c, and of NeMo Automodel's NanoGPT dataset.

``NAME_train_000001.bin`` is a header of 256 int32 and the tokens, all little endian. There are two headers:

=============  =========  =======  ======  ==========  ==============
name           magic      version  tokens  item bytes  dtypes
=============  =========  =======  ======  ==========  ==============
``fineweb``    20240520   1        count   0           uint16
``automodel``  278895051  1        count   2 or 4      uint16, uint32
=============  =========  =======  ======  ==========  ==============

The stream of tokens has a BOS token before each document, and no EOD token after it: an EOD token that ends a
document is left out. The stream is cut into shards of equal size, in the middle of documents; the first one
is named ``val``.

Offered to readers of the format: :class:`Header` and its ``parse``, :data:`HEADER_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.exchange.formats import Format, Stage
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.options import HeaderName
from tokshard.exchange.records import CHUNK_RECORDS, Records, begin_of, first_end_above
from tokshard.exchange.shards import Position, ShardRange, WrittenShard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

HEADER_BYTES = 1024
MOST_SHARD_TOKENS = 2**31 - 1
"""The count in the header is an int32."""

_MAGICS: dict[HeaderName, int] = {"fineweb": 20240520, "automodel": 278895051}
_VERSION = 1
_HEADERLESS_HINT = (
    "copy the file again, or if it has no header, as train.bin of nanoGPT, pass --from olmo --source-dtype "
    "uint16 --eod-id ID (50256 for GPT-2)"
)
_BLOCK_TOKENS = 1 << 19
# From this mean length on, copying documents one by one is faster than by masks.
_SLICED_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.

    Attributes:
        kind: ``"fineweb"`` or ``"automodel"``.
        tokens: The number of tokens after the header.
        dtype: Their dtype.
    """

    kind: HeaderName
    tokens: int
    dtype: np.dtype[Any]

    def to_bytes(self) -> bytes:
        """Return the 1,024 bytes of the header.

        Example:
            >>> content = Header("fineweb", 3, np.dtype("<u2")).to_bytes()
            >>> np.frombuffer(content, "<i4")[:4].tolist(), len(content)
            ([20240520, 1, 3, 0], 1024)
        """
        values = np.zeros(HEADER_BYTES // 4, "<i4")
        values[:3] = _MAGICS[self.kind], _VERSION, self.tokens
        if self.kind == "automodel":
            values[3] = self.dtype.itemsize
        return values.tobytes()

    @classmethod
    def parse(cls, content: bytes, path: str) -> Self:
        """Return the header at the beginning of a file.

        Raises:
            IntegrityError: It is none of these headers.
        """
        if len(content) < HEADER_BYTES:
            raise IntegrityError(
                f"{path} must have a header of {HEADER_BYTES} bytes, got {len(content)}",
                path=path,
                hint=_HEADERLESS_HINT,
            )
        magic, version, tokens, item_bytes = np.frombuffer(content, "<i4", 4).tolist()
        kind = {number: name for name, number in _MAGICS.items()}.get(magic)
        if kind is None:
            known = " or ".join(map(str, _MAGICS.values()))
            raise IntegrityError(
                f"{path} must begin with the magic number {known}, got {magic}",
                path=path,
                field="magic",
                hint=_HEADERLESS_HINT,
            )
        if version != _VERSION:
            raise IntegrityError(
                f"{path}: version must be {_VERSION}, got {version}", path=path, field="version"
            )
        if tokens < 0:
            raise IntegrityError(
                f"{path}: tokens must not be negative, got {tokens}", path=path, field="tokens"
            )
        if kind == "automodel" and item_bytes not in {2, 4}:
            raise IntegrityError(
                f"{path}: item bytes must be 2 or 4, got {item_bytes}", path=path, field="item bytes"
            )
        return cls(kind, tokens, np.dtype("<u4" if kind == "automodel" and item_bytes == 4 else "<u2"))


@dataclass(frozen=True, slots=True)
class _Piece:
    # A part of the stream: tokens, the places where documents begin in it, and the document and the place in
    # it where the part begins.
    tokens: NDArray[Any]
    starts: Integers
    first: Position

    def position(self, place: int) -> Position:
        """Return the position in the records of a place in the tokens."""
        before = int(np.searchsorted(self.starts, place, side="right"))
        if not before:
            return Position(self.first.record, self.first.offset + place)
        record = self.first.record + before - (self.first.offset == 0)
        return Position(record, place - int(self.starts[before - 1]))


class NanogptFormat(Format):
    """Writer of nanogpt's files.

    The limit is the default of the script that writes FineWeb for modded-nanogpt.

    Raises:
        UsageError: The parameters do not fit each other or the dtype.
    """

    DTYPES = ("uint16", "uint32")
    SUFFIXES = (".bin",)
    SHARD_TOKENS = 100_000_000

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        super().__init__(records, parameters)
        self._eod_id, self._bos_id = parameters.eod_id, parameters.bos_id or 0
        self._val_shards = parameters.val_shards or 0
        self._header = parameters.header or "fineweb"
        self._room = np.empty(0, self._dtype)
        if self._limit > MOST_SHARD_TOKENS:
            raise UsageError(f"--shard-tokens must be at most {MOST_SHARD_TOKENS:,}, got {self._limit:,}")
        if self._bos_id > int(np.iinfo(self._dtype).max):
            raise UsageError(f"--bos-id must fit {self._dtype.name}, got {self._bos_id}")
        if self._header == "fineweb" and self._dtype.itemsize != 2:
            raise UsageError(
                f"--header fineweb requires uint16 tokens, got {self._dtype.name}",
                hint="pass --header automodel",
            )

    def next_shard(self, number: int, position: Position) -> ShardRange | None:
        """Return the shard that begins at a position; its tokens are those that it will have.

        The tokens are read twice for the last shard, whose size only the ends of its documents decide.
        """
        records, limit = self._records, self._limit
        if position.record >= records.count:
            return None
        begin = begin_of(records, position.record)
        # Leaving out one EOD token for each BOS token, no document becomes shorter.
        tokens = records.tokens - begin - position.offset
        if tokens < limit:
            tokens = 0
            for piece in self._pieces(position):
                tokens += len(piece.tokens)
                if tokens >= limit:
                    break
        return ShardRange(number, position.record, records.count, begin, begin + min(tokens, limit))

    def count_files(self) -> int:
        """Return the number of files if all documents end with the EOD token."""
        return -(-self._records.tokens // self._limit)

    def write(self, shard: ShardRange, position: Position, stage: Stage) -> WrittenShard:
        """Write a shard."""
        wanted, written = shard.tokens, 0
        split = "val" if shard.number < self._val_shards else "train"
        name = f"{self._name}_{split}_{shard.number:06d}.bin"
        following = Position(self._records.count, 0)
        documents = 0
        with stage.file(name, tokens=wanted) as file:
            file.write(Header(self._header, wanted, self._dtype).to_bytes())
            for piece in self._pieces(position):
                count = min(len(piece.tokens), wanted - written)
                file.write(piece.tokens[:count].data)
                documents += int(np.searchsorted(piece.starts, count))
                written += count
                if count < len(piece.tokens):
                    following = piece.position(count)
                    break
        return WrittenShard(stage.take(), following, documents)

    def _pieces(self, position: Position) -> Iterator[_Piece]:
        """Yield the stream from a position on, without empty pieces; each is valid until the next."""
        record, skipped = position.record, position.offset
        records = self._records
        while record < records.count:
            begin = begin_of(records, record)
            stop = first_end_above(records, begin + _BLOCK_TOKENS, first=record)
            stop = min(stop, record + CHUNK_RECORDS)
            found = self._long(record, begin) if stop == record else self._short(record, stop, begin)
            for piece in found:
                size = len(piece.tokens)
                if skipped < size:
                    yield self._cut(piece, skipped)
                skipped = max(0, skipped - size)
            record = max(stop, record + 1)

    def _cut(self, piece: _Piece, skipped: int) -> _Piece:
        if not skipped:
            return piece
        starts = piece.starts[np.searchsorted(piece.starts, skipped) :] - skipped
        return _Piece(piece.tokens[skipped:], starts, piece.position(skipped))

    def _long(self, record: int, begin: int) -> Iterator[_Piece]:
        # A document that is larger than a block.
        end = begin_of(self._records, record + 1)
        last = next(iter(self._conversion.blocks(end - 1, end)))
        end -= int(last[0]) == self._eod_id
        offset = 0
        for block in self._conversion.blocks(begin, end):
            if not offset:
                first = np.array([self._bos_id], self._dtype)
                yield _Piece(np.concatenate([first, block]), np.zeros(1, np.int64), Position(record, 0))
                offset = 1
            else:
                yield _Piece(block, np.empty(0, np.int64), Position(record, offset))
            offset += len(block)

    def _short(self, first: int, stop: int, begin: int) -> Iterator[_Piece]:
        # Documents that together are at most a block.
        edges = np.concatenate(([0], self._records.ends(first, stop) - begin))
        if len(self._room) <= int(edges[-1]):
            self._room = np.empty(max(_BLOCK_TOKENS, int(edges[-1])) + 1, self._dtype)
        room = self._room[: int(edges[-1]) + 1]
        tokens = room[1:]
        self._conversion.fill(tokens, begin)
        is_filled = edges[1:] > edges[:-1]
        lasts = edges[1:][is_filled] - 1
        has_eod = np.zeros(len(lasts), bool)
        if self._eod_id is not None:
            has_eod = tokens[lasts] == self._eod_id
        if np.count_nonzero(has_eod) == stop - first:
            # The common case: each BOS token takes the place of the EOD token before it.
            stream, starts = room[:-1], edges[:-1]
        else:
            lengths = np.diff(edges) + 1
            lengths[is_filled] -= has_eod
            ends = np.cumsum(lengths)
            starts = ends - lengths
            if ends[-1] < _SLICED_TOKENS * len(lengths):
                kept = np.ones(len(tokens), bool)
                kept[lasts[has_eod]] = False
                of_documents = np.ones(int(ends[-1]), bool)
                of_documents[starts] = False
                stream = np.empty(len(of_documents), self._dtype)
                stream[of_documents] = tokens[kept]
            else:
                # The room for a BOS token gets a copy of what is before the document.
                view, stops = room.data, edges[:-1] + lengths
                slices = zip(edges[:-1].tolist(), stops.tolist(), strict=True)
                stream = np.frombuffer(bytearray().join([view[i:j] for i, j in slices]), self._dtype)
        stream[starts] = self._bos_id
        yield _Piece(stream, starts, Position(first, 0))
