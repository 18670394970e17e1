"""The directory of an export: its lock, its states and its publication.

All files are written into ``.tokshard/work/`` and published together, the manifest last: see
:mod:`tokshard.storage.publication`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from tokshard.dataset.products import EXPORT_DIRECTORY, EXPORT_NAME
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, StorageError, UsageError
from tokshard.exchange.format import ExportParameters, format_of
from tokshard.exchange.manifest import ExportManifest, ExportSource, check_sizes, read_export
from tokshard.exchange.options import FormatName
from tokshard.storage import syscalls
from tokshard.storage.files import is_same_file, is_temporary, remove_if_empty, write_atomically
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import bin_path, idx_path, is_remote
from tokshard.storage.publication import publish, refuse_link, staging_directory

OutputState = Literal["new", "up-to-date", "exists"]


def has_unfinished_work(directory: str) -> bool:
    """Return whether an export into a directory was interrupted, or is still active."""
    return os.path.isdir(os.path.join(directory, EXPORT_DIRECTORY, "work"))


def other_files(directory: str, manifest: ExportManifest) -> list[str]:
    """Return the names of files beside an export that readers of its format read, too."""
    names = {file.name for file in manifest.files}
    return [name for name in _files_of_format(directory, manifest.parameters.format) if name not in names]


def _files_of_format(directory: str, to: FormatName) -> list[str]:
    """Return the names of the files that readers of a format read."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return sorted(name for name in names if name.endswith(format_of(to).SUFFIXES) and not is_temporary(name))


class ExportDirectory:
    """The output of an export. All methods that write need the lock.

    Args:
        path: The directory.
        parameters: The parameters of this export.
        source: The records of this export.
        force: Whether an existing output is replaced.
    """

    def __init__(self, path: str, parameters: ExportParameters, source: ExportSource, *, force: bool) -> None:
        self.path = path
        self._parameters = parameters
        self._source = source
        self._force = force
        self._own = os.path.join(path, EXPORT_DIRECTORY)
        self.work = os.path.join(self._own, "work")
        self._lock = os.path.join(self._own, "lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer lock and an empty work directory; on exit, remove what is empty.

        A publication that was interrupted is completed first.
        """
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise UsageError(f"--output must be a directory, got the file {self.path}")
        refuse_link(self._own)
        syscalls.make_directory(self._own)
        try:
            with (
                WriterLock(self._lock),
                staging_directory(self.path, self.work, force=self._force),
            ):
                yield
        finally:
            remove_if_empty(self._own)

    def finished(self) -> ExportManifest | None:
        """Return the manifest if the directory holds this export, complete by its sizes.

        Raises:
            IntegrityError: A file is missing, or its size differs.
        """
        manifest = read_export(self.path)
        if manifest is None or manifest.differences_from(self._parameters, self._source):
            return None
        check_sizes(self.path, manifest)
        return manifest

    def up_to_date(self) -> ExportManifest | None:
        """Return the manifest if there is nothing to do. The caller needs no lock."""
        if self._force or any(map(os.path.lexists, (self.work, self._lock))):
            return None
        return self.finished()

    def state(self) -> OutputState:
        """Return the state that a run would start from, for a dry run."""
        if not self._force and self.finished() is not None:
            return "up-to-date"
        if read_export(self.path) is not None or _files_of_format(self.path, self._parameters.format):
            return "exists"
        return "new"

    def refuse_existing(self) -> None:
        """Raise OutputExistsError if the directory holds something that may not be replaced.

        Raises:
            OlderVersionError: The export is of an earlier version, and nobody knows which files to remove.
        """
        try:
            manifest = read_export(self.path)
        except IntegrityError as error:
            if self._force and not isinstance(error, OlderVersionError):
                return
            raise
        if self._force:
            return
        if manifest is not None:
            found = manifest.differences_from(self._parameters, self._source)
            raise OutputExistsError(
                f"{self.path} exists already and was made from other options or data: {'; '.join(found)}",
                differences=found,
                hint="pass --force to replace it, or choose another --output",
            )
        if foreign := _files_of_format(self.path, self._parameters.format):
            raise OutputExistsError(
                f"{os.path.join(self.path, foreign[0])} exists already and has no manifest: tokshard did not "
                "write it",
                hint="choose an empty directory: readers would read the file, too",
            )

    def refuse_sources(self, manifest: ExportManifest, prefixes: Iterable[str]) -> None:
        """Raise UsageError if a file of the export would replace a file of a dataset that it is made of."""
        for prefix in prefixes:
            for source in (bin_path(prefix), idx_path(prefix)):
                name = os.path.basename(source)
                if all(name != file.name for file in manifest.files) or is_remote(prefix):
                    continue
                if is_same_file(source, os.path.join(self.path, name)):
                    raise UsageError(
                        f"--output {self.path} would replace the source {source}",
                        hint="pass another --output or --name",
                    )

    def publish(self, manifest: ExportManifest) -> None:
        """Give the staged files their names, the manifest last.

        Raises:
            OutputExistsError: Another program has created a file of the format.
        """
        content = manifest.to_bytes()
        ExportManifest.from_bytes(content, EXPORT_NAME)
        write_atomically(os.path.join(self.work, EXPORT_NAME), content)
        if not self._force:
            self.refuse_existing()
        names = {file.name: file.name for file in manifest.files}
        try:
            old = read_export(self.path)
        except IntegrityError:
            old = None  # only --force comes here
        publish(
            self.path,
            self.work,
            names,
            last={EXPORT_NAME: f"{EXPORT_DIRECTORY}/{EXPORT_NAME}"},
            removes=[file.name for file in old.files if file.name not in names] if old else (),
            replaces=self._force,
        )
