"""The work directory of a run: ``PREFIX.tokshard/work/``, which exists only while a run is unfinished.

Everything in it is tokshard's: whatever else lies there goes with it, links as links. Outside of it
only files that a run has made under their own names are ever replaced or removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tokshard.dataset.plan import BuildPlan, UnreadablePlan
from tokshard.dataset.publication import PUBLISH_NAME, refuse_link
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage import paths, syscalls
from tokshard.storage.files import is_temporary, remove_tree, write_atomically
from tokshard.storage.lock import WriterLock
from tokshard.storage.small_files import read_document

_PLAN_NAME = "plan.json"


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """Names in the work directory, and what an earlier run has left there.

    Attributes:
        prefix: The output prefix of the run.
    """

    prefix: str

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
        return os.path.join(self.sidecars, "work")

    def has_leftovers(self) -> bool:
        """Tell whether a run is under way, or was killed before it had tidied up."""
        return os.path.lexists(self.directory) or os.path.lexists(self.lock)

    @contextmanager
    def locked(self, *, shared: bool = False, purpose: str = "") -> Iterator[WriterLock]:
        """Hold the writer lock; at the end ``PREFIX.tokshard`` is removed if nothing is in it.

        Args:
            shared: Whether others who share it may hold it, too.
            purpose: What the holder does, for those who ask.

        Raises:
            LockedError: Another process writes this output.
        """
        syscalls.make_directory(self.sidecars)
        try:
            with WriterLock(self.lock, shared=shared, purpose=purpose) as lock:
                yield lock
        finally:
            self.remove_if_empty()

    def earlier_plan(self) -> BuildPlan | UnreadablePlan | None:
        """Return the plan of an unfinished run; None if no run has begun."""
        try:
            return read_document(BuildPlan, os.path.join(self.directory, _PLAN_NAME))
        except FileNotFoundError:
            return None
        except IntegrityError as error:
            return UnreadablePlan(str(error))

    def begin(self, plan: BuildPlan) -> None:
        """Make the directory and write the plan, if an equal one is not there."""
        syscalls.make_directory(self.directory)
        if self.earlier_plan() is None:
            write_atomically(os.path.join(self.directory, _PLAN_NAME), plan.to_bytes())

    def sweep(self) -> None:
        """Remove temporary files that a killed run may have left.

        Raises:
            OutputExistsError: Where one of our directories should be there is a link.
        """
        for directory in (self.sidecars, self.directory):
            refuse_link(directory)
        remove_temporary_files(self.directory)

    def remove(self) -> None:
        """Remove the work directory: the plan first, so that no run resumes from a half, the seal last."""
        if os.path.isdir(self.directory):
            middle = sorted(set(os.listdir(self.directory)) - {_PLAN_NAME, PUBLISH_NAME})
            for name in (_PLAN_NAME, *middle, PUBLISH_NAME):
                remove_tree(os.path.join(self.directory, name))
            syscalls.remove_directory(self.directory)

    def remove_if_empty(self) -> None:
        """Remove ``PREFIX.tokshard`` if nothing is in it."""
        if os.path.islink(self.sidecars):
            return
        try:
            syscalls.remove_directory(self.sidecars)
        except StorageError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise


def remove_temporary_files(directory: str) -> None:
    """Remove the temporary files of killed runs from a directory of ours, if it is there."""
    if os.path.isdir(directory):
        for name in filter(is_temporary, os.listdir(directory)):
            remove_tree(os.path.join(directory, name))
