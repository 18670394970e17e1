"""The directory of an export: its work directory, resumption and publication.

Finished shards are written into ``.tokshard/work/``, each file complete or not at all, and listed in the
journal ``export.jsonl`` there. When all are finished, the manifest is staged, then ``publish.json`` is
written, and only then files get their names in the directory, the manifest last. A run that finds
``publish.json`` completes these steps, all of which are harmless when they have been done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tokshard.core.codec import Document, decode, encode
from tokshard.dataset.build_run import OutputState
from tokshard.dataset.products import EXPORT_DIRECTORY, EXPORT_NAME
from tokshard.dataset.workdir import refuse_link, remove_temporary_files
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, StorageError, UsageError
from tokshard.exchange.manifest import (
    ExportManifest,
    ExportPlan,
    check_sizes,
    manifest_path,
    read_export,
)
from tokshard.exchange.options import FormatName
from tokshard.exchange.shards import WrittenShard
from tokshard.exchange.writers import FORMATS
from tokshard.storage import fs, syscalls
from tokshard.storage.files import is_same_file, is_temporary, remove_tree, rename_new, write_atomically
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import bin_path, check_plain_name, idx_path, is_remote
from tokshard.storage.small_files import read_document

_PLAN_NAME = "plan.json"
_PUBLISH_NAME = "publish.json"
_JOURNAL_NAME = "export.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPublication(Document):
    """The completely staged export; after this, a run can only complete the publication."""

    SCHEMA = "tokshard.export-publication/2"
    OLDER_HINT = "remove the directory and export again"

    removes: tuple[str, ...]
    replaces: bool


def has_unfinished_work(directory: str) -> bool:
    """Return whether an export into a directory was interrupted, or is still active."""
    return fs.isfile(os.path.join(directory, EXPORT_DIRECTORY, "work", _PLAN_NAME))


def files_of_format(directory: str, to: FormatName) -> set[str]:
    """Return the names of files in a directory that readers of a format read, whoever wrote them."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return {name for name in names if name.endswith(FORMATS[to].SUFFIXES) and not is_temporary(name)}


