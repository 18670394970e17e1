"""Units encoded in worker processes on this machine."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tokshard.tokenization.placement import Place
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers import messages
from tokshard.tokenization.workers.executor import Listener
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workers.handles import Events, NurseryHandle, WorkerHandle
from tokshard.tokenization.workers.starting import NurseryProcess, cannot_start

SILENCE_SECONDS = 60.0
_LISTEN_SECONDS = 1.0


class ProcessExecutor:
    """Encodes in worker processes.

    They are forked, as they are needed, from one process that has loaded what they need: the nursery,
    which is started by a command of its own (not by fork or by importing the main module again, so any
    program may call this).

    Use as a context manager to let the nursery load libraries before the recipe is known, see
    :meth:`start`; :meth:`run` starts one if there is none, and ends it.

    Args:
        workers: Most processes to fork.
        silence_seconds: A worker that says nothing for so long (it says something every second, even
            while it encodes) is taken for dead. Only time in which this process listens counts: it may
            have been suspended itself.
    """

    def __init__(self, workers: int, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._limit = workers
        self._silence_seconds = silence_seconds
        self._events: Events = queue.Queue()
        self._nursery: NurseryHandle | None = None
        self._workers: list[WorkerHandle] = []
        self._looked = 0.0
        self._listened_seconds = 0.0

    def start(self, process: NurseryProcess | None = None) -> NurseryHandle:
        """Start the nursery if there is none.

        Args:
            process: One that was started ahead, to be used.

        Raises:
            WorkerError: The system allows no more processes or files.
        """
        if self._nursery is None:
            self._events = queue.Queue()  # what workers of an earlier run said last is of no interest
            self._nursery = NurseryHandle(process or NurseryProcess(), self._events)
        return self._nursery

    def end(self) -> None:
        """End the nursery and all workers, if there are any."""
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.end()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """See :class:`~tokshard.tokenization.workers.executor.Executor`."""
        nursery = self.start()
        events = self._events
        self._looked = time.monotonic()
        try:
            nursery.prepare(recipe, parts_directory)
            feed = make_feed(lambda: events.put((None, None)))
            try:
                while True:
                    self._hand_out(feed, nursery)
                    if feed.exhausted and not any(worker.task for worker in self._workers):
                        self._settle()
                        if not any(worker.held for worker in self._workers):
                            return
                    self._handle(listener)
            finally:
                feed.stop()
        finally:
            self.end()

    def _hand_out(self, feed: Feed, nursery: NurseryHandle) -> None:
        """Give tasks to workers that have none, as long as there are tasks right now."""
        while True:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None and len(self._workers) >= self._limit:
                return
            if (task := feed.take()) is None:
                return
            if worker is None:
                worker = nursery.fork()
                self._workers.append(worker)
            worker.heard = self._listened_seconds
            worker.give(task)

    def _settle(self) -> None:
        """Let all held units be committed for which no place has been found."""
        for worker in self._workers:
            for key, (task, told) in worker.held.items():
                if not told:
                    worker.held[key] = task, True
                    worker.send({"settle": [key.file, key.index]})

    def _handle(self, listener: Listener) -> None:
        """Wait for one event and deal with it."""
        try:
            source, message = self._events.get(timeout=_LISTEN_SECONDS)
        except queue.Empty:
            source, message = None, None
        now = time.monotonic()
        self._listened_seconds += min(now - self._looked, _LISTEN_SECONDS)
        self._looked = now
        if source is not None:
            if message is None:
                raise source.death()
            if "error" in message:
                raise messages.error_from_json(message["error"])
            if isinstance(source, WorkerHandle):
                source.heard = self._listened_seconds
                self._heed(source, message, listener)
            elif "refused" in message:
                raise cannot_start(message["refused"])
            else:
                self._nursery_lives()
        self._check_silence()

    def _heed(self, worker: WorkerHandle, message: messages.Message, listener: Listener) -> None:
        """Deal with what a worker says."""
        if "pid" in message:
            worker.pid = message["pid"]
        elif "progress" in message:
            listener.encoded(*message["progress"])
        elif "held" in message and worker.task is not None:
            unit = messages.measured_from_json(message["held"])
            worker.held[unit.key] = worker.task, False
            worker.task = (
                None  # the next is given to it before the listener appends a unit, which may take long
            )
            places = listener.locate(unit)
            if places is None:
                self._settle()
            for place in places or ():
                self._tell_place(place)
        elif "outcome" in message:
            outcome = messages.outcome_from_json(message["outcome"])
            if worker.held.pop(outcome.key, None) is None:
                worker.task = None
            listener.finished(outcome)

    def _tell_place(self, place: Place) -> None:
        """Tell a place to the worker that holds the unit, if one does."""
        for worker in self._workers:
            if (held := worker.held.get(place.key)) is not None:
                worker.held[place.key] = held[0], True
                worker.send({"place": messages.place_to_json(place)})

    def _nursery_lives(self) -> None:
        for worker in self._workers:
            if worker.pid is None:
                worker.heard = self._listened_seconds

    def _check_silence(self) -> None:
        for worker in self._workers:
            at_work = worker.task is not None or worker.held
            if at_work and self._listened_seconds - worker.heard > self._silence_seconds:
                raise worker.silence(self._silence_seconds)
