"""The work directory of a run: ``PREFIX.tokshard/work/``, which exists only while a run is unfinished.

Everything in it belongs to tokshard and is removed with it, links as links. Outside of it, only files written
by a run are ever replaced or removed.

A run of another plan first moves the work directory to ``PREFIX.tokshard/kept/DIGEST/``, named after the
plan that it belongs to, and moves it back when that plan is run again. All are removed when an output has
been published.

It also holds staged files, which are published in an order in which no crash shows a false dataset.
For output ``K`` the staged files are ``K.bin``, ``K.idx``, and ``K.<sidecar>`` for each file of
``PREFIX.tokshard/``, the manifest included; all are forced to the disk. Then, for each output that may be
replaced, the old manifest and the old ``.idx`` are removed (so that no old index is beside new tokens), and
for each output ``.bin``, ``.idx``, the sidecar files and last the manifest get their names. In an output that
may not be replaced, another program's file under the name of ``.bin``, ``.idx`` or the manifest is an error.
The file ``publish.json`` in the work directory is written before the first of these steps; a run that finds
it repeats the steps, which are all harmless when they have been done.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tokshard.core.codec import Document
from tokshard.dataset.manifest import (
    MANIFEST_NAME,
    OPTIONAL_NAMES,
    FileName,
    Manifest,
    file_of,
)
from tokshard.dataset.plan import BuildPlan, ConvertParameters, MergeParameters
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, StorageError
from tokshard.storage import fs, paths, syscalls
from tokshard.storage.digest import READ_BYTES, FileRecord
from tokshard.storage.files import (
    AtomicFile,
    DigestingWriter,
    foreign_file,
    is_same_file,
    is_temporary,
    remove_tree,
    rename_new,
    temporary_path,
    write_atomically,
)
from tokshard.storage.journal import read_checkpoints
from tokshard.storage.lock import WriterLock
from tokshard.storage.reading import open_file
from tokshard.storage.small_files import read_document
from tokshard.storage.syscalls import Buffer

PUBLISH_NAME = "publish.json"


@dataclass(frozen=True, slots=True)
class PublicationRecord(Document):
    """The completely staged outputs; after this, a run can only complete the publication."""

    SCHEMA = "tokshard.publication/2"

    outputs: tuple[tuple[FileName, ...], ...]
    suffixes: tuple[str, ...] | None = None
    refuses_existing: Literal[True] | None = None


def stage_file(directory: str, k: int, name: str, write: Callable[[DigestingWriter], object]) -> FileRecord:
    """Write a staged file with ``write``; return its record for the manifest."""
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
    """Write a staged manifest, or raise IntegrityError if it could not be read back."""
    content = manifest.to_bytes()
    Manifest.from_bytes(content, MANIFEST_NAME)
    stage_chunks(directory, k, MANIFEST_NAME, [content])


def file_chunks(path: str) -> Iterator[bytes]:
    """Yield the content of a file in chunks of at most 4 MiB."""
    with open_file(path) as file:
        while chunk := file.read(READ_BYTES):
            yield chunk


def is_sealed(directory: str) -> bool:
    """Return whether the work directory is ready for publication."""
    return fs.exists(os.path.join(directory, PUBLISH_NAME))


def refuse_link(directory: str) -> None:
    """Raise OutputExistsError if an output directory is a link, which may lead to other files."""
    if os.path.islink(directory):
        raise OutputExistsError(
            f"cannot write {directory}: it is a symbolic link",
            hint="remove the link, or pass its target to --output",
        )


# Never replaced without --force; other files in PREFIX.tokshard are valid only with the manifest.
_GUARDED = ("bin", "idx", MANIFEST_NAME)


def _publish_output(directory: str, k: int, prefix: str, names: Sequence[str], *, replaces: bool) -> None:
    sidecars = paths.sidecar_directory(prefix)
    refuse_link(sidecars)
    syscalls.make_directory(sidecars)
    if replaces and _is_staged(directory, k, MANIFEST_NAME):
        withdraw(prefix, names)
        if _is_staged(directory, k, "idx"):
            syscalls.unlink(paths.idx_path(prefix))
            syscalls.fsync_directory(os.path.dirname(prefix))
    for name in ("bin", "idx"):
        _move(directory, k, name, prefix, replaces=replaces)
    syscalls.fsync_directory(os.path.dirname(prefix))
    for name in names:
        if name not in {"bin", "idx"}:
            _move(directory, k, name, prefix, replaces=True)
    syscalls.fsync_directory(sidecars)
    _move(directory, k, MANIFEST_NAME, prefix, replaces=replaces)
    syscalls.fsync_directory(sidecars)


def withdraw(prefix: str, names: Sequence[str] = ()) -> None:
    """Remove the manifest of a dataset, and its sidecar files that a new output does not have."""
    sidecars = paths.sidecar_directory(prefix)
    for name in (MANIFEST_NAME, *OPTIONAL_NAMES):
        if name not in names:
            syscalls.unlink(os.path.join(sidecars, name))
    syscalls.fsync_directory(sidecars)


def _refuse_foreign(directory: str, k: int, prefix: str) -> None:
    for name in _GUARDED:
        staged, target = os.path.join(directory, f"{k}.{name}"), file_of(prefix, name)
        if fs.lexists(staged) and fs.lexists(target) and not is_same_file(staged, target):
            raise foreign_file(target)


def _is_staged(directory: str, k: int, name: str) -> bool:
    return fs.exists(os.path.join(directory, f"{k}.{name}"))


def _move(directory: str, k: int, name: str, prefix: str, *, replaces: bool) -> None:
    target = file_of(prefix, name)
    if _is_staged(directory, k, name):
        (syscalls.replace if replaces else rename_new)(os.path.join(directory, f"{k}.{name}"), target)
    elif not fs.exists(target):
        raise IntegrityError(
            f"cannot publish {target}: its staged file is missing",
            path=target,
            hint="pass --no-resume to start over",
        )


_PLAN_NAME = "plan.json"
_KEPT_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """Names in the work directory of the run for ``prefix``, and leftovers of earlier runs."""

    prefix: str
    name: str = "work"

    @property
    def sidecars(self) -> str:
        """The directory ``PREFIX.tokshard``."""
        return paths.sidecar_directory(self.prefix)

    @property
    def lock(self) -> str:
        """The lock file."""
        return os.path.join(self.sidecars, "lock")

    @property
    def directory(self) -> str:
        """The work directory itself."""
        return os.path.join(self.sidecars, self.name)

    @property
    def kept_directory(self) -> str:
        """The directory with the work directories of other plans."""
        return os.path.join(self.sidecars, "kept")

    def kept(self) -> list[str]:
        """Return the work directories of other plans, the latest first."""
        if os.path.islink(self.kept_directory) or not os.path.isdir(self.kept_directory):
            return []
        found = [
            os.path.join(self.kept_directory, name)
            for name in os.listdir(self.kept_directory)
            if _KEPT_NAME.fullmatch(name)
        ]
        return sorted(found, key=lambda path: (-os.lstat(path).st_mtime_ns, path))

    def directories(self) -> list[str]:
        """Return the work directories of all plans."""
        return [self.directory] * os.path.isdir(self.directory) + self.kept()

    def has_leftovers(self) -> bool:
        """Tell whether a run is under way, or was killed before it had tidied up."""
        return any(map(os.path.lexists, (self.directory, self.lock))) or bool(self.kept())

    @contextmanager
    def locked(self, *, shared: bool = False, purpose: str = "") -> Iterator[WriterLock]:
        """Hold the writer lock; on exit, remove ``PREFIX.tokshard`` if it is empty."""
        syscalls.make_directory(self.sidecars)
        try:
            with WriterLock(self.lock, shared=shared, purpose=purpose) as lock:
                yield lock
        finally:
            self.remove_if_empty()

    def refuse_older(self) -> None:
        """Raise OutputExistsError if the unfinished work is of an earlier version: it cannot be resumed."""
        try:
            read_document(BuildPlan, os.path.join(self.directory, _PLAN_NAME))
        except OlderVersionError as error:
            raise OutputExistsError(
                f"cannot resume the work in {self.directory}: {error}",
                hint="finish it with that version, or start over with --no-resume (for a job array: run "
                "tokshard tokenize --discard-work before its tasks)",
            ) from error
        except (FileNotFoundError, NotADirectoryError, IntegrityError):
            pass  # damaged work is done again

    def earlier_plan(self) -> BuildPlan | None:
        """Return the plan of the work directory; None if there is none, or it cannot be read."""
        return plan_in(self.directory)

    def earlier_plans(self) -> list[BuildPlan]:
        """Return the plans of all unfinished runs."""
        return [plan for path in self.directories() if (plan := plan_in(path)) is not None]

    def is_half_removed(self) -> bool:
        """Tell whether the removal of the work directory has begun: its plan is gone."""
        return not fs.lexists(os.path.join(self.directory, _PLAN_NAME))

    def begin(self, plan: BuildPlan) -> None:
        """Make the work directory that of a plan: continue its own, and keep that of another one.

        A merge or conversion that was started with other inputs is removed: it can be as large as the output.
        """
        is_begun = self.take_up(plan)
        if not is_begun:
            earlier = self.earlier_plan()
            if earlier is None or isinstance(earlier.options, MergeParameters | ConvertParameters):
                self.remove_current()
            else:
                self.set_aside(earlier)
        self.make_directories()
        if not is_begun:  # last: tasks of a job array wait for it
            self.write_plan(plan)

    def begin_together(self, plan: BuildPlan) -> bool:
        """Make the work directory that of a plan, while other processes without a lock do the same.

        Returns:
            False if it exists and is that of another plan: another process may be using it.
        """
        new = replace(self, name=os.path.basename(temporary_path(self.directory)))
        new.make_directories()
        new.write_plan(plan)
        try:
            syscalls.replace(new.directory, self.directory)
        except StorageError as error:
            remove_tree(new.directory)
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
        syscalls.fsync_directory(self.sidecars)
        return self.earlier_plan() == plan

    def make_directories(self) -> None:
        """Make the work directory and those in it."""
        syscalls.make_directory(self.directory)

    def write_plan(self, plan: BuildPlan) -> None:
        """Record that everything in the work directory fits a plan."""
        write_atomically(os.path.join(self.directory, _PLAN_NAME), plan.to_bytes())

    def take_up(self, plan: BuildPlan) -> bool:
        """Continue the unfinished run of a plan; return whether there is one."""
        if not plan.is_repeatable:
            return False
        if self.earlier_plan() == plan:
            return True
        return any(self.bring_back(path) for path in self.kept() if plan_in(path) == plan)

    def bring_back(self, kept: str) -> bool:
        """Make a kept work directory the current one; return True."""
        if (earlier := self.earlier_plan()) is None:
            self.remove_current()
        else:
            self.set_aside(earlier)
        syscalls.replace(kept, self.directory)
        self._sync_names()
        return True

    def set_aside(self, plan: BuildPlan) -> None:
        """Keep the work directory, whose plan this is; one without finished work is removed."""
        if not (plan.is_repeatable and self.has_finished_work()):
            self.remove_current()
            return
        kept = os.path.join(self.kept_directory, plan.fingerprint[:16])
        remove_tree(kept)
        syscalls.make_directory(self.kept_directory)
        syscalls.replace(self.directory, kept)
        self._sync_names()

    def _sync_names(self) -> None:
        syscalls.fsync_directory(self.kept_directory)
        syscalls.fsync_directory(self.sidecars)

    def has_finished_work(self) -> bool:
        """Tell whether a later run could use something of the work directory."""
        names = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        journals = [os.path.join(self.directory, name) for name in names if name.endswith(".jsonl")]
        return any(next(read_checkpoints(path), None) for path in journals if fs.isfile(path))

    def seal(self, prefixes: Sequence[str], manifests: Sequence[Manifest], *, replaces: bool) -> None:
        """Record that the outputs at these prefixes are staged, and whether they replace existing files.

        If they do not, manifests that have lost their datasets are removed first.
        """
        if not replaces:
            for prefix, manifest in zip(prefixes, manifests, strict=True):
                refuse_link(sidecars := paths.sidecar_directory(prefix))
                if os.path.isdir(sidecars):
                    withdraw(prefix, tuple(manifest.files.by_name()))
        suffixes = tuple(prefix.removeprefix(self.prefix) for prefix in prefixes)
        record = PublicationRecord(
            tuple(tuple(manifest.files.by_name()) for manifest in manifests),
            suffixes if any(suffixes) else None,
            None if replaces else True,
        )
        write_atomically(os.path.join(self.directory, PUBLISH_NAME), record.to_bytes())

    def publish(self, *, held: Sequence[str], force: bool) -> tuple[str, ...]:
        """Give all files of a sealed work directory their final names; return the outputs' prefixes.

        ``held``: the outputs whose locks the caller holds, besides that of the work directory. ``force``:
        whether to replace existing files even if the run that staged the outputs would not.

        Raises:
            IntegrityError: The seal is damaged, or a staged file is missing and its target too.
            OutputExistsError: A link is where an output's directory should be, or another program has created
                a file of the output.
        """
        path = os.path.join(self.directory, PUBLISH_NAME)
        hint = "start over with --no-resume"
        try:
            record = read_document(PublicationRecord, path)
        except IntegrityError as error:
            raise IntegrityError(
                f"{path} is damaged: {error}", path=path, field=error.field, hint=hint
            ) from error
        prefixes = tuple(self.prefix + suffix for suffix in record.suffixes or ("",))
        outputs = record.outputs
        if len(outputs) != len(prefixes) or any("/" in suffix for suffix in record.suffixes or ()):
            text = f"{path} is damaged: it lists {len(outputs)} outputs instead of {len(prefixes)}"
            raise IntegrityError(text, path=path, hint=hint)
        with ExitStack() as locks:
            for prefix in sorted({*prefixes} - {self.prefix, *held}):
                locks.enter_context(WorkDirectory(prefix).locked())
            replaces = force or not record.refuses_existing
            if not replaces:
                for k, prefix in enumerate(prefixes):
                    _refuse_foreign(self.directory, k, prefix)
            for k, (prefix, names) in enumerate(zip(prefixes, outputs, strict=True)):
                _publish_output(self.directory, k, prefix, names, replaces=replaces)
        return prefixes

    def sweep(self) -> None:
        """Remove temporary files that a killed run may have left."""
        for directory in (self.sidecars, self.directory, self.kept_directory):
            refuse_link(directory)
        for directory in (self.sidecars, self.directory):
            remove_temporary_files(directory)

    def remove(self) -> None:
        """Remove the work directories of all plans.

        The plan goes first, so that no run resumes from a half, and the seal last.
        """
        syscalls.unlink(os.path.join(self.directory, _PLAN_NAME))
        for path in self.kept():
            syscalls.unlink(os.path.join(path, _PLAN_NAME))
            remove_tree(path)
        if os.path.isdir(self.kept_directory) and not os.listdir(self.kept_directory):
            syscalls.remove_directory(self.kept_directory)
        self.remove_current()

    def remove_current(self) -> None:
        """Remove the work directory, and keep those of other plans."""
        if os.path.isdir(self.directory):
            middle = sorted(set(os.listdir(self.directory)) - {_PLAN_NAME, PUBLISH_NAME})
            for name in (_PLAN_NAME, *middle, PUBLISH_NAME):
                remove_tree(os.path.join(self.directory, name))
            syscalls.remove_directory(self.directory)

    def remove_unless_finished_work(self) -> None:
        """Remove the work directory if no later run could use anything of it."""
        plan = self.earlier_plan()
        is_usable = plan is not None and plan.is_repeatable and self.has_finished_work()
        if not is_usable and not is_sealed(self.directory):
            self.remove_current()

    def remove_if_empty(self) -> None:
        """Remove ``PREFIX.tokshard`` if it is empty."""
        if os.path.islink(self.sidecars):
            return
        try:
            syscalls.remove_directory(self.sidecars)
        except StorageError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise


def plan_in(directory: str) -> BuildPlan | None:
    """Return the plan of a work directory; None if there is none, or it cannot be read."""
    try:
        return read_document(BuildPlan, os.path.join(directory, _PLAN_NAME))
    except (FileNotFoundError, NotADirectoryError, IntegrityError):
        return None


def remove_temporary_files(directory: str) -> None:
    """Remove the temporary files of killed runs from a directory, if it exists."""
    if os.path.isdir(directory):
        for name in filter(is_temporary, os.listdir(directory)):
            remove_tree(os.path.join(directory, name))
