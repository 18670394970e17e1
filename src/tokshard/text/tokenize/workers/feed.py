"""The feed: the tasks of a run in the order of the inputs, taken one by one as workers become free.

Plain files and tables are cut without reading them. Compressed files and pipes are decompressed by
threads, several files at once, each a few units ahead of the workers; or they are left to workers that
can read them for themselves.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from tokshard.errors import UsageError
from tokshard.text.corpus.fields import FieldNames
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units, stream_units
from tokshard.text.corpus.units import Unit
from tokshard.text.tokenize.encoder import Task
from tokshard.text.tokenize.part import PartNames, UnitKey

_UNITS_AHEAD = 2
_STOP_SECONDS = 0.5


class _Source(Protocol):
    exhausted: bool

    def poll(self) -> Unit | None: ...


@dataclass(frozen=True, slots=True)
class StreamInput:
    """An input that can be read only from its beginning, with the parameters of its units.

    Attributes:
        unit_bytes: The size of a unit in the decompressed stream.
        max_document_bytes: The longest line that can become a document.
        compare_below: All documents before this position are encoded by both encoders.
    """

    number: int
    file: CorpusFile
    unit_bytes: int
    max_document_bytes: int
    compare_below: int


class Feed:
    """Tasks for the workers; use as a context manager.

    Args:
        numbers: The numbers of those of them that have units to encode.
        names: The names of parts.
        raw_directory: Where decompressed units wait for their workers.
        fields: Fields that tables must have as columns.

    Attributes:
        files: The inputs.
        is_done: Tells whether a unit is finished, or another process encodes it.
        wake: Called from another thread when a unit has become ready; set by the executor.
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
        fields: FieldNames | None = None,
    ) -> None:
        self.files = files
        self._fields = fields or FieldNames()
        self._unit_bytes = names.unit_size
        self._max_document_bytes = max_document_bytes
        self._raw_directory = raw_directory
        self.is_done = is_done
        self.wake: Callable[[], object] = lambda: None
        self._streams = streams
        self._names = names
        self._compare_below = names.compare_below
        self._waiting = iter(list(numbers))
        self._active: list[_Source] = []
        self._readers: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._limit: UnitKey | None = None
        self._leaves_streams = False
        self._left: StreamInput | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.stop()

    def leave_streams(self) -> None:
        """Let :meth:`take_stream` hand out compressed files; raise UsageError if an input is a pipe."""
        for file in self.files:
            if file.size_bytes is None:
                raise UsageError(
                    f"the input {file.path} can be read only by this process, not by other nodes",
                    hint="save it to a file that all nodes can read, and pass that file",
                )
        self._leaves_streams = True

    def take_stream(self) -> StreamInput | None:
        """Return the compressed file whose turn it is, if :meth:`take` has returned None for it."""
        left, self._left = self._left, None
        return left

    def take(self) -> Task | None:
        """Return a task if one is ready right now; see :attr:`exhausted` if not."""
        while self._left is None:
            for source in self._active:
                if (unit := source.poll()) is not None:
                    if self._limit is None or UnitKey(unit.file, unit.index) < self._limit:
                        below = self._compare_below.get(unit.file, 0)
                        part = self._names.of(UnitKey(unit.file, unit.index))
                        return Task(unit, self.files[unit.file].path, part, below)
                    source.exhausted = True
            self._active = [source for source in self._active if not source.exhausted]
            if len(self._active) >= self._streams or not self._open_next():
                break
        return None

    @property
    def exhausted(self) -> bool:
        """True if no task will come any more. Meaningful after :meth:`take` has returned None."""
        return not self._active and self._left is None

    def limit_to(self, key: UnitKey) -> None:
        """Hand out no task from ``key`` on any more."""
        self._limit = key if self._limit is None else min(self._limit, key)

    def stop(self) -> None:
        """Let the reading threads end, and wait half a second for them: one may be stuck in a pipe.

        A later run in this process writes decompressed units under the same names.
        """
        self._stopped.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def _open_next(self) -> bool:
        number = next(self._waiting, None)
        if number is None or (self._limit is not None and number > self._limit.file):
            return False
        file = self.files[number]
        if not file.is_stream:
            texts, key = self._fields
            planned = plan_units(number, file, self._unit_bytes, texts, key_field=key)
            self._active.append(_PlannedSource(planned, self.is_done))
        elif self._leaves_streams:
            self._left = StreamInput(
                number, file, self._unit_bytes, self._max_document_bytes, self._compare_below.get(number, 0)
            )
        else:
            units = stream_units(
                number,
                file,
                self._unit_bytes,
                self._max_document_bytes,
                self._raw_directory,
                skip=lambda index: self.is_done(UnitKey(number, index)),
            )
            source = _StreamedSource(units, self._stopped, self.wake)
            self._active.append(source)
            self._readers.append(source.reader)
        return True


class _PlannedSource:
    def __init__(self, units: Iterator[Unit], is_done: Callable[[UnitKey], bool]) -> None:
        self._units = units
        self._is_done = is_done
        self.exhausted = False

    def poll(self) -> Unit | None:
        for unit in self._units:
            if not self._is_done(UnitKey(unit.file, unit.index)):
                return unit
        self.exhausted = True
        return None


class _StreamedSource:
    def __init__(self, units: Iterator[Unit], stopped: threading.Event, wake: Callable[[], object]) -> None:
        self._ready: queue.Queue[Unit | BaseException | None] = queue.Queue(_UNITS_AHEAD)
        self._stopped = stopped
        self._wake = wake
        self.exhausted = False
        self.reader = threading.Thread(target=self._read, args=(units,), name="decompress", daemon=True)
        self.reader.start()

    def poll(self) -> Unit | None:
        try:
            item = self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            self.exhausted = True
            raise item
        if item is None:
            self.exhausted = True
        return item

    def _read(self, units: Iterator[Unit]) -> None:
        try:
            for unit in units:
                if not self._put(unit):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - the thread that polls raises it
            self._put(error)

    def _put(self, item: Unit | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            self._wake()
            return True
        return False
