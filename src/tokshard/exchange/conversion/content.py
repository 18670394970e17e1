"""The content of a token file: its units of work with their digests, and blocks of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokshard.dataset.source import InputFile
from tokshard.errors import InputError
from tokshard.exchange.conversion.files import TokenFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Consecutive tokens of a file, all of one unit.

    Attributes:
        tokens: The tokens; valid, and free to change, until the next block is requested.
        first: The number of the first one in the file.
        unit: The unit.
        stop: The token that ends the unit.
    """

    tokens: NDArray[Any]
    first: int
    unit: int
    stop: int


class FileContent:
    """A token file that is read once, in order.

    A unit is a range of about 64 MiB of the file; the first one includes the header.

    Attributes:
        digests: The XXH3-128 of the bytes of each unit whose last block has been yielded.

    Raises:
        InputError: The file has changed since its header was read.
        StorageError: It cannot be opened.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._data = InputFile(file.path)
        if self._data.size_bytes != file.state.size_bytes:
            raise InputError(
                f"{file.path} had {file.state.size_bytes} bytes and now has {self._data.size_bytes}",
                hint="run the same command again when no process writes the file",
            )
        itemsize = file.dtype.itemsize
        size = file.tokens * itemsize
        inner = range(UNIT_BYTES, size, UNIT_BYTES)
        self._edges = [0, *(file.header_bytes + edge for edge in inner), file.state.size_bytes]
        self.digests: dict[int, str] = {}

    @property
    def units(self) -> int:
        """The number of units, at least 1."""
        return len(self._edges) - 1

    def unit_bytes(self, unit: int) -> int:
        """Return the size of a unit."""
        return self._edges[unit + 1] - self._edges[unit]

    def blocks(self, first: int) -> Iterator[TokenBlock]:
        """Yield the tokens from token ``first`` on; at least one block, even if there are no tokens.

        The unit of that token is digested from its beginning.
        """
        header, itemsize = self._file.header_bytes, self._file.dtype.itemsize
        buffer = np.empty(min(BLOCK_BYTES, self._file.state.size_bytes), np.uint8)
        begin = header + first * itemsize
        unit = next(
            number
            for number in range(self.units)
            if begin < self._edges[number + 1] or number == self.units - 1
        )
        for number in range(unit, self.units):
            state = xxhash.xxh3_128()
            position, end = self._edges[number], self._edges[number + 1]
            begin = max(begin, position)
            while position < begin:
                size = min(len(buffer), begin - position)
                self._read(buffer[:size], position, state)
                position += size
            while True:
                size = min(len(buffer), end - position)
                block = buffer[:size]
                self._read(block, position, state)
                position += size
                if position == end:
                    self.digests[number] = state.hexdigest()
                yield TokenBlock(
                    block.view(self._file.dtype),
                    (position - size - header) // itemsize,
                    number,
                    (end - header) // itemsize,
                )
                if position == end:
                    break

    def _read(self, block: NDArray[np.uint8], position: int, state: Any) -> None:
        view = block.data
        self._data.read_into(view, position)
        self._data.prefetch(position + len(view), BLOCK_BYTES)
        state.update(view)
