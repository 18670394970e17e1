"""Telling cheaply whether a file is still the one that a plan was made for, however large it is.

A stamp is the size and the SHA-256 of eight blocks of 4 KiB that are spread evenly over the file, the
first and the last byte among them. It takes eight small reads, so every rank can check every file that it
opens; a file that was made anew differs in it, while a few flipped bits in the middle need not. What reads
files whole is ``tokshard verify --level digest``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Self

from tokshard.dataset.source import DataFile, open_data
from tokshard.errors import IntegrityError, MissingFileError, StorageError
from tokshard.storage.fs import exists

BLOCKS = 8
BLOCK_BYTES = 4096

_HINT = "make the plan again, or put the file back as it was"
_MOVED_HINT = "where the data has moved, map its old place to the new one (roots)"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What is remembered of a file.

    Attributes:
        size_bytes: Its size.
        sample_sha256: The SHA-256 of the blocks, in order, as hex digits. A file of up to 32 KiB is hashed
            whole.
    """

    size_bytes: int
    sample_sha256: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the stamp of a file as it is now.

        Raises:
            MissingFileError: There is no such file.
            StorageError: It cannot be read.
        """
        return cls._of(_opened(path, f"{path} is not there"))

    @classmethod
    def _of(cls, file: DataFile) -> Self:
        digest = hashlib.sha256()
        blocks = _blocks(file.size_bytes)
        for start, stop in blocks[1:]:
            file.prefetch(start, stop - start)
        for start, stop in blocks:
            block = bytearray(stop - start)
            file.read_into(memoryview(block), start)
            digest.update(block)
        return cls(file.size_bytes, digest.hexdigest())

    def check(self, path: str) -> None:
        """Check that a file is the one that was stamped.

        Raises:
            MissingFileError: There is no such file.
            IntegrityError: It is another one.
            StorageError: It cannot be read.
        """
        file = _opened(path, f"{path} is not there, but the plan reads it", hint=_MOVED_HINT)
        if file.size_bytes != self.size_bytes:
            raise IntegrityError(
                f"{path} has changed since the plan was made: it had {self.size_bytes} bytes "
                f"and has {file.size_bytes}",
                path=path,
                hint=_HINT,
            )
        if self._of(file) != self:
            raise IntegrityError(
                f"{path} has changed since the plan was made: its size is the same, but not its content",
                path=path,
                hint=_HINT,
            )

    def to_json(self) -> dict[str, Any]:
        """Return the stamp as JSON values."""
        return {"bytes": self.size_bytes, "sample_sha256": self.sample_sha256}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the stamp that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        if not isinstance(value, dict) or set(value) != {"bytes", "sample_sha256"}:
            raise IntegrityError(f"{path}: a file has not the fields bytes and sample_sha256", path=path)
        size_bytes, sample = value["bytes"], value["sample_sha256"]
        good = isinstance(sample, str) and len(sample) == 64 and set(sample) <= set("0123456789abcdef")
        if type(size_bytes) is not int or size_bytes < 0 or not good:
            raise IntegrityError(
                f"{path}: a file has the bytes {size_bytes!r}, SHA-256 {sample!r}", path=path
            )
        return cls(size_bytes, sample)


def _opened(path: str, missing: str, *, hint: str | None = None) -> DataFile:
    try:
        return open_data(path)
    except (MissingFileError, StorageError):
        if exists(path):
            raise
        raise MissingFileError(missing, path=path, hint=hint) from None


def _blocks(size_bytes: int) -> list[tuple[int, int]]:
    """Return where the blocks of a file start and stop."""
    if size_bytes <= BLOCKS * BLOCK_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - BLOCK_BYTES
    return [(place := last * number // (BLOCKS - 1), place + BLOCK_BYTES) for number in range(BLOCKS)]
