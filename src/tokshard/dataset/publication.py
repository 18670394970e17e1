"""Staged files and their publication, in an order in which no crash shows a false dataset.

For output ``K`` the staged files are ``K.bin``, ``K.idx``, and ``K.<sidecar>`` for each file of
``PREFIX.tokshard/``, the manifest included; all are forced to the disk. Then, for each output: the old
manifest and the old ``.idx`` are removed (so that no old index is beside new tokens), and ``.bin``,
``.idx``, the sidecar files and last the manifest get their names. The file ``publish.json`` in the work
directory is written before the first of these steps; a run that finds it repeats the steps, which are all
harmless when they have been done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import Document, Key
from tokshard.dataset.manifest import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    REJECTED_NAME,
    FileName,
    Manifest,
    file_of,
    manifest_path,
)
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage import paths, syscalls
from tokshard.storage.digest import READ_BYTES, FileRecord
from tokshard.storage.files import AtomicFile, write_atomically
from tokshard.storage.small_files import read_document
from tokshard.storage.syscalls import Buffer

PUBLISH_NAME = "publish.json"


@dataclass(frozen=True, slots=True)
class PublicationRecord(Document):
    """The outputs that are staged completely: from here on a run only goes forward."""

    SCHEMA = "tokshard.publication/1"

    outputs: Annotated[
        tuple[tuple[FileName, ...], ...], Key("outputs", "The files of each output, without its manifest.")
    ]


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
    """Let ``write`` write a staged file; return its record for the manifest."""
    with AtomicFile(os.path.join(directory, f"{k}.{name}")) as file:
        digested = DigestingWriter(file)
        write(digested)
    return digested.record()


def stage_chunks(directory: str, k: int, name: str, chunks: Iterable[Buffer]) -> FileRecord:
    """Write a staged file of chunks; return its record for the manifest."""

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


def seal(directory: str, manifests: Sequence[Manifest]) -> None:
    """Record in the work directory that everything is staged."""
    record = PublicationRecord(tuple(tuple(manifest.files.by_name()) for manifest in manifests))
    write_atomically(os.path.join(directory, PUBLISH_NAME), record.to_bytes())


def is_sealed(directory: str) -> bool:
    """Tell whether the work directory waits for publication."""
    return os.path.exists(os.path.join(directory, PUBLISH_NAME))


def publish(directory: str, prefixes: Sequence[str]) -> None:
    """Give all staged files of a sealed work directory their final names.

    Args:
        directory: The work directory.
        prefixes: The path prefix of each output.

    Raises:
        IntegrityError: The seal is damaged, or a staged file is missing and its target too.
        OutputExistsError: A link is where an output's directory should be.
    """
    path = os.path.join(directory, PUBLISH_NAME)
    hint = "start over with --no-resume"
    try:
        outputs = read_document(PublicationRecord, path).outputs
    except IntegrityError as error:
        raise IntegrityError(
            f"{path} is damaged: {error}", path=path, field=error.field, hint=hint
        ) from error
    if len(outputs) != len(prefixes):
        text = f"{path} is damaged: it lists {len(outputs)} outputs instead of {len(prefixes)}"
        raise IntegrityError(text, path=path, hint=hint)
    for k, (prefix, names) in enumerate(zip(prefixes, outputs, strict=True)):
        _publish_output(directory, k, prefix, names)


def refuse_link(directory: str) -> None:
    """Check that what should be a directory of ours does not lead to somebody else's.

    Raises:
        OutputExistsError: It is a link.
    """
    if os.path.islink(directory):
        raise OutputExistsError(
            f"{directory} is a link; tokshard writes only into directories of its own",
            hint="remove the link, or name its target in --output",
        )


def _publish_output(directory: str, k: int, prefix: str, names: Sequence[str]) -> None:
    sidecars = paths.sidecar_directory(prefix)
    refuse_link(sidecars)
    syscalls.make_directory(sidecars)
    if _is_staged(directory, k, MANIFEST_NAME):
        syscalls.unlink(manifest_path(prefix))
        for optional in (PROVENANCE_NAME, REJECTED_NAME):
            if optional not in names:
                syscalls.unlink(os.path.join(sidecars, optional))
        syscalls.fsync_directory(sidecars)
        if _is_staged(directory, k, "idx"):
            syscalls.unlink(paths.idx_path(prefix))
            syscalls.fsync_directory(os.path.dirname(prefix))
    for name in ("bin", "idx"):
        _move(directory, k, name, file_of(prefix, name))
    syscalls.fsync_directory(os.path.dirname(prefix))
    for name in names:
        if name not in {"bin", "idx"}:
            _move(directory, k, name, file_of(prefix, name))
    syscalls.fsync_directory(sidecars)
    _move(directory, k, MANIFEST_NAME, manifest_path(prefix))
    syscalls.fsync_directory(sidecars)


def _is_staged(directory: str, k: int, name: str) -> bool:
    return os.path.exists(os.path.join(directory, f"{k}.{name}"))


def _move(directory: str, k: int, name: str, target: str) -> None:
    if _is_staged(directory, k, name):
        syscalls.replace(os.path.join(directory, f"{k}.{name}"), target)
    elif not os.path.exists(target):
        raise IntegrityError(
            f"{target} cannot be published: neither it nor its staged file exists any more",
            path=target,
            hint="start over with --no-resume",
        )
