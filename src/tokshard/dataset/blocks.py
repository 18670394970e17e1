"""Checks of the blocks of a ``.bin`` file against recorded digests, each before its first use.

A block is the piece of the file that a unit of work wrote, or a piece of a shuffled dataset. Its digest
is in a line of ``units.jsonl`` or ``pieces.jsonl``, and the manifest has the digest of all these digests. A
block is read whole when a part of it is needed for the first time, so what random access reads in the end is
the whole file, once for each process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.pieces import pieces_path, read_pieces
from tokshard.dataset.source import DataFile
from tokshard.errors import IntegrityError, UsageError
from tokshard.storage.digest import piecewise_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ_BYTES = 1 << 20
_HINT = "restore the file from its source; tokshard verify lists all damaged pieces"


class TokenBlocks:
    """The blocks of an open ``.bin`` file that have been compared with their digests. Threads may share it.

    Args:
        file: The file.
        edges: The first byte of each block, and the size of the file: int64 of shape (blocks + 1,).
        digests: The XXH3-128 of each block.
        sound: True for blocks that have been compared: bool of shape (blocks,); None for none of them.
    """

    def __init__(
        self,
        file: DataFile,
        edges: NDArray[np.int64],
        digests: list[str],
        sound: NDArray[np.bool_] | None = None,
    ) -> None:
        self._file = file
        self._edges = edges
        self._digests = digests
        self._sound = np.zeros(len(digests), bool) if sound is None else sound

    @classmethod
    def read(cls, path_prefix: str, file: DataFile, expected: DatasetFingerprint) -> Self:
        """Return the blocks of a dataset, none of them compared yet.

        Args:
            path_prefix: The dataset.
            file: Its ``.bin`` file.
            expected: The fingerprint that it must have, as far as it is known.

        Raises:
            UsageError: The dataset has no manifest, or the package xxhash is not installed.
            IntegrityError: Manifest and units are damaged, or not those of the file.
            StorageError: They cannot be read.
        """
        require_xxhash()
        manifest = read_manifest(path_prefix)
        if manifest is None:
            raise UsageError(
                f"cannot verify the tokens of {path_prefix}: it has no manifest, and so no digests",
                hint=f"run tokshard verify --adopt {path_prefix} first, or do not pass verify",
            )
        record, path = manifest.files.bin, pieces_path(path_prefix, manifest)
        units = list(read_pieces(path_prefix, manifest))
        sizes = (
            np.array([unit.tokens for unit in units], np.int64) * np.dtype(manifest.dataset.dtype).itemsize
        )
        edges = np.concatenate(([0], np.cumsum(sizes[sizes > 0], dtype=np.int64)))
        found = int(edges[-1]), piecewise_digest(unit.tokens_xxh3_128 for unit in units)
        wanted = file.size_bytes, expected.bin_pieces_xxh3_128 or record.pieces_xxh3_128
        if found != wanted:
            raise IntegrityError(
                f"{path} must describe {wanted[0]} bytes with the piecewise digest {wanted[1]}, got "
                f"{found[0]} bytes with {found[1]}",
                path=path,
                hint="restore all files of the dataset from their source",
            )
        return cls(file, edges, [unit.tokens_xxh3_128 for unit in units if unit.tokens])

    def reopened(self, file: DataFile) -> Self:
        """Return these blocks of a file that was opened again and has not changed."""
        return type(self)(file, self._edges, self._digests, self._sound)

    @property
    def is_complete(self) -> bool:
        """True if all blocks have been compared."""
        return bool(self._sound.all())

    def require(self, firsts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Compare the blocks that byte ranges touch and that have not been compared yet.

        Args:
            firsts: The first byte of each range.
            sizes: The bytes of each range.

        Raises:
            IntegrityError: A block is damaged.
            InputError, StorageError: The file cannot be read.
        """
        filled = sizes > 0
        firsts, lasts = firsts[filled], firsts[filled] + sizes[filled] - 1
        begins, ends = (np.searchsorted(self._edges, edges, "right") for edges in (firsts, lasts))
        if np.all(ends - begins <= 1) and np.all(self._sound[begins - 1]) and np.all(self._sound[ends - 1]):
            return
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for block in range(begin - 1, end):
                if not self._sound[block]:
                    self._compare(block)

    def _compare(self, block: int) -> None:
        import xxhash

        first, last = (int(edge) for edge in self._edges[block : block + 2])
        buffer = memoryview(bytearray(min(_READ_BYTES, last - first)))
        state = xxhash.xxh3_128()
        self._file.prefetch(first, last - first)
        for offset in range(first, last, _READ_BYTES):
            piece = buffer[: last - offset]
            self._file.read_into(piece, offset)
            state.update(piece)
        if state.hexdigest() != self._digests[block]:
            raise IntegrityError(
                f"{self._file.path}: block {block} (bytes {first} to {last - 1}) must have the digest "
                f"{self._digests[block]}, got {state.hexdigest()}",
                path=self._file.path,
                offset=first,
                hint=_HINT,
            )
        self._sound[block] = True


def require_xxhash() -> None:
    """Raise UsageError if the package of the digests is not installed: reading needs only numpy."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        raise UsageError(
            "verifying tokens requires the package xxhash, which is not installed", hint="pip install xxhash"
        ) from None
