"""Units encoded on the nodes of a Ray cluster.

A unit of a plain file or table is a task. A compressed file is read from its beginning by everybody who
needs any of it, so it becomes some *slices*: tasks that decompress it and encode every n-th unit.

The parts are committed in a directory of this run among the parts, under a name that nobody can know by
chance. A node that sees that directory shares the file system with this process and writes there; any
other sends the bytes of its parts, and the gateway writes them. Only this process moves parts to their
names, so a task that outlives its run (its node was cut off, say) can do no harm to the next.

:func:`encode_on_node` runs on the nodes; everything else where the run was started.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace

from tokshard.core.worker_errors import error_from_json, error_to_json
from tokshard.errors import InputError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.files import remove_tree, write_atomically
from tokshard.storage.fs import abspath
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file
from tokshard.storage.scratch import scratch_directory
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import stream_units
from tokshard.text.tokenize.cluster.connection import Calls, Connection, run_retryable
from tokshard.text.tokenize.cluster.options import RayOptions
from tokshard.text.tokenize.cluster.task import Answer, Message, on_node
from tokshard.text.tokenize.encoder import (
    BatchProgress,
    EncodingSpec,
    Outcome,
    Task,
    UnitEncoder,
    progress_each,
)
from tokshard.text.tokenize.part import UnitKey
from tokshard.text.tokenize.workers.executor import Events
from tokshard.text.tokenize.workers.feed import Feed, StreamInput

_FUNCTION = "tokshard.text.tokenize.workers.ray:encode_on_node"
# Each slice decompresses the whole file, which is about ten times as fast as encoding it.
_MOST_SLICES = 32
_PROGRESS_SECONDS = 1.0
_HINT_INPUTS = "every node reads the inputs: store them on a shared file system or in an object store"

_Events = tuple[BatchProgress | Outcome, ...]


class RayExecutor:
    """Executor that encodes on a Ray cluster."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`~tokshard.text.tokenize.workers.executor.Executor`."""
        feed.leave_streams()
        parts = _IncomingParts(parts_directory)
        syscalls.make_directory(parts.incoming)
        try:
            with Connection(self._options, Calls(_FUNCTION, spec.tokenizer, parts.incoming)) as connection:
                tasks = _tasks(feed, spec, parts, connection)
                for events in run_retryable(connection, tasks, retries=self._options.ray_retries):
                    yield from events
        except BaseException:
            parts.keep_all()
            raise
        finally:
            with suppress(StorageError):  # what a task that was cut off still writes is swept later
                remove_tree(parts.incoming)


class _IncomingParts:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.incoming = os.path.join(os.path.abspath(directory), f"incoming-{secrets.token_hex(16)}")
        self.present: defaultdict[int, set[int]] = defaultdict(set)
        for key in filter(None, map(UnitKey.of_part, os.listdir(directory))):
            self.present[key.file].add(key.index)

    def keep(self, name: str) -> None:
        syscalls.replace(os.path.join(self.incoming, name), os.path.join(self._directory, name))

    def keep_all(self) -> None:
        # At the end of a run that was stopped.
        for name in filter(UnitKey.of_part, os.listdir(self.incoming)):
            self.keep(name)

    def receive(self, answer: Message) -> Outcome:
        if "error" in answer:
            raise error_from_json(answer["error"])
        outcome = Outcome.from_json(answer["outcome"])
        if outcome.refused is None:
            self.keep(outcome.key.part_name)
        return outcome


class _ProgressOfUnit:
    # Counts nothing twice if the unit is lost and encoded again.
    def __init__(self) -> None:
        self._attempt = self._counted = (0, 0, 0, 0)

    def restart(self) -> None:
        self._attempt = (0, 0, 0, 0)

    def add(self, numbers: list[int]) -> BatchProgress:
        attempt = BatchProgress(*(map(sum, zip(self._attempt, numbers, strict=True))))
        before, self._attempt = self._counted, attempt
        self._counted = BatchProgress(*map(max, before, attempt))
        return BatchProgress(*(now - then for now, then in zip(self._counted, before, strict=True)))


