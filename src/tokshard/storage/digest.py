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
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from tokshard.core.codec import Count, Document, Record, Xxh3
from tokshard.errors import MissingFileError, StorageError
from tokshard.storage.reading import iter_blocks

if TYPE_CHECKING:
    from tokshard.storage.syscalls import Buffer

DocumentT = TypeVar("DocumentT", bound=Document)


@dataclass(frozen=True, slots=True)
class FileRecord(Record):
    """Size and digest of a file.

    Attributes:
        size_bytes: Size in bytes.
        xxh3_128: XXH3-128 of the content.
    """

    size_bytes: Count
    xxh3_128: Xxh3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState(Record):
    """A file as it was when it was read: equal states mean equal contents.

    Attributes:
        path: Path or URL, as the user named it.
        size_bytes: Size in bytes. Null for a stream.
        mtime_ns: Modification time in ns since 1970. Null if it is unknown.
        version: Version of an object in a store, such as its ETag. Absent for other files.
    """

    path: str
    size_bytes: Count | None
    mtime_ns: int | None
    version: str | None = None

    @classmethod
    def of(cls, path: str, **fields: Any) -> Self:
        """Return the current state of a local file; ``fields`` are those of a subclass.

        Raises:
            MissingFileError: It does not exist.
            StorageError: Its state cannot be read.
        """
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(f"file not found: {path}", path=path) from None
        except OSError as error:
            raise StorageError("read", path, error) from error
        return cls(path=path, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, **fields)

    @property
    def state(self) -> FileState:
        """The state alone, without what a subclass adds."""
        return FileState(
            path=self.path, size_bytes=self.size_bytes, mtime_ns=self.mtime_ns, version=self.version
        )


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
    for block in iter_blocks(path):
        state.update(block)
    return state.hexdigest()


def piecewise_digest(pieces: Iterable[str]) -> str:
    """Return the piecewise digest from the digests of the pieces, in order (see the module docstring)."""
    import xxhash

    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(bytes.fromhex(piece))
    return state.hexdigest()


UNSEALED = "0" * 64
"""The seal of a document before :func:`sealed`."""


def seal_of(value: dict[str, Any]) -> str:
    """Return the SHA-256 of all fields of a document, as JSON, except its seal.

    Example:
        >>> seal_of({"counts": 1}) == seal_of({"counts": 1, "seal": "0"})
        True
    """
    return identity_digest({name: part for name, part in value.items() if name != "seal"})


def sealed(document: DocumentT) -> DocumentT:
    """Return a document whose field ``seal`` is that of its other fields."""
    fields: Any = document
    return cast("DocumentT", replace(fields, seal=seal_of(document.to_json())))


def identity_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form (sorted keys, no spaces, ASCII)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
