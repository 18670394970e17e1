"""Files as they are read: opened once, with the size they had then, mapped or read at positions.

Of remote datasets the tokens are read by ranges; all other files are read from a local copy.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokshard.dataset.layout import Buffer
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.storage.fs import open_descriptor
from tokshard.storage.paths import BIN_SUFFIX, SIDECAR_SUFFIX, is_remote

Tokens = NDArray[Any]


class DataFile(Protocol):
    """A file open for reading at positions, with the size that it had then. Threads may share it."""

    path: str
    size_bytes: int

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset."""

    def prefetch(self, offset: int, count: int) -> None:
        """Say that a range will be read soon, and return at once."""


class InputFile:
    """A regular file open for reading, with the size that it had then; closed when nobody holds it.

    A remote file is its local copy, see :mod:`tokshard.storage.remote.local_copy`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = open_descriptor(path)
        except TokshardError:
            raise
        except OSError as error:
            raise StorageError("open", path, error) from error
        weakref.finalize(self, os.close, self.descriptor)
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a regular file")
        self.size_bytes = status.st_size

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to this file, and not to one that has replaced it."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def map(self) -> Buffer:
        """Map the whole file; an empty file, which cannot be mapped, is the empty buffer."""
        if self.size_bytes == 0:
            return b""
        try:
            return mmap.mmap(self.descriptor, self.size_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            cause = (
                error if isinstance(error, OSError) else OSError(errno.EIO, "it shrank while it was opened")
            )
            raise StorageError("map", self.path, cause) from error

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset, without moving a file position that a fork may share."""
        while target:
            try:
                count = os.preadv(self.descriptor, [target], offset)
            except OSError as error:
                raise StorageError("read", self.path, error) from error
            if count == 0:
                raise IntegrityError(
                    f"{self.path} ends at byte {offset}, but had {self.size_bytes} bytes when it was opened",
                    path=self.path,
                    offset=offset,
                    hint="another program has cut it short: copy the pair again, or make it again",
                )
            target = target[count:]
            offset += count

    def prefetch(self, offset: int, count: int) -> None:
        """Tell the kernel that a range will be read soon."""
        if hasattr(os, "posix_fadvise"):  # not everywhere
            os.posix_fadvise(self.descriptor, offset, count, os.POSIX_FADV_WILLNEED)


def open_data(path: str) -> DataFile:
    """Open a file of a dataset for reading at positions.

    Raises:
        MissingFileError: There is no such remote file.
        InputError: It is no regular file.
        StorageError: It cannot be opened.
    """
    directory, name = os.path.split(path)
    if is_remote(path) and name.endswith(BIN_SUFFIX) and not directory.endswith(SIDECAR_SUFFIX):
        from tokshard.storage.remote.ranged_file import RangedFile

        return RangedFile(path)
    return InputFile(path)


class TokenSource(Protocol):
    """Source of tokens. It trusts its caller: the range lies inside the file as it was opened."""

    def read(self, first: int, count: int) -> Tokens:
        """Return ``count`` tokens from token number ``first`` of the file."""


class MappedTokens:
    """Tokens as views of a map. The map is never closed by hand: the views hold it as long as they live."""

    def __init__(self, file: InputFile, dtype: np.dtype[Any]) -> None:
        self._tokens = np.frombuffer(file.map(), dtype=dtype)

    def read(self, first: int, count: int) -> Tokens:
        """Return a read-only view."""
        return self._tokens[first : first + count]


class FileTokens:
    """Tokens read from the file at each access."""

    def __init__(self, file: DataFile, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def read(self, first: int, count: int) -> Tokens:
        """Return a new array, or raise IntegrityError where the file has been cut short."""
        tokens = np.empty(count, dtype=self._dtype)
        if count:
            self._file.read_into(tokens.data.cast("B"), first * self._dtype.itemsize)
        return tokens