class _UnitTask:
    def __init__(self, spec: EncodingSpec, parts: _IncomingParts, task: Task, size_bytes: int) -> None:
        self._spec = spec
        self._parts = parts
        self._task = task
        self._size_bytes = size_bytes
        self._is_answered = False
        self._progress = _ProgressOfUnit()

    @property
    def label(self) -> str:
        return f"unit {self._task.unit.index} of {self._task.name}"

    def arguments(self) -> Message | None:
        if self._is_answered:
            return None
        self._progress.restart()
        unit = replace(self._task.unit, path=abspath(self._task.unit.path))
        return {
            "spec": self._spec.to_json(),
            "parts": self._parts.incoming,
            "task": replace(self._task, unit=unit).to_json(),
            "size_bytes": self._size_bytes,
        }

    def receive(self, answer: Message) -> _Events:
        if "progress" in answer:
            return (self._progress.add(answer["progress"]),)
        outcome = self._parts.receive(answer)
        self._is_answered = True
        return (outcome,)


class _StreamSliceTask:
    # Every n-th unit of a compressed file, from some unit on, except those that are done.
    def __init__(
        self, spec: EncodingSpec, parts: _IncomingParts, stream: StreamInput, first: int, step: int
    ) -> None:
        self._spec = spec
        self._parts = parts
        self._stream = stream
        self._next = first
        self._step = step
        self._progress = _ProgressOfUnit()
        present = parts.present[stream.number]
        self._done = {index for index in present if index >= first and (index - first) % step == 0}
        self._pass_over_done()

    @property
    def label(self) -> str:
        return f"unit {self._next} of {self._stream.file.path}"

    def arguments(self) -> Message:
        file = replace(self._stream.file, path=abspath(self._stream.file.path))
        self._progress.restart()
        return {
            "spec": self._spec.to_json(),
            "parts": self._parts.incoming,
            "stream": asdict(replace(self._stream, file=file)),
            "first": self._next,
            "step": self._step,
            "done": sorted(self._done),
        }

    def receive(self, answer: Message) -> _Events:
        if "progress" in answer:
            return (self._progress.add(answer["progress"]),)
        outcome = self._parts.receive(answer)
        self._done.add(outcome.key.index)
        self._progress = _ProgressOfUnit()
        self._pass_over_done()
        return (outcome,)

    def _pass_over_done(self) -> None:
        while self._next in self._done:
            self._done.discard(self._next)
            self._next += self._step


def _tasks(
    feed: Feed, spec: EncodingSpec, parts: _IncomingParts, cluster: Connection
) -> Iterator[_UnitTask | _StreamSliceTask]:
    total = sum(file.size_bytes or 0 for file in feed.files if file.is_stream)
    while True:
        if (task := feed.take()) is not None:
            yield _UnitTask(spec, parts, task, feed.files[task.unit.file].size_bytes or 0)
        elif (stream := feed.take_stream()) is not None:
            begin = next(i for i in itertools.count() if not feed.is_done(UnitKey(stream.number, i)))
            step = _slice_count(stream, cluster.slots, total)
            for first in range(begin, begin + step):
                yield _StreamSliceTask(spec, parts, stream, first, step)
        else:
            return


