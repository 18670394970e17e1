"""A part: what a worker makes of one unit, as one file that is complete or absent.

Layout (little endian): data, then a JSON footer, then the footer's length in bytes as ``u64``, its
XXH3-128 (16 bytes), and the magic ``TOKPART2``. The data consists of named
*streams*, each a list of extents in the order written:

=================  =========================================================
``tokens.K``       token ids of field K, in the dataset's dtype
``lengths.K``      ``i32``, tokens of each sequence of field K
``sequences.K``    ``u32``, sequences of each document of field K
``offsets``        ``i64``, where each document's record lies in its input
``rejected``       JSON lines, one for each rejected record
=================  =========================================================

Streams of tokens may be *placed* instead: they lie where they belong in the output, in the file ``K.bin``
beside the directory of the parts, and the footer says where.

A part is not forced to the disk: its footer holds the digest of each stream, which are checked before a
run uses what an earlier one has left, so a part that a power cut has damaged is just made again.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tokshard.core.strict_json import parse_json_object
from tokshard.errors import IntegrityError
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AtomicFile
from tokshard.storage.syscalls import Buffer
from tokshard.tokenization.counts import UnitCounts

_MAGIC = b"TOKPART2"
_TAIL = struct.Struct("<Q16s8s")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class UnitKey:
    """Which unit: number of the input file, number of the unit in it. Ordered as the output is."""

    file: int
    index: int

    @property
    def part_name(self) -> str:
        """The file name of the unit's part."""
        return f"{self.file:06d}-{self.index:09d}.part"

    def following(self, *, last: bool) -> UnitKey:
        """Return the unit after this one, which is the ``last`` of its file or is not."""
        return UnitKey(self.file + 1, 0) if last else UnitKey(self.file, self.index + 1)


def token_file(stream: str) -> str:
    """Return the name of the output file in which a stream of tokens belongs.

    Example:
        >>> token_file("tokens.0")
        '0.bin'
    """
    return f"{int(stream.removeprefix('tokens.'))}.bin"


