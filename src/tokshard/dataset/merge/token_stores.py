"""Where the tokens of documents are while a shuffle writes them: in memory, or still in the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokshard.dataset.source import InputFile
from tokshard.errors import StorageError
from tokshard.storage.mapped import copy_mapped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

# Below this mean size, copying tokens by their numbers is faster than slicing the buffer.
_SHORT_BYTES = 100


class TokenStore(Protocol):
    """Tokens of documents at byte positions. Threads may share it."""

    def gather(self, begins: Integers, sizes: Integers, room: Bytes) -> bytes | memoryview:
        """Return the concatenation of ranges of bytes, which may be in ``room``, an array of their size."""

    def release(self) -> None:
        """Free the memory; nothing is read after that."""


class LoadedTokens:
    """Tokens in a buffer, which is returned to a pool afterwards.

    Args:
        buffer: The buffer: uint8.
        itemsize: The bytes of a token.
        pool: The pool.
    """

    def __init__(self, buffer: Bytes, itemsize: int, pool: BufferPool) -> None:
        self._buffer = buffer
        self._itemsize = itemsize
        self._pool = pool

    def gather(self, begins: Integers, sizes: Integers, room: Bytes) -> bytes | memoryview:
        """Return the concatenation of ranges of bytes, which may be in ``room``, an array of their size."""
        if len(room) < _SHORT_BYTES * len(sizes):
            items = self._buffer[: len(self._buffer) // self._itemsize * self._itemsize]
            places = begins // self._itemsize, sizes // self._itemsize
            return ragged(items.view(f"u{self._itemsize}"), *places).data.cast("B")
        view = self._buffer.data
        places_of = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return b"".join([view[begin:end] for begin, end in places_of])

    def release(self) -> None:
        """Return the buffer to the pool."""
        self._pool.put(self._buffer)
        self._buffer = np.empty(0, np.uint8)


MAX_OPEN_INPUTS = 256
"""Inputs that :class:`RandomAccessTokens` keeps open."""


class RandomAccessTokens:
    """Tokens of several files as if these were concatenated.

    They are read at random, so the files should fit into the page cache.

    Args:
        files: The files.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        sizes = np.array([file.size_bytes for file in files], np.int64)
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        self._maps: list[Bytes] = []
        # A limit on address space, or a file system without memory mapping: all documents are read.
        with suppress(StorageError):
            self._maps = [np.frombuffer(file.map() or bytes(1), np.uint8) for file in files]
        self._addresses = np.array([mapped.ctypes.data for mapped in self._maps], np.int64)

    def gather(self, begins: Integers, sizes: Integers, room: Bytes) -> memoryview:
        """Return the concatenation of ranges of bytes, which is in ``room``, an array of their size."""
        filled = np.flatnonzero(sizes)
        begins, sizes = begins[filled], sizes[filled]
        numbers = np.searchsorted(self._ends, begins, side="right")
        offsets = begins - self._begins[numbers]
        done = copy_mapped(self._addresses[numbers] + offsets, sizes, room) if self._maps else 0
        position = int(sizes[:done].sum())
        # Either the system copies none, or the next one cannot be read: its file raises the error.
        rest = zip(numbers[done:].tolist(), offsets[done:].tolist(), sizes[done:].tolist(), strict=True)
        for number, offset, size in rest:
            self._files[number].read_into(room.data[position : position + size], offset)
            position += size
        return room.data

    def release(self) -> None:
        """Close the files."""
        self._files, self._maps = (), []


class BufferPool:
    """Buffers that are used again: new memory costs as much as reading the tokens."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, size: int, capacity: int) -> Bytes:
        """Return a buffer of ``size`` bytes, part of one with room for ``capacity`` bytes if it is new."""
        while self._free:
            buffer = self._free.pop()
            if len(buffer) >= size:
                return buffer
        return np.empty(max(size, capacity), np.uint8)

    def put(self, buffer: Bytes) -> None:
        """Return a buffer."""
        if len(buffer):
            self._free.append(buffer)


def ragged(values: NDArray[Any], first: Integers, counts: Integers) -> NDArray[Any]:
    """Return the concatenation of ``values[first[i] : first[i] + counts[i]]`` for all i."""
    if (counts == 1).all():
        only: NDArray[Any] = values[first]
        return only
    ends = np.cumsum(counts)
    places = np.repeat(first - (ends - counts), counts)
    places += np.arange(places.size)
    gathered: NDArray[Any] = values[places]
    return gathered
