"""Files pinned to the size they had when opened, mapped or read at positions.

Tokens of remote datasets are read by ranges; all other remote files are read whole when they are opened.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokshard.dataset.layout import Buffer
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.storage.paths import BIN_SUFFIX, SIDECAR_SUFFIX, is_remote
from tokshard.storage.reading import open_regular, read_into

if TYPE_CHECKING:
    from tokshard.storage.remote.objects import RemoteStatus

Tokens = NDArray[Any]


class DataFile(Protocol):
    """A file open for reading at positions, with its size at that time; safe to share between threads."""

    path: str
    size_bytes: int

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset."""

    def prefetch(self, offset: int, count: int) -> None:
        """Announce that a range will be read soon; returns immediately."""

    def state(self) -> tuple[int | str, ...]:
        """Return a token that changes when the open file is written to."""


class InputFile:
    """A regular file open for reading, with its size at that time; closed when no longer referenced.

    The content of a remote file is in memory; the object has no descriptor.
    """

    def __init__(self, path: str, known: RemoteStatus | None = None) -> None:
        self.path = path
        self._content: bytes | None = None
        if is_remote(path):
            from tokshard.storage.remote import objects

            self._content = objects.read_whole(path, known or objects.status(path))
            self.size_bytes = len(self._content)
            return
        try:
            self.descriptor = open_regular(path)
        except TokshardError:
            raise
        except IsADirectoryError:
            raise InputError(
                f"cannot read {path}: it is a directory, not a regular file",
                hint="remove it, or replace it with the file",
            ) from None
        except OSError as error:
            raise StorageError("open", path, error) from error
        weakref.finalize(self, _close, self.descriptor)
        self.size_bytes = os.fstat(self.descriptor).st_size

    def is_in_place(self) -> bool:
        """Return whether the path still refers to this file and not to a replacement."""
        if self._content is not None:
            return True
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def state(self) -> tuple[int | str, ...]:
        """Return a token that changes when the open file is written to."""
        if self._content is not None:
            return (self.size_bytes,)  # it does not change in memory
        try:
            status = os.fstat(self.descriptor)
        except OSError as error:
            raise StorageError("read", self.path, error) from error
        return status.st_ino, status.st_size, status.st_mtime_ns

    def map(self) -> Buffer:
        """Map the whole file; return the content of a remote or empty file, which cannot be mapped."""
        if self._content is not None:
            return self._content
        if self.size_bytes == 0:
            return b""
        try:
            return mmap.mmap(self.descriptor, self.size_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            cause = (
                error
                if isinstance(error, OSError)
                else OSError(errno.EIO, "the file was truncated while it was opened")
            )
            raise StorageError("map", self.path, cause) from error

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset; does not move the file position, which forks share."""
        try:
            if self._content is not None:
                block = self._content[offset : offset + len(target)]
                target[: len(block)] = block
                end = offset + len(block)
            else:
                end = offset + read_into(self.descriptor, target, offset)
        except OSError as error:
            raise StorageError("read", self.path, error) from error
        if end < offset + len(target):
            raise IntegrityError(
                f"{self.path} was truncated to {end} bytes (it had {self.size_bytes} when opened)",
                path=self.path,
                offset=end,
                hint="copy both files of the dataset again, or rebuild it",
            )

    def prefetch(self, offset: int, count: int) -> None:
        """Advise the kernel that a range will be read soon."""
        if self._content is None and hasattr(os, "posix_fadvise"):  # not everywhere
            os.posix_fadvise(self.descriptor, offset, count, os.POSIX_FADV_WILLNEED)


def _close(descriptor: int) -> None:
    # A finalizer has no caller for an error, and a file that was only read loses nothing.
    with suppress(OSError):
        os.close(descriptor)


def open_data(path: str, known: RemoteStatus | None = None) -> DataFile:
    """Open a file of a dataset for reading at positions: of a remote file the ``known`` version.

    Raises:
        MissingFileError: The remote file does not exist.
        InputError: It is not a regular file.
        StorageError: It cannot be opened.
    """
    directory, name = os.path.split(path)
    if is_remote(path) and name.endswith(BIN_SUFFIX) and not directory.endswith(SIDECAR_SUFFIX):
        from tokshard.storage.remote.objects import RemoteFile

        return RemoteFile(path, known)
    return InputFile(path, known)


class TokenSource(Protocol):
    """Source of tokens. The range must be inside the file; this is not checked."""

    def read(self, first: int, count: int) -> Tokens:
        """Return ``count`` tokens from token number ``first`` of the file."""


class MappedTokens:
    """Tokens as views of a memory map, which is closed when the last view is gone."""

    def __init__(self, file: InputFile, dtype: np.dtype[Any]) -> None:
        self._tokens = np.frombuffer(file.map(), dtype=dtype)

    def read(self, first: int, count: int) -> Tokens:
        """Return a read-only view."""
        return self._tokens[first : first + count]


class FileTokens:
    """Tokens read from the file on each access."""

    def __init__(self, file: DataFile, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def read(self, first: int, count: int) -> Tokens:
        """Return a new array, or raise IntegrityError if the file was truncated."""
        tokens = np.empty(count, dtype=self._dtype)
        if count:
            self._file.read_into(tokens.data.cast("B"), first * self._dtype.itemsize)
        return tokens
