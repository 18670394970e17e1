"""The feed: the tasks of a run in the order of the inputs, taken one by one as workers become free.

Plain files and tables are cut without reading them. Compressed files and pipes are decompressed by
threads, several files at once, each a unit ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tokshard.core.background import Background
from tokshard.errors import UsageError
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units, stream_units
from tokshard.text.corpus.values import RecordFields
from tokshard.text.tokenize.encoder import Task
from tokshard.text.tokenize.part import InputPartNames, PartNames, UnitKey

_STOP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class StreamInput:
    """An input that can be read only from its beginning.

    Attributes:
        unit_bytes: The size of a unit in the decompressed stream.
        max_document_bytes: The longest line that can become a document.
        compare_below: All documents before this position are encoded by both encoders.
        names: The names of the parts of its units.
    """

    number: int
    file: CorpusFile
    unit_bytes: int
    max_document_bytes: int
    compare_below: int
    names: InputPartNames

    def tasks(self, directory: str, skip: Callable[[UnitKey], bool]) -> Iterator[Task]:
        """Decompress it into files in a directory, and yield its units except those to skip."""
        for unit in stream_units(
            self.number,
            self.file,
            self.unit_bytes,
            self.max_document_bytes,
            directory,
            skip=lambda index: skip(UnitKey(self.number, index)),
        ):
            yield Task(unit, self.file.path, self.names.of(unit.index), self.compare_below)


class Feed(AbstractContextManager["Feed"]):
    """Tasks for the workers; use as a context manager.

    Args:
        files: The inputs.
        numbers: The numbers of those of them that have units to encode.
        names: The names of parts.
        raw_directory: Where decompressed units wait for their workers.
        is_done: Tells whether a unit is finished, or another process encodes it.
        streams: Most inputs to read at once.
        fields: RecordFields that tables must have as columns.
    """

    def __init__(
        self,
        files: Sequence[CorpusFile],
        numbers: Iterable[int],
        *,
        max_document_bytes: int,
        names: PartNames,
        raw_directory: str,
        is_done: Callable[[UnitKey], bool],
        streams: int,
        fields: RecordFields | None = None,
    ) -> None:
        self.files = files
        self.is_done = is_done
        self._fields = fields
        self._max_document_bytes = max_document_bytes
        self._raw_directory = raw_directory
        self._streams = streams
        self._names = names
        self._waiting = deque(numbers)
        self._active: list[Iterator[Task | None]] = []
        self._reading: dict[int, Background[Task | None]] = {}
        self._limit: UnitKey | None = None

    def __exit__(self, *_: object) -> None:
        """Wait half a second for the reading threads: one may be stuck in a pipe.

        A later run in this process writes decompressed units under the same names.
        """
        wait(self._reading.values(), _STOP_SECONDS)

    def leave_streams(self) -> list[StreamInput]:
        """Return the compressed inputs, for others to read; raise UsageError if an input is a pipe."""
        for file in self.files:
            if file.size_bytes is None:
                raise UsageError(
                    f"the input {file.path} can be read only by this process, not by other nodes",
                    hint="save it to a file that all nodes can read, and pass that file",
                )
        streams = [number for number in self._waiting if self.files[number].is_stream]
        self._waiting = deque(number for number in self._waiting if not self.files[number].is_stream)
        return list(map(self._stream, streams))

    def take(self) -> Task | None:
        """Return a task if one is ready right now; see :attr:`exhausted` if not."""
        while True:
            for source in list(self._active):
                for task in source:
                    if task is None:  # it is being decompressed
                        break
                    if self._limit is None or task.key < self._limit:
                        return task
                    self._active.remove(source)
                    break
                else:
                    self._active.remove(source)
            if len(self._active) >= self._streams or not self._open_next():
                return None

    @property
    def exhausted(self) -> bool:
        """True if no task will come any more. Meaningful after :meth:`take` has returned None."""
        return not self._active

    def limit_to(self, key: UnitKey) -> None:
        """Hand out no task from ``key`` on any more."""
        self._limit = key if self._limit is None else min(self._limit, key)

    def _open_next(self) -> bool:
        if not self._waiting or (self._limit is not None and self._waiting[0] > self._limit.file):
            return False
        number = self._waiting.popleft()
        is_stream = self.files[number].is_stream
        self._active.append(self._decompressed(number) if is_stream else self._planned(number))
        return True

    def _planned(self, number: int) -> Iterator[Task]:
        file = self.files[number]
        below = self._names.compare_below.get(number, 0)
        for unit in plan_units(number, file, self._names.unit_size, self._fields):
            key_of_unit = UnitKey(number, unit.index)
            if not self.is_done(key_of_unit):
                yield Task(unit, file.path, self._names.of(key_of_unit), below)

    def _decompressed(self, number: int) -> Iterator[Task | None]:
        tasks = self._stream(number).tasks(self._raw_directory, self.is_done)
        task: Task | None = None
        while True:
            coming = self._reading[number] = Background(lambda: next(tasks, None))
            if task is not None:
                yield task
            while not coming.done():
                yield None
            if (task := coming.result()) is None:
                del self._reading[number]
                return

    def _stream(self, number: int) -> StreamInput:
        return StreamInput(
            number,
            self.files[number],
            self._names.unit_size,
            self._max_document_bytes,
            self._names.compare_below.get(number, 0),
            self._names.of_inputs[number],
        )
