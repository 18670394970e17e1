"""What is finished of a run that many processes work on, and what is not: read, never changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from tokshard.corpus.planning import plan_units
from tokshard.errors import IntegrityError
from tokshard.tokenization.assembly import read_assembled
from tokshard.tokenization.job_array.shares import Deal
from tokshard.tokenization.part import PartHeader, PartReader, UnitKey
from tokshard.tokenization.preparation import TokenizeJob
from tokshard.tokenization.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Lack:
    """Units of one input that have no finished part.

    Attributes:
        file: The number of the input.
        path: Its path.
        units: The numbers of the units.
        open_from: Of a compressed input whose end nobody has reached yet: the first unit of which it is
            not known whether there is one. None if all units are known.
    """

    file: int
    path: str
    units: tuple[int, ...]
    open_from: int | None = None

    def tasks(self, deal: Deal) -> set[int]:
        """Return the tasks of an array that these units belong to."""
        if self.open_from is not None:
            return set(deal.members(self.file))
        return {deal.owner(UnitKey(self.file, index)) for index in self.units}


class Survey:
    """The state of a work directory at one moment.

    Args:
        job: The run.
        workspace: Its work directory.
    """

    def __init__(self, job: TokenizeJob, workspace: Workspace) -> None:
        self._job = job
        self._workspace = workspace
        self.assembled: list[UnitKey] = []
        self._next = UnitKey(0, 0)
        for units, _ in read_assembled(workspace.directory, job.accepted_engines):
            for unit in units:
                self.assembled.append(unit.header.key)
                self._next = unit.header.key.following(last=unit.header.last)
        self._present: dict[int, set[int]] = {}
        for key in _named_parts(workspace.parts):
            self._present.setdefault(key.file, set()).add(key.index)

    def present(self) -> Iterator[UnitKey]:
        """Yield the units that have a file of a part's name, in no order."""
        for file, indices in self._present.items():
            for index in indices:
                yield UnitKey(file, index)

    def is_assembled(self, key: UnitKey) -> bool:
        """Tell whether a unit is in the assembly already, and needs no part any more."""
        return key < self._next

    def part(self, key: UnitKey) -> PartHeader | None:
        """Return the header of a unit's part; None if there is none that may stay.

        Only its footer is looked at: the content is checked when it is assembled.
        """
        path = self._workspace.part_path(key)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return None
            with PartReader(path) as part:
                accepted = part.unit == key and part.header.encoder in self._job.accepted_engines
                return part.header if accepted else None
        except (IntegrityError, FileNotFoundError):
            return None

    def stream_units(self, file: int) -> int | None:
        """Return how many units a compressed input has; None if its end has not been reached."""
        if file < self._next.file:
            return 0
        known = self._known_units(file)
        facts = self.part(UnitKey(file, known - 1)) if known else None
        return known if facts is not None and facts.last else None

    def lacks(self, *, read_footers: bool) -> Iterator[Lack]:
        """Yield what has no finished part, in the order of the inputs, as it is found.

        Args:
            read_footers: Whether to look into each part; otherwise the name of a part is believed.
        """
        for number, file in enumerate(self._job.files):
            if number < self._next.file:
                continue
            present = self._present.get(number, set())
            open_from = None
            indices: Iterable[int]
            if file.is_stream:
                indices = range(self._known_units(number))
                open_from = len(indices) if self.stream_units(number) is None else None
            else:
                indices = (unit.index for unit in plan_units(number, file, self._job.options.unit_bytes))
            missing = tuple(
                index
                for index in indices
                if not self.is_assembled(UnitKey(number, index))
                and (index not in present or (read_footers and self.part(UnitKey(number, index)) is None))
            )
            if missing or open_from is not None:
                yield Lack(number, file.path, missing, open_from)

    def is_complete(self) -> bool:
        """Tell whether every unit has a part. Most often some lack one, which the names tell at once."""
        return all(
            next(self.lacks(read_footers=read_footers), None) is None for read_footers in (False, True)
        )

    def _known_units(self, file: int) -> int:
        """Return how many units a file has at least: those that somebody has finished, and all before."""
        assembled = self._next.index if file == self._next.file else 0
        return max(assembled, max(self._present.get(file, ()), default=-1) + 1)


def _named_parts(directory: str) -> Iterator[UnitKey]:
    with suppress(FileNotFoundError):
        yield from filter(None, map(UnitKey.of_part, os.listdir(directory)))
