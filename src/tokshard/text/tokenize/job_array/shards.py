"""The shard of a run that one task of a job array encodes, and the state of the work of all tasks.

A task decides alone which units are its own, so the rule depends only on what all tasks know: the inputs
with their sizes, and the number of tasks.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.errors import IntegrityError
from tokshard.storage.paths import is_remote
from tokshard.storage.remote.objects import open_binary
from tokshard.storage.scratch import scratch_directory
from tokshard.text.corpus.files import CorpusFile, check_unchanged, content_bytes
from tokshard.text.corpus.planning import plan_units
from tokshard.text.tokenize.assembly import read_assembled
from tokshard.text.tokenize.encoder import BatchProgress
from tokshard.text.tokenize.job import TokenizeJob
from tokshard.text.tokenize.job_array.options import ArrayTask
from tokshard.text.tokenize.part import PartHeader, PartReader, UnitKey
from tokshard.text.tokenize.run import chosen_executor
from tokshard.text.tokenize.workers.executor import Executor
from tokshard.text.tokenize.workers.feed import Feed

_COUNT_BYTES = 1 << 22
# So many pieces of work to a task: enough for an even deal, few enough for each to open few files.
_PIECES = 8


class UnitAssignment:
    """Assignment of all units of some files to ``count`` tasks, the same wherever it is computed.

    A file is dealt, the largest first, to as many tasks as it holds eighths of a task's fair share (at
    least one, no more than it has units), those with the least work so far; they take its units in turn.
    So many small files are dealt whole, each read by one task, and one large file is read by all.

    Example:
        >>> file = CorpusFile("a.jsonl", 5000, 0, "jsonl", "none")
        >>> assignment = UnitAssignment([file], 3, unit_bytes=1000)
        >>> [assignment.owner(UnitKey(0, index)) for index in range(5)]
        [0, 1, 2, 0, 1]
    """

    def __init__(self, files: Sequence[CorpusFile], count: int, unit_bytes: int) -> None:
        self._members: list[tuple[int, ...]] = [()] * len(files)
        sizes = [file.plain_bytes or 0 for file in files]
        total = sum(sizes)
        loads = [(0, task) for task in range(count)]
        for number in sorted(range(len(files)), key=lambda number: (-sizes[number], number)):
            size = sizes[number]
            pieces = -(-_PIECES * count * size // total) if total else 1
            width = max(1, min(pieces, count, -(-size // unit_bytes)))
            chosen = [heapq.heappop(loads) for _ in range(width)]
            for load, task in chosen:
                heapq.heappush(loads, (load + size // width, task))
            self._members[number] = tuple(task for _, task in chosen)

    def owner(self, key: UnitKey) -> int:
        """Return the task that a unit belongs to."""
        members = self._members[key.file]
        return members[key.index % len(members)]

    def members(self, file: int) -> tuple[int, ...]:
        """Return the tasks that the units of a file can belong to."""
        return self._members[file]


@dataclass(frozen=True, slots=True)
class MissingUnits:
    """Units of one input that have no finished part.

    Attributes:
        open_from: Of a compressed input whose end nobody has reached yet: the first unit of which it is
            not known whether there is one. None if all units are known.
    """

    file: int
    path: str
    units: tuple[int, ...]
    open_from: int | None = None

    def tasks(self, assignment: UnitAssignment) -> set[int]:
        """Return the tasks of an array that these units belong to."""
        if self.open_from is not None:
            return set(assignment.members(self.file))
        return {assignment.owner(UnitKey(self.file, index)) for index in self.units}


class WorkStatus:
    """The state of a work directory at one moment."""

    def __init__(self, job: TokenizeJob) -> None:
        self._job = job
        self._workspace = job.workspace
        self.assembled: list[UnitKey] = []
        self._next = UnitKey(0, 0)
        for units, _ in read_assembled(job.workspace.directory, job.accepted_encoders):
            for unit in units:
                self.assembled.append(unit.header.key)
                self._next = unit.header.key.following(last=unit.header.last)
        self._present: dict[int, set[int]] = {}
        with suppress(FileNotFoundError):
            for key in filter(None, map(UnitKey.of_part, os.listdir(job.workspace.parts))):
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
                accepted = part.unit == key and part.header.encoder in self._job.accepted_encoders
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

    def missing(self, *, read_footers: bool) -> Iterator[MissingUnits]:
        """Yield units without a finished part, in the order of the inputs, as they are found.

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
                indices = (unit.index for unit in plan_units(number, file, self._job.options.unit_size))
            missing = tuple(
                index
                for index in indices
                if not self.is_assembled(UnitKey(number, index))
                and (index not in present or (read_footers and self.part(UnitKey(number, index)) is None))
            )
            if missing or open_from is not None:
                yield MissingUnits(number, file.path, missing, open_from)

    def is_complete(self) -> bool:
        """Return whether every unit has a part; footers are read only if no file is missing."""
        return all(
            next(self.missing(read_footers=read_footers), None) is None for read_footers in (False, True)
        )

    def _known_units(self, file: int) -> int:
        # A lower bound: the units that some task has finished, and all before them.
        assembled = self._next.index if file == self._next.file else 0
        return max(assembled, max(self._present.get(file, ()), default=-1) + 1)


