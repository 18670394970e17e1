"""Gateway process to Ray: ``python -m tokshard.text.tokenize.cluster.gateway``, controlled by lines of JSON.

Ray's library prints, takes over signals, and exits its process when the cluster is gone. So it runs in a
process of its own, which the job starts, reads from, and may kill at any time: Ray stops the tasks of a
driver that exited. When the job exits, stdin closes and the gateway exits, too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any, BinaryIO

from tokshard.errors import StorageError
from tokshard.storage.files import AtomicFile
from tokshard.storage.paths import check_plain_name
from tokshard.storage.reading import open_file
from tokshard.text.tokenize.cluster.task import Message, perform, to_bytes

# Ray returns everything that is ready after this time, however much it is.
_ROUND_SECONDS = 0.05
_CAPACITY_SECONDS = 5.0
_REACH_SECONDS = 10.0
_END_SECONDS = 2.0
# Results wait in the memory of their node: at most this many per task, including the start message.
_RESULTS_AHEAD = 4


def main() -> None:
    """Run the gateway until its stdin is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what Ray prints must not mix with the answers
    lines: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, lines), daemon=True).start()
    try:
        Gateway(json.loads(lines.get() or b"null"), lines, answers).run()
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 - the job raises it
        _send(answers, {"failed": f"{type(error).__name__}: {error}"})
    os._exit(0)  # Ray's threads may be stuck in a cluster that is gone


class Gateway:
    """The connection to Ray.

    Args:
        start: The first message: ``address``, ``endpoint``, ``cpus_per_task``, ``attachment`` (a file,
            or None) and ``deliver_to`` (where files that come with answers go).
        lines: The messages of the job; None after it closed the pipe.
    """

    def __init__(self, start: Message, lines: queue.Queue[bytes | None], answers: BinaryIO) -> None:
        self._start = start
        self._lines = lines
        self._answers = answers
        self._running: dict[Any, int] = {}
        self._looked = 0.0
        self._attachment: Any = None
        self._perform: Any = None

    def run(self) -> None:
        """Connect, and run tasks until the job closes the pipe."""
        import ray

        if (endpoint := self._start["endpoint"]) is not None and (refusal := _unreachable(*endpoint)):
            self._send({"failed": refusal})
            return
        ray.init(address=self._start["address"], log_to_driver=False, configure_logging=False)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray has set it to exit
        self._attachment = ray.put(_content(self._start["attachment"]))
        self._perform = ray.remote(perform)
        while True:
            self._tell_capacity()
            if not self._take_calls():
                break
            if self._running:
                ready, _ = ray.wait(
                    list(self._running),
                    num_returns=len(self._running),
                    timeout=_ROUND_SECONDS,
                    fetch_local=False,
                )
                for results in ready:
                    self._advance(results)
        ray.shutdown()

    def _take_calls(self) -> bool:
        # False if the job has nothing more to submit.
        while True:
            try:
                line = self._lines.get(timeout=None if not self._running else 0)
            except queue.Empty:
                return True
            if line is None:
                return False
            call = json.loads(line)
            task = self._perform.options(
                name=call["label"],
                num_returns="streaming",
                num_cpus=self._start["cpus_per_task"],
                max_retries=0,  # the job itself gives out again what is lost, and only that
                scheduling_strategy="SPREAD",
                _generator_backpressure_num_objects=_RESULTS_AHEAD,
            )
            results = task.remote(to_bytes(call["call"]), self._attachment)
            self._running[results] = call["number"]

    def _advance(self, results: Any) -> None:
        import ray
        from ray import exceptions

        number = self._running[results]
        try:
            message, content = ray.get(next(results))
        except StopIteration:
            self._end(results, {"ended": True})
        except exceptions.RayTaskError as error:
            self._end(results, {"crashed": str(error)})
        except exceptions.LocalRayletDiedError:
            raise ConnectionError("the Ray node on this machine died") from None
        except exceptions.RayError as error:
            self._end(results, {"lost": _first_sentence(error)})
        else:
            answer = json.loads(message)
            if content:
                answer |= self._deliver(answer["answer"]["file"], content)
            self._send({"number": number, **answer})

    def _deliver(self, name: str, content: bytes) -> Message:
        # Returns an error as a message, or None.
        try:
            path = os.path.join(self._start["deliver_to"], check_plain_name(name, "an answer"))
            with AtomicFile(path, durable=False) as file:
                file.write(content)
        except StorageError as error:
            return {"undelivered": [error.action, error.path, error.errno, error.reason]}
        return {}

    def _end(self, results: Any, message: Message) -> None:
        self._send({"number": self._running.pop(results), **message})

    def _tell_capacity(self) -> None:
        import ray

        now = time.monotonic()
        if now - self._looked >= _CAPACITY_SECONDS or not self._looked:
            self._looked = now
            nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
            self._send({"nodes": nodes})

    def _send(self, message: Message) -> None:
        _send(self._answers, message)


def _send(answers: BinaryIO, message: Message) -> None:
    line = memoryview(to_bytes(message) + b"\n")
    while line:
        line = line[answers.write(line) :]


def _listen(stdin: BinaryIO, lines: queue.Queue[bytes | None]) -> None:
    for line in stdin:
        lines.put(line)
    lines.put(None)
    time.sleep(_END_SECONDS)
    os._exit(0)


def _unreachable(host: str, port: int) -> str | None:
    # Ray itself would try for minutes.
    try:
        socket.create_connection((host, port), timeout=_REACH_SECONDS).close()
    except OSError as error:
        return f"no response from {host}:{port}: {error.strerror or error}"
    return None


def _content(path: str | None) -> bytes:
    if path is None:
        return b""
    with open_file(path) as file:
        return file.read()


def _first_sentence(error: BaseException) -> str:
    text = str(error).strip().split("\n", 1)[0].split(". ", 1)[0]
    return f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    main()
