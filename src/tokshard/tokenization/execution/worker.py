"""A worker process: ``python -m tokshard.tokenization.execution.worker``, spoken to by lines of JSON.

It reads a recipe and then tasks from stdin and answers on stdout. It keeps no state that matters: it may
be killed at any moment. When the process that started it goes away, its stdin ends and so does it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

from tokshard.tokenization.encoder import UnitEncoder
from tokshard.tokenization.execution import messages
from tokshard.tokenization.recipe import Recipe

HEARTBEAT_SECONDS = 1.0


def main() -> None:
    """Run a worker until its stdin ends."""
    # Whoever stops the job may signal all its processes at once; it is the job that ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, lines), daemon=True).start()
    channel = _Channel(answers)
    threading.Thread(target=channel.beat, daemon=True).start()
    try:
        _work(lines, channel)
    except BaseException as error:  # noqa: BLE001 - the job raises it
        channel.send({"error": messages.error_to_json(error)})
        os._exit(1)  # an orderly end would wait for the lock of stdin, which the listening thread holds


def _work(lines: queue.Queue[bytes], channel: _Channel) -> None:
    start = json.loads(lines.get())
    encoder = UnitEncoder(Recipe.from_json(start["recipe"]), start["parts_directory"])
    while True:
        task = messages.task_from_json(json.loads(lines.get()))
        outcome = encoder.encode(
            task, lambda size, documents, tokens: channel.send({"progress": [size, documents, tokens]})
        )
        channel.send({"outcome": messages.outcome_to_json(outcome)})


def _listen(stdin: BinaryIO, lines: queue.Queue[bytes]) -> None:
    for line in stdin:
        lines.put(line)
    os._exit(0)


class _Channel:
    """The way back to the job; messages of several threads do not mix."""

    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._lock = threading.Lock()

    def send(self, message: messages.Message) -> None:
        line = messages.to_line(message)
        with self._lock:
            try:
                self._answers.write(line)
            except BrokenPipeError:
                os._exit(0)

    def beat(self) -> None:
        """Say that the process is alive, for ever."""
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_SECONDS):
            self.send({"alive": True})


if __name__ == "__main__":
    main()