class ExportDirectory:
    """The output of an export. All methods that write need the lock.

    Args:
        path: The directory.
        plan: The plan of this run.
        force: Whether an existing output is replaced.
    """

    def __init__(self, path: str, plan: ExportPlan, *, force: bool) -> None:
        self.path = path
        self.plan = plan
        self._force = force
        self._own = os.path.join(path, EXPORT_DIRECTORY)
        self.work = os.path.join(self._own, "work")
        self._lock = os.path.join(self._own, "lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer lock; on exit, remove the hidden directory if it is empty."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise UsageError(f"--output must be a directory, got the file {self.path}")
        refuse_link(self._own)
        syscalls.make_directory(self._own)
        try:
            with WriterLock(self._lock):
                yield
        finally:
            with suppress(OSError):
                syscalls.remove_directory(self._own)

    # States.

    def finished(self) -> ExportManifest | None:
        """Return the manifest if the directory holds this export, complete by its sizes.

        Raises:
            IntegrityError: A file is missing, or its size differs.
        """
        manifest = read_export(self.path)
        if manifest is None or manifest.fingerprint != self.plan.fingerprint:
            return None
        if any(self.plan.source.changes_since(manifest.source)):
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
        if self._is_sealed() or (self._earlier_plan() == self.plan.fingerprint and self.written()):
            return "resume"
        return "exists" if read_export(self.path) is not None or self._foreign() else "new"

    def other_files(self, manifest: ExportManifest) -> list[str]:
        """Return files beside the export that readers of the format would read, too."""
        return sorted(set(self._foreign()) - {file.name for file in manifest.files})

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
            found = self.plan.differences(manifest.parameters, manifest.source)
            reason = f"was made from other options or data: {'; '.join(found)}" if found else "is incomplete"
            raise OutputExistsError(
                f"{self.path} exists already and {reason}",
                differences=found,
                hint="pass --force to replace it, or choose another --output",
            )
        if foreign := self._foreign():
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

    def _foreign(self) -> list[str]:
        # Those of an export with a manifest are among them.
        return sorted(files_of_format(self.path, self.plan.parameters.format))

    # Work.

    def begin(self, *, resume: bool) -> None:
        """Prepare the work directory: continue the work of the same plan, and remove that of another."""
        refuse_link(self.work)
        if not (resume and self._earlier_plan() == self.plan.fingerprint):
            self.discard()
        syscalls.make_directory(self.work)
        remove_temporary_files(self.work)
        if self._earlier_plan() is None:
            write_atomically(os.path.join(self.work, _PLAN_NAME), self.plan.to_bytes())

    def written(self) -> list[WrittenShard]:
        """Return the shards that an earlier run finished, in order, as far as their files exist."""
        return self._read_journal()[0]

    def _read_journal(self) -> tuple[list[WrittenShard], int]:
        path = os.path.join(self.work, _JOURNAL_NAME)
        found: list[WrittenShard] = []
        size = 0
        for checkpoint in read_checkpoints(path):
            shards = [decode(WrittenShard, entry, path) for entry in checkpoint.entries]
            if not all(map(self._is_staged, shards)):
                break
            found += shards
            size = checkpoint.journal_bytes
        return found, size

    def _is_staged(self, shard: WrittenShard) -> bool:
        try:
            sizes = [
                fs.getsize(os.path.join(self.work, check_plain_name(file.name, _JOURNAL_NAME)))
                for file in shard.files
            ]
        except FileNotFoundError:
            return False
        return sizes == [file.size_bytes for file in shard.files]

    @contextmanager
    def journal(self) -> Iterator[ShardJournal]:
        """Open the journal after the last finished shard."""
        journal = Journal(os.path.join(self.work, _JOURNAL_NAME), self._read_journal()[1])
        try:
            yield ShardJournal(journal)
        finally:
            journal.close()

    def discard(self) -> None:
        """Remove the work directory; the plan goes first, so that no run resumes from a half."""
        if os.path.isdir(self.work):
            names = sorted(set(os.listdir(self.work)) - {_PLAN_NAME, _PUBLISH_NAME})
            for name in (_PLAN_NAME, *names, _PUBLISH_NAME):
                remove_tree(os.path.join(self.work, name))
            syscalls.remove_directory(self.work)

    def discard_unless_finished_work(self) -> None:
        """Remove the work directory if no later run could use anything of it."""
        if not self._is_sealed() and not self.written():
            self.discard()

    def _earlier_plan(self) -> str | None:
        try:
            return read_document(ExportPlan, os.path.join(self.work, _PLAN_NAME)).fingerprint
        except (FileNotFoundError, NotADirectoryError, IntegrityError):
            return None

    # Publication.

    def _is_sealed(self) -> bool:
        return fs.exists(os.path.join(self.work, _PUBLISH_NAME))

    def publish(self, manifest: ExportManifest) -> None:
        """Give the staged files their names, the manifest last.

        Raises:
            OutputExistsError: Another program has created a file of the export. All finished work is kept.
        """
        content = manifest.to_bytes()
        ExportManifest.from_bytes(content, EXPORT_NAME)
        write_atomically(os.path.join(self.work, EXPORT_NAME), content)
        try:
            old = read_export(self.path)
        except IntegrityError:
            old = None  # only --force comes here
        names = {file.name for file in manifest.files}
        removes = tuple(file.name for file in old.files if file.name not in names) if old is not None else ()
        seal = ExportPublication(removes=removes, replaces=self._force)
        if not self._force:
            self.refuse_existing()
        write_atomically(os.path.join(self.work, _PUBLISH_NAME), seal.to_bytes())
        self.complete_publication()

    def complete_publication(self) -> None:
        """Complete a publication that has begun, if there is one; remove the work directory then."""
        if not self._is_sealed():
            return
        hint = "start over with --no-resume"
        seal_path, staged = (os.path.join(self.work, name) for name in (_PUBLISH_NAME, EXPORT_NAME))
        seal = read_document(ExportPublication, seal_path)
        if fs.exists(staged):
            manifest = read_document(ExportManifest, staged)
            if seal.replaces:
                syscalls.unlink(manifest_path(self.path))
                syscalls.fsync_directory(self._own)
            for name in seal.removes:
                syscalls.unlink(os.path.join(self.path, check_plain_name(name, seal_path)))
            for file in manifest.files:
                name = check_plain_name(file.name, staged)
                source, target = os.path.join(self.work, name), os.path.join(self.path, name)
                if fs.exists(source):
                    (syscalls.replace if seal.replaces else rename_new)(source, target)
                elif not fs.exists(target):
                    raise IntegrityError(
                        f"cannot publish {target}: its staged file is missing", path=target, hint=hint
                    )
            syscalls.fsync_directory(self.path)
            syscalls.replace(staged, manifest_path(self.path))
            syscalls.fsync_directory(self._own)
        self.discard()


class ShardJournal:
    """The journal of finished shards, open for writing."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def record(self, shard: WrittenShard) -> None:
        """Record a shard whose files are complete."""
        self._journal.append(encode(shard))
        self._journal.checkpoint({})