class PartWriter:
    """Writes the part of one unit; a context manager that commits the file when left normally.

    Args:
        path: The final name of the part.
    """

    def __init__(self, path: str) -> None:
        self._file = AtomicFile(path, durable=False)
        self._extents: dict[str, list[tuple[int, int]]] = {}
        self._digests: dict[str, Any] = {}
        self._placed: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def write(self, stream: str, buffer: Buffer) -> None:
        """Append ``buffer`` to one of the part's streams."""
        import xxhash

        if stream not in self._digests:
            self._digests[stream] = xxhash.xxh3_128()
            self._extents[stream] = []
        size = memoryview(buffer).nbytes
        if size:
            self._digests[stream].update(buffer)
            self._extents[stream].append((self._file.size_bytes, size))
            self._file.write(buffer)

    def place(self, stream: str, buffers: Sequence[Buffer], offset: int) -> None:
        """Note that a stream of tokens, made of ``buffers``, lies in the output from ``offset`` on."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._placed[stream] = {"offset": offset, "bytes": size, "xxh3_128": content_digest(*buffers)}

    def finish(self, header: dict[str, Any]) -> None:
        """Write the footer: ``header`` and the table of streams."""
        streams = {
            name: {"extents": self._extents[name], "xxh3_128": self._digests[name].hexdigest()}
            for name in self._extents
        }
        content = {**header, "streams": streams, "placed": self._placed}
        footer = json.dumps(content, separators=(",", ":")).encode()
        self._file.write(footer)
        self._file.write(_TAIL.pack(len(footer), bytes.fromhex(content_digest(footer)), _MAGIC))

    def discard(self) -> None:
        """Give the part up: nothing is committed."""
        self._file.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)


class PartReader:
    """Reads a part. Use as a context manager.

    Args:
        path: The part.

    Raises:
        IntegrityError: The file is cut, or not a part.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._buffer = bytearray(_COPY_BYTES)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._footer = self._read_footer()
            self.unit = UnitKey(*self._footer["unit"])
            self.counts = UnitCounts.from_json(self._footer["counts"])
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise IntegrityError(f"{path} is not a complete part: {error}", path=path) from error

    @property
    def last(self) -> bool:
        """Whether the unit is the last of its file."""
        return bool(self._footer["last"])

    @property
    def engine(self) -> str:
        """The name of the engine that encoded the unit."""
        return str(self._footer["engine"])

    @property
    def input_bytes(self) -> int:
        """On-disk input bytes that the unit stands for."""
        return int(self._footer["input_bytes"])

    @property
    def content_digest(self) -> str:
        """XXH3-128 of the unit's decompressed input."""
        return str(self._footer["content_xxh3_128"])

    def digest(self, stream: str) -> str:
        """Return the recorded XXH3-128 of a stream."""
        return str((self._footer["placed"].get(stream) or self._stream(stream))["xxh3_128"])

    @property
    def token_bytes(self) -> tuple[int, ...]:
        """The bytes of each field's tokens, wherever they lie."""
        return tuple(self._size(f"tokens.{k}") for k in range(len(self.counts.fields)))

    def placed(self, stream: str) -> range | None:
        """Return where the stream lies in the output, in bytes; None if it lies in the part."""
        entry = self._footer["placed"].get(stream)
        return entry and range(entry["offset"], entry["offset"] + entry["bytes"])

    def chunks(self, stream: str) -> Iterator[memoryview]:
        """Yield a stream that is not placed in pieces of at most 1 MiB, and check its digest at the end.

        Each piece is valid until the next is asked for: they share one buffer, which stays in the cache.

        Raises:
            IntegrityError: The stream is not what was written.
        """
        entry = self._stream(stream)
        return self._checked(self._descriptor, entry["extents"], stream)

    def read(self, stream: str) -> bytes:
        """Return a whole stream; see :meth:`chunks`."""
        return b"".join(bytes(chunk) for chunk in self.chunks(stream))

    def verify(self) -> None:
        """Check the digest of every stream, the placed ones where they lie.

        Raises:
            IntegrityError: One of them is damaged.
        """
        for stream in self._footer["streams"]:
            for _ in self.chunks(stream):
                pass
        for stream in self._footer["placed"]:
            self._verify_placed(stream)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.close()

    def _size(self, stream: str) -> int:
        if (place := self.placed(stream)) is not None:
            return len(place)
        return sum(size for _, size in self._stream(stream)["extents"])

    def _verify_placed(self, stream: str) -> None:
        work_directory = os.path.dirname(os.path.dirname(self.path))
        entry = self._footer["placed"][stream]
        try:
            descriptor = os.open(
                os.path.join(work_directory, token_file(stream)),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except OSError as error:
            raise IntegrityError(
                f"{self.path}: the tokens cannot be read: {error}", path=self.path
            ) from error
        try:
            for _ in self._checked(descriptor, [(entry["offset"], entry["bytes"])], stream):
                pass
        finally:
            os.close(descriptor)

    def _checked(
        self, descriptor: int, extents: Iterable[tuple[int, int]], stream: str
    ) -> Iterator[memoryview]:
        import xxhash

        state = xxhash.xxh3_128()
        for offset, size in extents:
            for position in range(offset, offset + size, _COPY_BYTES):
                wanted = memoryview(self._buffer)[: offset + size - position]
                chunk = wanted[: os.preadv(descriptor, [wanted], position)]
                state.update(chunk)
                yield chunk
        if state.hexdigest() != self.digest(stream):
            raise IntegrityError(f"{self.path}: the stream {stream} is damaged", path=self.path, field=stream)

    def _stream(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._footer["streams"][name]
        return entry

    def _read_footer(self) -> dict[str, Any]:
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, _TAIL.size, max(0, size - _TAIL.size))
        if len(tail) != _TAIL.size:
            raise ValueError("too short")
        length, digest, magic = _TAIL.unpack(tail)
        if magic != _MAGIC or length > size - _TAIL.size:
            raise ValueError("no footer")
        content = os.pread(self._descriptor, length, size - _TAIL.size - length)
        if bytes.fromhex(content_digest(content)) != digest:
            raise ValueError("a damaged footer")
        return parse_json_object(content, self.path)
