"""Publication: staged files get their final names in an order in which no crash shows a false product.

A command writes all files of its output into a *staging directory* under the lock of the output, each forced
to the disk. Then :func:`publish` records the final names in ``publish.json`` there, removes the markers of
the output that is replaced and what must not be seen with new files (an old index beside new tokens), renames
each file, and renames the markers last: whoever sees a marker sees everything. If a process dies in between,
the next one that uses the staging directory completes the renames, which are all harmless when they have been
done. Any other leftovers of a killed process are removed: the command starts again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tokshard.core.codec import Document
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage import fs, syscalls
from tokshard.storage.digest import FileRecord
from tokshard.storage.files import (
    DigestingWriter,
    foreign_file,
    is_same_file,
    is_temporary,
    remove_tree,
    rename_new,
    write_atomically,
)
from tokshard.storage.reading import read_document
from tokshard.storage.syscalls import Buffer

PUBLICATION_NAME = "publish.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication(Document):
    """The renames that complete an output.

    Attributes:
        files: The staged name of each file and its final name, relative to the directory of the output.
        markers: The same for the files that are renamed last.
        removes: Final names that are removed first: those of the output that is replaced.
        replaces: Whether files under the final names are replaced; if not, they are an error.
    """

    SCHEMA = "tokshard.publication/2"

    files: dict[str, str]
    markers: dict[str, str]
    removes: tuple[str, ...]
    replaces: bool


def publish(
    directory: str,
    staging: str,
    files: Mapping[str, str],
    *,
    last: Mapping[str, str],
    removes: Sequence[str] = (),
    replaces: bool,
) -> None:
    """Give staged files their final names, the markers last.

    Args:
        directory: The directory of the output, to which final names are relative.
        staging: The staging directory, on the same file system.
        files: The staged name of each file and its final name, in order.
        last: The same for the markers.
        removes: Final names to remove first, in order. Markers that are replaced are removed before them.
        replaces: Whether files under the final names are replaced.

    Raises:
        OutputExistsError: A file is under a final name, and ``replaces`` is False.
        StorageError: A file cannot be renamed. The next run completes the publication.
    """
    publication = Publication(
        files=dict(files), markers=dict(last), removes=tuple(removes), replaces=replaces
    )
    _refuse_foreign(directory, staging, publication)
    write_atomically(os.path.join(staging, PUBLICATION_NAME), publication.to_bytes())
    _complete(directory, staging, publication)


def is_begun(staging: str) -> bool:
    """Return whether the files in a staging directory are complete, and wait for their final names."""
    return fs.lexists(os.path.join(staging, PUBLICATION_NAME))


def complete_publication(directory: str, staging: str, *, force: bool = False) -> bool:
    """Complete a publication that was interrupted; return whether there was one.

    ``force``: whether to replace files under the final names even if the interrupted run would not.

    Raises:
        IntegrityError: Its record is damaged, or a file is missing.
        OutputExistsError: Another program has created a file under a final name.
    """
    path = os.path.join(staging, PUBLICATION_NAME)
    try:
        publication = read_document(Publication, path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    for name in (*publication.files.values(), *publication.markers.values(), *publication.removes):
        if {"", ".", ".."} & {*name.split("/")}:
            raise IntegrityError(
                f"{path} is damaged: {name!r} leads out of the directory of the output", path=path
            )
    if force:
        publication = replace(publication, replaces=True)
    else:
        _refuse_foreign(directory, staging, publication)
    _complete(directory, staging, publication)
    return True


def _refuse_foreign(directory: str, staging: str, publication: Publication) -> None:
    if publication.replaces:
        return
    removed = set(publication.removes)
    for staged, final in (publication.files | publication.markers).items():
        source, target = os.path.join(staging, staged), os.path.join(directory, final)
        is_ours = final in removed or not fs.lexists(source)
        if not is_ours and fs.lexists(target) and not is_same_file(source, target):
            raise foreign_file(target)


def _complete(directory: str, staging: str, publication: Publication) -> None:
    names = publication.files | publication.markers
    for parent in filter(None, _parents(directory, names.values())):
        refuse_link(parent)
        syscalls.make_directory(parent)
    # Once the first file has its final name, nothing of the replaced output is left.
    if all(fs.exists(os.path.join(staging, staged)) for staged in names):
        if publication.replaces:
            _remove(directory, publication.markers.values())
        _remove(directory, publication.removes)
    for group in (publication.files, publication.markers):
        for staged, final in group.items():
            _rename(
                os.path.join(staging, staged),
                os.path.join(directory, final),
                replaces=publication.replaces,
            )
        for parent in _parents(directory, group.values()):
            syscalls.fsync_directory(parent)


def _parents(directory: str, names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(os.path.dirname(os.path.join(directory, name)) for name in names)


def _remove(directory: str, names: Collection[str]) -> None:
    for name in names:
        syscalls.unlink(os.path.join(directory, name))
    for parent in _parents(directory, names):
        if os.path.isdir(parent or "."):
            syscalls.fsync_directory(parent)


def _rename(source: str, target: str, *, replaces: bool) -> None:
    if fs.exists(source):
        (syscalls.replace if replaces else rename_new)(source, target)
    elif not fs.exists(target):
        raise IntegrityError(
            f"cannot publish {target}: its staged file is missing",
            path=target,
            hint=f"remove {os.path.dirname(source)}, and run the same command again",
        )


@contextmanager
def staging_directory(directory: str, staging: str, *, force: bool = False) -> Iterator[None]:
    """Make an empty staging directory, and remove it with all that is left in it on exit.

    A publication that was interrupted is completed first. If :func:`publish` fails, the directory stays, and
    the next run completes the publication. The caller holds the lock of the output.

    Args:
        directory: The directory of the output.
        staging: The staging directory.
        force: See :func:`complete_publication`.
    """
    refuse_link(staging)
    complete_publication(directory, staging, force=force)
    remove_staging(staging)
    syscalls.make_directory(staging)
    try:
        yield
    except BaseException:
        if not is_begun(staging):
            remove_staging(staging)
        raise
    remove_staging(staging)


def remove_staging(staging: str) -> None:
    """Remove a staging directory; the record of its publication goes last."""
    if os.path.isdir(staging):
        for name in sorted(set(os.listdir(staging)) - {PUBLICATION_NAME}):
            remove_tree(os.path.join(staging, name))
        syscalls.unlink(os.path.join(staging, PUBLICATION_NAME))
        syscalls.remove_directory(staging)


def stage_file(directory: str, name: str, write: Callable[[DigestingWriter], object]) -> FileRecord:
    """Write a staged file with ``write``; return its size and digest."""
    with DigestingWriter(os.path.join(directory, name)) as file:
        write(file)
    return file.record()


def stage_chunks(directory: str, name: str, chunks: Iterable[Buffer]) -> FileRecord:
    """Write a staged file of chunks; return its size and digest."""

    def write(file: DigestingWriter) -> None:
        for chunk in chunks:
            file.write(chunk)

    return stage_file(directory, name, write)


def refuse_link(directory: str) -> None:
    """Raise OutputExistsError if an output directory is a link, which may lead to other files."""
    if os.path.islink(directory):
        raise OutputExistsError(
            f"cannot write {directory}: it is a symbolic link",
            hint="remove the link, or pass its target to --output",
        )


def remove_temporary_files(directory: str, beginning: str = "") -> None:
    """Remove temporary files of killed runs from a directory, if it exists.

    Args:
        directory: The directory.
        beginning: The beginning of the final names of the files.
    """
    if os.path.isdir(directory):
        for name in filter(is_temporary, os.listdir(directory)):
            if name.startswith(f".{beginning}"):
                remove_tree(os.path.join(directory, name))
