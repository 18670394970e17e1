"""A worker process: encodes the units that the job names, spoken to by lines of JSON.

It keeps no state that matters: it may be killed at any moment. An encoded unit is *held* in memory until
the job says where its tokens belong, and the next unit is encoded meanwhile. When the process that
started the job goes away, the socket ends and so does the worker.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
from typing import NoReturn

from tokshard.tokenization.encoded import HELD_BYTES, EncodedUnit
from tokshard.tokenization.encoder import Outcome, Task, UnitEncoder
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.placement import Place
from tokshard.tokenization.workers import messages

HEARTBEAT_SECONDS = 1.0


def ignore_signals() -> None:
    """Ignore what may reach all processes of a job at once: it is the job that ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def work(encoder: UnitEncoder, connection: socket.socket) -> NoReturn:
    """Be a worker until the connection to the job ends."""
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, lines), daemon=True).start()
    channel = _Channel(connection)
    threading.Thread(target=channel.beat, daemon=True).start()
    try:
        channel.send({"pid": os.getpid()})
        bench = _Bench(encoder, channel, lines)
        while True:
            bench.heed(lines.get())
    except BaseException as error:  # noqa: BLE001 - the job raises it
        channel.send({"error": messages.error_to_json(error)})
        os._exit(1)


def _listen(connection: socket.socket, lines: queue.Queue[bytes]) -> None:
    with connection.makefile("rb") as stream:
        for line in stream:
            lines.put(line)
    os._exit(0)


class _Bench:
    """What a worker has before it: what it is told, and the units that it holds."""

    def __init__(self, encoder: UnitEncoder, channel: _Channel, lines: queue.Queue[bytes]) -> None:
        self._encoder = encoder
        self._channel = channel
        self._lines = lines
        self._held: dict[UnitKey, tuple[Task, EncodedUnit]] = {}

    def heed(self, line: bytes) -> None:
        """Do what a message says."""
        message = json.loads(line)
        if "task" in message:
            self._encode(messages.task_from_json(message["task"]))
        elif "place" in message:
            place = messages.place_from_json(message["place"])
            self._settle(place.key, place)
        elif "settle" in message:
            self._settle(UnitKey(*message["settle"]))

    def _encode(self, task: Task) -> None:
        made = self._encoder.make(task, self._report)
        if isinstance(made, Outcome):
            self._channel.send({"outcome": messages.outcome_to_json(made)})
            return
        while self._held and self._held_bytes() + made.held_bytes > HELD_BYTES:
            self._settle(next(iter(self._held)))
        self._held[task.key] = task, made
        self._channel.send({"held": messages.measured_to_json(made.measured)})
        if not made.is_held:
            self._settle(task.key)

    def _held_bytes(self) -> int:
        return sum(unit.held_bytes for _, unit in self._held.values())

    def _settle(self, key: UnitKey, place: Place | None = None) -> None:
        """Commit a unit, if it is held still; without a place, with its tokens inside."""
        if (held := self._held.pop(key, None)) is not None:
            task, unit = held
            unit.commit(place)
            self._channel.send({"outcome": messages.outcome_to_json(task.outcome)})

    def _report(self, content_bytes: int, documents: int, tokens: int) -> None:
        self._channel.send({"progress": [content_bytes, documents, tokens]})
        while not self._lines.empty():  # where held units go: the next task comes only when this one is held
            self.heed(self._lines.get())


class _Channel:
    """The way back to the job; messages of several threads do not mix."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: messages.Message) -> None:
        line = messages.to_line(message)
        with self._lock:
            try:
                self._connection.sendall(line)
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)

    def beat(self) -> None:
        """Say that the process is alive, for ever."""
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_SECONDS):
            self.send({"alive": True})