def _slice_count(stream: StreamInput, slots: int, total_bytes: int) -> int:
    size = stream.file.size_bytes or 0
    fair = -(-slots * size // total_bytes) if total_bytes else 1
    units = -(-(stream.file.plain_bytes or 0) // stream.unit_bytes)
    return max(1, min(fair, units, _MOST_SLICES))


# On the nodes


def encode_on_node(arguments: Message, tokenizer: bytes) -> Iterator[Answer]:
    """Encode a unit or a slice of a compressed file; runs in a worker process of Ray.

    A part is committed among those of the run if their directory is visible here, which takes a shared
    file system; otherwise it is written to a directory of the task, and its bytes are returned.

    Args:
        arguments: ``spec``, ``parts`` (where to commit), and either ``task`` and ``size_bytes`` of its
            input, or ``stream``, ``first``, ``step`` and ``done``: every step-th unit from the first on,
            except those.
        tokenizer: The content of the tokenizer's file; nothing for the built-in one.

    Yields:
        About every second and at the end of a unit its ``progress`` since the last one (see
        :class:`~tokshard.text.tokenize.encoder.BatchProgress`); for each unit its ``outcome``, and the part
        if this node cannot commit it; or at the end an ``error``.
    """
    host = socket.gethostname()
    try:
        with scratch_directory() as scratch:
            encoder = _encoder(arguments["spec"], tokenizer)
            is_shared = os.path.isdir(arguments["parts"])
            encoder.parts_directory = arguments["parts"] if is_shared else scratch
            for event in progress_each(_PROGRESS_SECONDS, _encode(encoder, arguments, scratch, host)):
                if isinstance(event, BatchProgress):
                    yield {"progress": list(event)}, b""
                    continue
                answer = {"outcome": event.to_json()}
                if is_shared or event.refused is not None:
                    yield answer, b""
                else:
                    name = event.key.part_name
                    yield {**answer, "file": name}, _take(os.path.join(scratch, name))
    except Exception as error:  # noqa: BLE001 - the job raises it
        yield {"error": error_to_json(on_node(error, host))}, b""


_encoders: dict[str, UnitEncoder] = {}


def _encoder(spec: Message, tokenizer: bytes) -> UnitEncoder:
    # A worker process of Ray makes it once: it serves one run.
    described = json.dumps(spec, sort_keys=True)
    if described not in _encoders:
        opened = EncodingSpec.from_json(spec)
        with scratch_directory() as scratch:
            if opened.tokenizer is not None:
                path = os.path.join(scratch, os.path.basename(opened.tokenizer))
                write_atomically(path, tokenizer)
                opened = replace(opened, tokenizer=path)
            _encoders[described] = UnitEncoder(opened, scratch)
    return _encoders[described]


def _encode(
    encoder: UnitEncoder, arguments: Message, scratch: str, host: str
) -> Iterator[BatchProgress | Outcome]:
    if "task" in arguments:
        task = Task.from_json(arguments["task"])
        _check_input(task.unit.path, arguments["size_bytes"], host)
        yield from encoder.encode(task)
        return
    described = arguments["stream"]
    stream = StreamInput(**{**described, "file": CorpusFile(**described["file"])})
    _check_input(stream.file.path, stream.file.size_bytes or 0, host)
    first, step, done = arguments["first"], arguments["step"], frozenset(arguments["done"])
    yield from encode_stream(
        encoder,
        stream,
        directory=scratch,
        wanted=lambda index: index >= first and (index - first) % step == 0 and index not in done,
    )


def encode_stream(
    encoder: UnitEncoder, stream: StreamInput, *, directory: str, wanted: Callable[[int], bool]
) -> Iterator[BatchProgress | Outcome]:
    """Decompress a file in this process and encode the wanted units one after the other.

    A cluster has no driver that could decompress for all: whoever has a slice of a compressed file
    reads the whole of it. That is cheap beside encoding while the slice is not much below a tenth.

    ``directory``: where the decompressed unit is stored meanwhile: one that no other process uses.
    ``wanted``: tells which units to encode, by their numbers.

    Yields:
        The progress and the outcome of each wanted unit; nothing after one that was refused.

    Raises:
        InputError: The input cannot be read.
        StorageError: A decompressed unit or a part cannot be written.
    """
    for unit in stream_units(
        stream.number,
        stream.file,
        stream.unit_bytes,
        stream.max_document_bytes,
        directory,
        skip=lambda index: not wanted(index),
    ):
        for event in encoder.encode(Task(unit, stream.file.path, stream.compare_below)):
            yield event
            if isinstance(event, Outcome) and event.refused is not None:
                return


def _take(path: str) -> bytes:
    with open_file(path) as file:
        content = file.read()
    syscalls.unlink(path)
    return content


def _check_input(path: str, size_bytes: int, host: str) -> None:
    if is_remote(path):
        return
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise InputError(f"input not found on the node {host}: {path}", hint=_HINT_INPUTS) from None
    except OSError as error:
        raise InputError(f"cannot read {path} on the node {host}: {error.strerror}") from error
    if found != size_bytes:
        raise InputError(
            f"the input {path} has {found} bytes on the node {host}, but {size_bytes} on the node that "
            "started the run",
            hint=_HINT_INPUTS,
        )
