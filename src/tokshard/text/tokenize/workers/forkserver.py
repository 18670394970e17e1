"""The worker processes: ``python -m tokshard.text.tokenize.workers.forkserver`` loads and forks them.

The forkserver loads libraries, tokenizer and encoders once, and forks a worker whenever the job asks for
one: the workers share what it has loaded. It has no thread when it forks. The job speaks to it through the
socket that is its stdin, one JSON object a message; with the order for a worker comes the socket through
which the job will speak to that worker, by lines of JSON. When the job goes away, the sockets end, the
forkserver ends its workers and itself, and each worker ends itself.

A worker keeps no state that matters: it may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tokshard.core.memory import release_free_memory
from tokshard.core.worker_errors import error_to_json
from tokshard.errors import reason_of
from tokshard.text.tokenize.encoder import EncodingSpec, Outcome, Task, UnitEncoder, progress_each
from tokshard.text.tokenize.workers.pool import MESSAGE_BYTES, Message, to_line
from tokshard.text.tokenizer import libraries

HEARTBEAT_SECONDS = 1.0
_PROGRESS_SECONDS = 0.2
# What workers are going to need, with or without the fast encoder.
_LIBRARIES = ("numpy", "orjson", "xxhash", "tokenizers", "fastokens")


def main() -> None:
    """Run the forkserver until its stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both may reach all processes; the job ends its workers
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(2, 1)  # whatever a library prints must not mix with the results on stdout
    gc.disable()  # nothing here is garbage, and what is collected would be copied in each worker
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        for name in _LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        _ForkServer(control).run()
        os._exit(0)  # there is much memory, and no use in freeing it piece by piece
    except BrokenPipeError:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the job raises it
        with contextlib.suppress(OSError):
            control.send(to_line({"error": error_to_json(error)}))
            while control.recv(MESSAGE_BYTES):  # to end before all is read would be an error of the socket
                pass
        os._exit(1)


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._encoder: UnitEncoder | None = None
        self._numbers: dict[int, int] = {}  # the job's number of each living worker, by its process id

    def run(self) -> None:
        alarm, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(alarm, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if alarm in ready:
                    os.read(alarm, MESSAGE_BYTES)
                    self._reap()
                if self._control.fileno() in ready and not self._listen():
                    break
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)
        for pid in self._numbers:
            os.waitpid(pid, 0)

    def _listen(self) -> bool:
        content, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        if not content:
            return False
        message = json.loads(content)
        if "expect" in message:
            with self._signs_of_life():
                libraries.load_ahead(message["expect"], **message["settings"])
        elif "spec" in message:
            with self._signs_of_life():
                spec = EncodingSpec.from_json(message["spec"])
                self._encoder = UnitEncoder(spec, message["parts_directory"])
                self._encoder.load()
            release_free_memory()  # definitions were parsed: workers would begin with that much more
            gc.freeze()
        elif "fork" in message:
            self._fork(message["fork"], descriptors)
        return True

    def _fork(self, number: int, descriptors: list[int]) -> None:
        if self._encoder is None:
            raise RuntimeError("a worker was requested before the specification was sent")
        if not descriptors:  # there was no room for one
            self._send({"refused": reason_of(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))})
            return
        (descriptor,) = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"refused": reason_of(error)})
        else:
            if pid == 0:
                self._become_worker(self._encoder, descriptor)
            self._numbers[pid] = number
        os.close(descriptor)

    def _become_worker(self, encoder: UnitEncoder, descriptor: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        gc.enable()
        work(encoder, socket.socket(fileno=descriptor))

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid)
            self._send({"ended": number, "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _send(self, message: Message) -> None:
        self._control.send(to_line(message))

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(HEARTBEAT_SECONDS):
                    self._send({"alive": True})

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def work(encoder: UnitEncoder, connection: socket.socket) -> NoReturn:
    """Run the worker loop until the job closes the connection."""
    channel = _Channel(connection)
    try:
        threading.Thread(target=channel.beat, daemon=True).start()
        channel.send({"pid": os.getpid()})
        with connection.makefile("rb") as tasks:
            for line in tasks:
                events = encoder.encode(Task.from_json(json.loads(line)))
                for event in progress_each(_PROGRESS_SECONDS, events):
                    if isinstance(event, Outcome):
                        channel.send({"outcome": event.to_json()})
                    else:
                        channel.send({"progress": event})
    except BaseException as error:  # noqa: BLE001 - the job raises it
        channel.send({"error": error_to_json(error)})
        os._exit(1)
    os._exit(0)


class _Channel:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        line = to_line(message)
        with self._lock:
            try:
                self._connection.sendall(line)
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)

    def beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_SECONDS):
            self.send({"alive": True})


if __name__ == "__main__":
    main()