class TaskShard:
    """The units of one task, encoded into the common work directory.

    Nothing is ever removed: what looks half-done may be under way elsewhere.

    Attributes:
        resumed: Units of the shard that were finished before.
    """

    def __init__(self, job: TokenizeJob, task: ArrayTask, progress: Progress) -> None:
        self._job = job
        self._workspace = job.workspace
        self._task = task
        self._progress = progress
        self._assignment = UnitAssignment(job.files, task.count, job.options.unit_size)
        self._status = WorkStatus(job)
        self._files = [
            number for number in range(len(job.files)) if task.index in self._assignment.members(number)
        ]
        self.encoded_units = self.documents = self.tokens = 0
        self.resumed = sum(self._is_mine(key) for key in self._status.assembled)
        self._bytes_done = 0
        self._ready: set[UnitKey] = set()
        for key in filter(self._is_mine, self._status.present()):
            if not self._status.is_assembled(key) and (facts := self._status.part(key)) is not None:
                self._ready.add(key)
                self._bytes_done += facts.input_bytes
        self.resumed += len(self._ready)

    def encode(self, executor: Executor | None) -> None:
        """Encode the units of the shard that are not finished."""
        files = [self._job.files[number] for number in self._files]
        widths = [len(self._assignment.members(number)) for number in self._files]
        size = sum(content_bytes([file]) // width for file, width in zip(files, widths, strict=True))
        disk_bytes = sum((file.size_bytes or 0) // width for file, width in zip(files, widths, strict=True))
        streamed = any(file.is_stream for file in files)
        with (
            chosen_executor(executor, size, self._job.options, files=len(files)) as chosen,
            scratch_directory() if streamed else nullcontext("") as raw,
        ):
            self._run(chosen, raw, disk_bytes)
        check_unchanged(files)

    def _run(self, executor: Executor, raw: str, disk_bytes: int) -> None:
        is_started = False
        content_bytes = 0
        with (
            Feed(
                self._job.files,
                [number for number in self._files if self._needs_opening(number)],
                unit_bytes=self._job.options.unit_size,
                max_document_bytes=self._job.parameters.max_document_bytes,
                raw_directory=raw,
                is_done=self._needs_nothing,
                fields=self._job.options.field_names,
                streams=self._job.workers,
            ) as feed,
            closing(executor.run(self._job.encoding(), self._workspace.parts, feed)) as events,
        ):
            for event in events:
                if not is_started:  # until then workers load the tokenizer
                    self._progress.start("encoding", disk_bytes, self._bytes_done)
                    is_started = True
                if isinstance(event, BatchProgress):
                    self._bytes_done += event.input_bytes
                    self.documents += event.documents
                    self.tokens += event.tokens
                    content_bytes += event.content_bytes
                elif (record := event.refused) is not None:
                    file = self._job.files[event.key.file]
                    raise self._job.error_policy.refuse(file.path, _line_of(file, record.offset), record)
                else:
                    self.encoded_units += 1
                self._progress.update(
                    ProgressUpdate(self._bytes_done, self.documents, self.tokens, content_bytes=content_bytes)
                )

    def _is_mine(self, key: UnitKey) -> bool:
        return self._assignment.owner(key) == self._task.index

    def _needs_nothing(self, key: UnitKey) -> bool:
        return not self._is_mine(key) or key in self._ready or self._status.is_assembled(key)

    def _needs_opening(self, number: int) -> bool:
        # A compressed file would be decompressed for nothing if all its units are finished.
        if not self._job.files[number].is_stream:
            return True
        count = self._status.stream_units(number)
        return count is None or not all(self._needs_nothing(UnitKey(number, index)) for index in range(count))


def _line_of(file: CorpusFile, offset: int) -> int | None:
    # None where the file would have to be decompressed: the lines before a unit are in units of other tasks,
    # and nobody has counted them yet.
    if file.format != "jsonl":
        return offset + 1
    if file.is_stream or is_remote(file.path):
        return None
    lines = 1
    with open_binary(file.path) as text:
        while offset and (chunk := text.read(min(offset, _COUNT_BYTES))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines
