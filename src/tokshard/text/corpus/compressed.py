"""Compressed streams as plain bytes: gzip, bzip2, xz and zstd behind one loop.

A file can consist of several concatenated members (gzip), streams (bzip2, xz) or frames (zstd, including
skippable ones); zero bytes after a member are padding. Memory is bounded by the sizes below plus the
decompressor's window, whatever the stream declares.
"""

from __future__ import annotations

import bz2
import lzma
import re
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from tokshard.dataset.parameters import Compression
from tokshard.errors import InputError, TokshardError

CHUNK_BYTES = 1 << 20
# Compressed bytes per call. The end of each member copies the rest of them (`unused_data`), so a larger
# value makes files of many small members (bgzip) slow.
FEED_BYTES = 1 << 17
# Enough for an xz dictionary of 128 MiB, which is also zstd's limit; protects against decompression bombs.
_XZ_MEMORY_BYTES = 160 << 20
# No magic number is longer.
_MAGIC_BYTES = 8
# An object with the attributes and methods of bz2.BZ2Decompressor.
_Decompressor = Any


class CompressionFormat(NamedTuple):
    """Descriptor of a compression.

    Attributes:
        name: Its name in manifests, and of the program that packs and unpacks it.
        suffix: The ending of its files.
        magic: Pattern of the first bytes.
        tar_option: The options with which ``tar`` extracts an archive in it.
        decompressor: Returns the function that makes a decompressor, and the exception of damaged data.
    """

    name: Compression
    suffix: str
    magic: re.Pattern[bytes]
    tar_option: str
    decompressor: Callable[[], tuple[Callable[[], _Decompressor], type[Exception]]]

    @property
    def unpack(self) -> str:
        """The command that writes the content of the file named after it to standard output."""
        return f"{self.name} -dc"


def _gzip() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    from isal import igzip_lib

    failure = cast("type[Exception]", igzip_lib.IsalError)
    return lambda: igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP), failure


def _bzip2() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    return bz2.BZ2Decompressor, OSError


def _xz() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES), lzma.LZMAError


def _zstd() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor, zstd.ZstdError


COMPRESSIONS = (
    CompressionFormat("gzip", ".gz", re.compile(rb"\x1f\x8b"), "-xzf", _gzip),
    CompressionFormat("bzip2", ".bz2", re.compile(rb"BZh[1-9]"), "-xjf", _bzip2),
    CompressionFormat("xz", ".xz", re.compile(rb"\xfd7zXZ\0"), "-xJf", _xz),
    CompressionFormat(
        "zstd",
        ".zst",
        # pzstd begins a file with a skippable frame, whose magic number has sixteen forms.
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        "--zstd -xf",
        _zstd,
    ),
)
"""The compressions of inputs. Another one is added here, and to the names in manifests."""

COMPRESSION_SUFFIXES = tuple(compression.suffix for compression in COMPRESSIONS)


def sniff(head: bytes) -> CompressionFormat | None:
    """Return the compression of a stream with these first bytes; None for plain text.

    Example:
        >>> sniff(b"BZh91AY&SY").name, sniff(b'{"text": "a"}')
        ('bzip2', None)
    """
    return next((compression for compression in COMPRESSIONS if compression.magic.match(head)), None)


class CorruptStreamError(Exception):
    """A truncated or damaged compressed stream; internal, never shown to users.

    Args:
        offset: Offset in the compressed file: exact for a truncated stream and for trailing bytes,
            otherwise the beginning of the :data:`FEED_BYTES` that could not be decompressed.
    """

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(detail)
        self.offset = offset
        self.detail = detail


class ByteSource:
    """Sequential reader of a binary file or pipe.

    ``read`` returns fewer bytes than requested only at the end, also for a pipe.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._head = b""
        self.path = path
        self.position = 0

    def head(self, size_bytes: int) -> bytes:
        """Return the next ``size_bytes`` (fewer at the end) without consuming them."""
        self._head += self._fill(size_bytes - len(self._head))
        return self._head[:size_bytes]

    def read(self, size_bytes: int) -> bytes:
        """Return and consume the next ``size_bytes`` (fewer at the end, then none)."""
        head, self._head = self._head[:size_bytes], self._head[size_bytes:]
        block = head + self._fill(size_bytes - len(head)) if head else self._fill(size_bytes)
        self.position += len(block)
        return block

    def _fill(self, size_bytes: int) -> bytes:
        if size_bytes <= 0:
            return b""
        try:
            return self._file.read(size_bytes)
        except TokshardError:
            raise
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error


def decompressed_chunks(
    source: ByteSource, compression: Compression, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[bytes]:
    """Yield the content of a stream in chunks of 1 to ``chunk_bytes`` bytes.

    Raises:
        CorruptStreamError: After all chunks that can be decompressed.
        InputError: The file cannot be read, or needs a window over 128 MiB.
    """
    if compression == "none":
        while chunk := source.read(chunk_bytes):
            yield chunk
        return
    codec = next(codec for codec in COMPRESSIONS if codec.name == compression)
    make, failure = codec.decompressor()
    pending = source.read(FEED_BYTES)
    while pending:
        pending = yield from _member_chunks(make(), failure, pending, source, chunk_bytes)
        pending = _next_member(pending, source, codec)


def _member_chunks(
    decompressor: _Decompressor,
    failure: type[Exception],
    data: bytes,
    source: ByteSource,
    chunk_bytes: int,
) -> Generator[bytes, None, bytes]:
    member_start = fed_from = source.position - len(data)
    while True:
        try:
            chunk = decompressor.decompress(data, chunk_bytes)
        except failure as error:
            # In later members the same message more likely comes from bytes that are not compressed data.
            if member_start == 0:
                _refuse_large_window(error, source.path)
            raise CorruptStreamError(
                fed_from, f"cannot decompress the stream after compressed byte {fed_from}: {error}"
            ) from error
        if chunk:
            yield chunk
        if decompressor.eof:
            unused: bytes = decompressor.unused_data
            return unused
        data = b""
        if decompressor.needs_input:
            fed_from = source.position
            data = source.read(FEED_BYTES)
            if not data:
                raise CorruptStreamError(
                    fed_from, f"the compressed stream is truncated at compressed byte {fed_from}"
                )


def _next_member(pending: bytes, source: ByteSource, compression: CompressionFormat) -> bytes:
    while True:
        pending = pending.lstrip(b"\0")
        if pending:
            break
        pending = source.read(FEED_BYTES)
        if not pending:
            return b""
    if len(pending) < _MAGIC_BYTES:
        pending += source.read(_MAGIC_BYTES)
    if sniff(pending) is not compression:
        offset = source.position - len(pending)
        raise CorruptStreamError(
            offset, f"unexpected data after the end of the compressed stream, at compressed byte {offset}"
        )
    return pending


def _refuse_large_window(error: Exception, path: str) -> None:
    text = str(error)
    if "too much memory" in text or "Memory usage limit" in text:
        raise InputError(
            f"cannot read {path}: its compression window is larger than 128 MiB",
            hint="decompress it into a pipe: zstd -dc --long=31 FILE (or xz -dc FILE) | tokshard tokenize -",
        ) from error
