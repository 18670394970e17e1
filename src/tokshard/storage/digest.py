"""Digests of files, of parts of files and of JSON values.

Bulk data carries XXH3-128 (detects accidents, not attacks; runs at memory speed). Small descriptions that
identify something (a tokenizer, a plan) carry SHA-256. Both are written as lower-case hex.

The *piecewise digest* of a file that consists of pieces is the XXH3-128 of the 16-byte digests of its
pieces, in order. Pieces can be checked in parallel or individually, and a merge can copy them without
reading the data again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tokshard.core.codec import XXH3_128, Key
from tokshard.storage import reading

if TYPE_CHECKING:
    from tokshard.storage.syscalls import Buffer

READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and digest of a file."""

    size_bytes: Annotated[int, Key("bytes", "Size in bytes.", minimum=0)]
    xxh3_128: Annotated[str, Key("xxh3_128", "XXH3-128 of the content.", pattern=XXH3_128)]


def content_digest(*buffers: Buffer) -> str:
    """Return the XXH3-128 of the concatenation of ``buffers`` as 32 hex digits.

    Example:
        >>> content_digest(b"ab", b"c") == content_digest(b"abc")
        True
    """
    import xxhash

    state = xxhash.xxh3_128()
    for buffer in buffers:
        state.update(buffer)
    return state.hexdigest()


def file_digest(path: str) -> str:
    """Return the XXH3-128 of a file's content as 32 hex digits."""
    import xxhash

    state = xxhash.xxh3_128()
    with reading.open_file(path) as file:
        while chunk := file.read(READ_BYTES):
            state.update(chunk)
    return state.hexdigest()


def piecewise_digest(pieces: Iterable[str]) -> str:
    """Return the piecewise digest from the digests of the pieces, in order (see the module docstring)."""
    return content_digest(*(bytes.fromhex(piece) for piece in pieces))


def identity_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form (sorted keys, no spaces, ASCII)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
