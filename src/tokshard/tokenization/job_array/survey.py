"""What is finished of a run that many processes work on, and what is not: read, never changed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokshard.corpus.planning import plan_units
from tokshard.errors import IntegrityError
from tokshard.storage.journal import read_checkpoints
from tokshard.tokenization.assembly import JOURNAL
from tokshard.tokenization.part import PartReader, UnitKey
from tokshard.tokenization.preparation import TokenizeJob
from tokshard.tokenization.workers.shares import Deal
from tokshard.tokenization.workspace import Workspace

_PART_NAME = re.compile(r"([0-9]{6,})-([0-9]{9,})\.part")


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


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the footer of a finished part says.

    Attributes:
        last: Whether its unit is the last of its file.
        input_bytes: On-disk input bytes that the unit stands for.
        documents: Documents in it.
        tokens: Tokens of all fields.
    """

    last: bool
    input_bytes: int
    documents: int
    tokens: int


class Survey:
    """The state of a work directory at one moment.

    Args:
        job: The run.
        workspace: Its work directory.
    """

    def __init__(self, job: TokenizeJob, workspace: Workspace) -> None:
        self._job = job
        self._workspace = workspace
        self.assembled = list(_assembled(workspace.directory, job.accepted_engines))
        self._next = UnitKey(0, 0)
        if self.assembled:
            last, is_last = self.assembled[-1]
            self._next = UnitKey(last.file + 1, 0) if is_last else UnitKey(last.file, last.index + 1)
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

    def part(self, key: UnitKey) -> PartFacts | None:
        """Return what the part of a unit says; None if there is none that may stay.

        Only its footer is looked at: the content is checked when it is assembled.
        """
        path = self._workspace.part_path(key)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return None
            with PartReader(path) as part:
                if part.unit != key or part.engine not in self._job.accepted_engines:
                    return None
                tokens = sum(one.tokens for one in part.counts.fields)
                return PartFacts(part.last, part.input_bytes, part.counts.documents, tokens)
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


def _assembled(directory: str, engines: frozenset[str]) -> Iterator[tuple[UnitKey, bool]]:
    """Yield the units that the journal covers, and whether each is the last of its file."""
    for checkpoint in read_checkpoints(
        os.path.join(directory, JOURNAL), accepts=lambda unit: unit["engine"] in engines
    ):
        for unit in checkpoint.entries:
            yield UnitKey(unit["file"], unit["unit"]), unit["last"]


def _named_parts(directory: str) -> Iterator[UnitKey]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        if found := _PART_NAME.fullmatch(name):
            yield UnitKey(int(found[1]), int(found[2]))
