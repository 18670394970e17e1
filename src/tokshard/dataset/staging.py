"""Staging: complete output files that are still in the work directory, with their manifest entries.

For output ``K`` the staged files are ``K.bin``, ``K.idx``, and ``K.<sidecar>`` for each file of
``PREFIX.tokshard/``, the manifest included. All are forced to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from tokshard.dataset.manifest import MANIFEST_NAME, FileRecord, Manifest
from tokshard.storage.digest import READ_BYTES
from tokshard.storage.files import AtomicFile
from tokshard.storage.syscalls import Buffer


class DigestingWriter:
    """A file that is digested while it is written."""

    def __init__(self, file: AtomicFile) -> None:
        import xxhash

        self._file = file
        self._state = xxhash.xxh3_128()

    def write(self, buffer: Buffer) -> None:
        """Append ``buffer``."""
        self._state.update(buffer)
        self._file.write(buffer)

    def record(self) -> FileRecord:
        """Return the size and digest of what has been written."""
        return FileRecord(self._file.size_bytes, self._state.hexdigest())


def stage_file(directory: str, k: int, name: str, write: Callable[[DigestingWriter], object]) -> FileRecord:
    """Let ``write`` write a staged file; return its entry in the manifest."""
    with AtomicFile(os.path.join(directory, f"{k}.{name}")) as file:
        digested = DigestingWriter(file)
        write(digested)
    return digested.record()


def stage_chunks(directory: str, k: int, name: str, chunks: Iterable[Buffer]) -> FileRecord:
    """Write a staged file of chunks; return its entry in the manifest."""

    def write(file: DigestingWriter) -> None:
        for chunk in chunks:
            file.write(chunk)

    return stage_file(directory, k, name, write)


def stage_manifest(directory: str, k: int, manifest: Manifest) -> None:
    """Write a staged manifest.

    Raises:
        IntegrityError: No reader would accept it; it is not written.
    """
    content = manifest.to_bytes()
    Manifest.from_bytes(content, MANIFEST_NAME)
    stage_chunks(directory, k, MANIFEST_NAME, [content])


def file_chunks(path: str) -> Iterator[bytes]:
    """Yield a file of ours in chunks of at most 4 MiB."""
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            yield chunk
