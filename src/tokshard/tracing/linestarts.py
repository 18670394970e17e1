"""Where lines begin in a part of an input, counted in the file itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokshard.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.dataset.plan import Compression
from tokshard.errors import InputError
from tokshard.storage.remote.objects import open_binary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEWLINE = 10


def line_starts(
    path: str, compression: Compression, first_byte: int, size_bytes: int
) -> NDArray[np.int64] | None:
    """Return where the lines of a part of an input begin.

    A plain file is read at the place; of a compressed one everything before it must be decompressed.
    Memory: the part and 8 bytes for each of its lines.

    Args:
        path: The input.
        compression: How it is compressed.
        first_byte: Where the part begins in the decompressed input, which is where a line begins.
        size_bytes: Its size there.

    Returns:
        Offsets in the decompressed input, int64, ascending; None if the input is not there, cannot be read
        or ends before the part does.
    """
    try:
        with open_binary(path) as file:
            if compression == "none":
                file.seek(first_byte)
                content = file.read(size_bytes)
            else:
                chunks = decompressed_chunks(ByteSource(file, path), compression)
                content = b"".join(_part(chunks, first_byte, size_bytes))
    except (OSError, InputError, CorruptStreamError):
        return None
    if len(content) != size_bytes:
        return None
    newlines = np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE)
    starts = np.concatenate((np.zeros(1, np.int64), newlines + 1))
    return starts[starts < size_bytes] + first_byte


def _part(chunks: Iterator[bytes], first_byte: int, size_bytes: int) -> Iterator[bytes]:
    position, stop = 0, first_byte + size_bytes
    for chunk in chunks:
        yield chunk[max(0, first_byte - position) : max(0, stop - position)]
        position += len(chunk)
        if position >= stop:
            return
