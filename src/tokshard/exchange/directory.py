"""The directory of an export: its lock, its states and its publication.

All files are written into ``.tokshard/work/`` and published together, the manifest last: see
:mod:`tokshard.storage.publication`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from tokshard.dataset.outputs import BuildAction
from tokshard.dataset.products import EXPORT_DIRECTORY, EXPORT_NAME, is_export
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, StorageError, UsageError
from tokshard.exchange.format import format_of
from tokshard.exchange.manifest import (
    ExportManifest,
    ExportParameters,
    ExportSource,
    check_sizes,
    read_export,
)
from tokshard.exchange.options import FormatName
from tokshard.storage import syscalls
from tokshard.storage.files import is_temporary, remove_if_empty, write_atomically
from tokshard.storage.lock import WriterLock
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
    """The output of an export.

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
        self._work = os.path.join(self._own, "work")
        self._lock = os.path.join(self._own, "lock")

    def state(self) -> OutputState:
        """Return the state that a run would start from, for a dry run."""
        try:
            if self._found() is not None:
                return "up-to-date"
        except OutputExistsError:
            return "exists"
        is_new = not (is_export(self.path) or _files_of_format(self.path, self._parameters.format))
        return "new" if is_new else "exists"

    def stage_and_publish(self, stage: Callable[[str], ExportManifest]) -> tuple[ExportManifest, BuildAction]:
        """Stage the export with ``stage``, given the staging directory, and publish it.

        A publication that was interrupted is completed first.

        Returns:
            The manifest, and whether the export was found or written.
        """
        has_leftovers = any(map(os.path.lexists, (self._work, self._lock)))
        if not has_leftovers and (manifest := self._found()) is not None:
            return manifest, "found"
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise UsageError(f"--output must be a directory, got the file {self.path}")
        refuse_link(self._own)
        syscalls.make_directory(self._own)
        try:
            with (
                WriterLock(self._lock),
                staging_directory(self.path, self._work, force=self._force),
            ):
                if (manifest := self._found()) is not None:
                    return manifest, "found"
                manifest = stage(self._work)
                self._publish(manifest)
        finally:
            remove_if_empty(self._own)
        return manifest, "written"

    def _found(self) -> ExportManifest | None:
        """Return the manifest if the directory holds this export, complete by its sizes; None to write it.

        Raises:
            OutputExistsError: It holds something else that may not be replaced.
            OlderVersionError: The export is of an earlier version, and nobody knows which files to remove.
            IntegrityError: The manifest is damaged, a file is missing, or its size differs.
        """
        try:
            manifest = read_export(self.path)
        except IntegrityError as error:
            if self._force and not isinstance(error, OlderVersionError):
                return None
            raise
        if self._force:
            return None
        if manifest is not None:
            differences = manifest.differences_from(self._parameters, self._source)
            if differences:
                raise OutputExistsError(
                    f"{self.path} exists already and was made from other options or data: "
                    f"{'; '.join(differences)}",
                    differences=differences,
                    hint="pass --force to replace it, or choose another --output",
                )
            check_sizes(self.path, manifest)
        elif foreign := _files_of_format(self.path, self._parameters.format):
            raise OutputExistsError(
                f"{os.path.join(self.path, foreign[0])} exists already and has no manifest: tokshard did not "
                "write it",
                hint="choose an empty directory: readers would read the file, too",
            )
        return manifest

    def _publish(self, manifest: ExportManifest) -> None:
        """Give the staged files their names, the manifest last.

        Raises:
            OutputExistsError: Another program has created a file of the format.
        """
        content = manifest.to_bytes()
        ExportManifest.from_bytes(content, EXPORT_NAME)
        write_atomically(os.path.join(self._work, EXPORT_NAME), content)
        self._found()
        names = {file.name: file.name for file in manifest.files}
        try:
            old = read_export(self.path)
        except IntegrityError:
            old = None  # only --force comes here
        publish(
            self.path,
            self._work,
            names,
            last={EXPORT_NAME: f"{EXPORT_DIRECTORY}/{EXPORT_NAME}"},
            removes=[file.name for file in old.files if file.name not in names] if old else (),
            replaces=self._force,
        )
