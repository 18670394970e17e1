"""The work directory of a tokenize run, with the parts that its workers commit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from tokshard.dataset.plan import BuildPlan
from tokshard.dataset.workdir import WorkDirectory, remove_temporary_files
from tokshard.errors import IntegrityError
from tokshard.storage import syscalls
from tokshard.storage.files import remove_tree
from tokshard.tokenization.part import PartReader, UnitKey


@dataclass(frozen=True, slots=True)
class Workspace(WorkDirectory):
    """Names in the work directory, and what an earlier run has left there.

    Attributes:
        prefix: The output prefix of the run.
    """

    @property
    def parts(self) -> str:
        """Where workers commit parts."""
        return os.path.join(self.directory, "parts")

    @property
    def raw(self) -> str:
        """Where decompressed units wait for workers."""
        return os.path.join(self.directory, "raw")

    def begin(self, plan: BuildPlan) -> None:
        """Make the directories and write the plan, if an equal one is not there."""
        for directory in (self.directory, self.parts, self.raw):
            syscalls.make_directory(directory)
        WorkDirectory.begin(self, plan)

    def part_path(self, key: UnitKey) -> str:
        """Return where the part of a unit lies."""
        return os.path.join(self.parts, key.part_name)

    def usable_parts(self, first: UnitKey, encoders: frozenset[str]) -> Iterator[PartReader]:
        """Yield the intact parts from ``first`` on that an accepted encoder made; remove all else."""
        for name in sorted(os.listdir(self.parts)):
            path = os.path.join(self.parts, name)
            # A pipe must not even be opened: that would wait for ever.
            if os.path.isfile(path) and not os.path.islink(path):
                try:
                    with PartReader(path) as part:
                        part.verify()
                        if (
                            part.unit >= first
                            and part.header.encoder in encoders
                            and part.unit.part_name == name
                        ):
                            yield part
                            continue
                except IntegrityError:
                    pass
            remove_tree(path)

    def sweep(self) -> None:
        """Remove what a killed run may have left half-done: temporary files and decompressed units."""
        WorkDirectory.sweep(self)
        remove_tree(self.raw)
        if os.path.islink(self.parts):
            syscalls.unlink(self.parts)
        remove_temporary_files(self.parts)
