"""Units encoded on the nodes of a Ray cluster.

A unit of a plain file or table is a task. A compressed file is read from its beginning by everybody who
needs any of it, so it becomes some *shares*: tasks that decompress it and encode every n-th unit.

The parts are committed in a directory of this run among the parts, under a name that nobody can know by
chance. A node that sees that directory shares the file system with this process and writes there; any
other sends the bytes of its parts, and the gateway writes them. Only this process moves parts to their
names, so a task that outlives its run (its node was cut off, say) can do no harm to the next.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace

from tokshard.cluster.connection import Calls, Connection
from tokshard.cluster.options import RayOptions
from tokshard.cluster.retryable_tasks import Errand, run_errands
from tokshard.cluster.task import Message
from tokshard.errors import StorageError
from tokshard.storage import syscalls
from tokshard.storage.files import remove_tree
from tokshard.storage.fs import abspath
from tokshard.tokenization.encoder import Task
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers import messages
from tokshard.tokenization.workers.executor import Listener
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workers.shares import Stream

_FUNCTION = "tokshard.tokenization.workers.node:encode"
_PART_NAME = re.compile(r"([0-9]{6,})-([0-9]{9,})\.part")
# Each share decompresses the whole file, which is about ten times as fast as encoding it.
_MOST_SHARES = 32


class RayExecutor:
    """Encodes on a Ray cluster.

    Args:
        options: Which cluster, and how.

    Example:
        >>> executor = RayExecutor(RayOptions(address="auto", cpus_per_task=2))
        >>> tokenize_corpus("web/*.jsonl", "out/web", executor=executor)  # doctest: +SKIP
    """

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """See :class:`~tokshard.tokenization.workers.executor.Executor`."""
        feed = make_feed(lambda: None)
        feed.leave_streams()
        parts = _Parts(parts_directory)
        encoding = _Encoding(parts, recipe, listener)
        syscalls.make_directory(parts.incoming)
        try:
            with Connection(self._options, Calls(_FUNCTION, recipe.tokenizer, parts.incoming)) as connection:
                errands = _errands(feed, encoding, parts, lambda: connection.slots)
                run_errands(connection, lambda: next(errands, None), retries=self._options.retries)
        except BaseException:
            parts.keep_all()
            raise
        finally:
            with suppress(StorageError):  # what a task that was cut off still writes is swept later
                remove_tree(parts.incoming)


class _Parts:
    """The parts of a run, and those that have just been committed and not been told of yet."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.incoming = os.path.join(os.path.abspath(directory), f"incoming-{secrets.token_hex(16)}")
        self.there: defaultdict[int, set[int]] = defaultdict(set)
        for name in os.listdir(directory):
            if found := _PART_NAME.fullmatch(name):
                self.there[int(found[1])].add(int(found[2]))

    def keep(self, key: UnitKey) -> None:
        """Move a part to its name."""
        self._move(key.part_name)

    def keep_all(self) -> None:
        """Move all parts that are whole, at the end of a run that was stopped."""
        for name in filter(_PART_NAME.fullmatch, os.listdir(self.incoming)):
            self._move(name)

    def _move(self, name: str) -> None:
        syscalls.replace(os.path.join(self.incoming, name), os.path.join(self._directory, name))


class _Encoding:
    """What all errands of a run have in common: what every call says, and what becomes of every answer."""

    def __init__(self, parts: _Parts, recipe: Recipe, listener: Listener) -> None:
        self.call: Message = {"recipe": recipe.to_json(), "parts": parts.incoming}
        self._parts = parts
        self._listener = listener

    def take(self, answer: Message) -> UnitKey:
        """Take an answer; return the unit it is about."""
        if "error" in answer:
            raise messages.error_from_json(answer["error"])
        outcome = messages.outcome_from_json(answer["outcome"])
        if outcome.refused is None:
            self._parts.keep(outcome.key)
        self._listener.encoded(*answer["progress"])
        self._listener.finished(outcome)
        return outcome.key


class _UnitErrand:
    """One unit that can be read at any place."""

    def __init__(self, encoding: _Encoding, task: Task, size_bytes: int) -> None:
        self._encoding = encoding
        self._task = task
        self._size_bytes = size_bytes
        self._is_answered = False

    @property
    def label(self) -> str:
        return f"unit {self._task.unit.index} of {self._task.name}"

    def arguments(self) -> Message | None:
        if self._is_answered:
            return None
        unit = replace(self._task.unit, path=abspath(self._task.unit.path))
        task = messages.task_to_json(replace(self._task, unit=unit))
        return {**self._encoding.call, "task": task, "size_bytes": self._size_bytes}

    def receive(self, answer: Message) -> None:
        self._encoding.take(answer)
        self._is_answered = True


class _ShareErrand:
    """Every n-th unit of a compressed file, from some unit on, except those that are done."""

    def __init__(self, encoding: _Encoding, stream: Stream, first: int, step: int, done: set[int]) -> None:
        self._encoding = encoding
        self._stream = stream
        self._next = first
        self._step = step
        self._done = {index for index in done if index >= first and (index - first) % step == 0}
        self._pass_over_done()

    @property
    def label(self) -> str:
        return f"unit {self._next} of {self._stream.file.path}"

    def arguments(self) -> Message:
        file = replace(self._stream.file, path=abspath(self._stream.file.path))
        return {
            **self._encoding.call,
            "stream": asdict(replace(self._stream, file=file)),
            "first": self._next,
            "step": self._step,
            "done": sorted(self._done),
        }

    def receive(self, answer: Message) -> None:
        self._done.add(self._encoding.take(answer).index)
        self._pass_over_done()

    def _pass_over_done(self) -> None:
        while self._next in self._done:
            self._done.discard(self._next)
            self._next += self._step


def _errands(feed: Feed, encoding: _Encoding, parts: _Parts, slots: Callable[[], int]) -> Iterator[Errand]:
    """Yield the errands of a feed, in the order of the inputs."""
    total = sum(file.size_bytes or 0 for file in feed.files if file.is_stream)
    while True:
        if (task := feed.take()) is not None:
            yield _UnitErrand(encoding, task, feed.files[task.unit.file].size_bytes or 0)
        elif (stream := feed.take_stream()) is not None:
            assembled = next(i for i in itertools.count() if not feed.is_done(UnitKey(stream.number, i)))
            step = _share_count(stream, slots(), total)
            for first in range(assembled, assembled + step):
                yield _ShareErrand(encoding, stream, first, step, parts.there[stream.number])
        else:
            return


def _share_count(stream: Stream, slots: int, total_bytes: int) -> int:
    """Return into how many shares to divide a compressed file, so that all files together fill the slots."""
    size = stream.file.size_bytes or 0
    fair = -(-slots * size // total_bytes) if total_bytes else 1
    units = -(-(stream.file.plain_bytes or 0) // stream.unit_bytes)
    return max(1, min(fair, units, _MOST_SHARES))
