"""The nursery: ``python -m tokshard.tokenization.workers.nursery``, the process from which workers come.

It loads libraries, tokenizer and engines once, and forks a worker whenever the job asks for one: the
workers share what it has loaded. It has no thread when it forks. The job speaks to it through the
socket that is its stdin, one JSON object a message; with the order for a worker comes the socket through
which the job will speak to that worker. When the job goes away, the nursery ends its workers and itself.
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

from tokshard.tokenization.encoder import UnitEncoder
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers import messages, worker
from tokshard.tokenizer import libraries

MESSAGE_BYTES = 1 << 20
# What workers are going to need, with or without the fast engine.
_LIBRARIES = ("numpy", "orjson", "xxhash", "tokenizers", "fastokens")


def main() -> None:
    """Run a nursery until its stdin ends."""
    worker.ignore_signals()
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
        _Nursery(control).run()
        os._exit(0)  # there is much memory, and no use in freeing it piece by piece
    except BrokenPipeError:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the job raises it
        with contextlib.suppress(OSError):
            control.send(messages.to_line({"error": messages.error_to_json(error)}))
            while control.recv(MESSAGE_BYTES):  # to end before all is read would be an error of the socket
                pass
        os._exit(1)


class _Nursery:
    """Forks workers and says what becomes of them."""

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
        self._end_all()

    def _listen(self) -> bool:
        """Take one message; False if there are none any more."""
        content, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        if not content:
            return False
        message = json.loads(content)
        if "expect" in message:
            with self._signs_of_life():
                libraries.load_ahead(message["expect"], special_tokens=message["special_tokens"])
        elif "recipe" in message:
            with self._signs_of_life():
                self._encoder = UnitEncoder(Recipe.from_json(message["recipe"]), message["parts_directory"])
                self._encoder.load_reference()
            gc.freeze()
        elif "fork" in message:
            self._fork(message["fork"], descriptors)
        return True

    def _fork(self, number: int, descriptors: list[int]) -> None:
        if self._encoder is None:
            raise RuntimeError("a worker was asked for before there was a recipe")
        if not descriptors:  # there was no room for one
            self._say({"refused": os.strerror(errno.EMFILE)})
            return
        (descriptor,) = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"refused": error.strerror})
        else:
            if pid == 0:
                self._become_worker(self._encoder, descriptor)
            self._numbers[pid] = number
        os.close(descriptor)

    def _become_worker(self, encoder: UnitEncoder, descriptor: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        gc.enable()
        worker.work(encoder, socket.socket(fileno=descriptor))

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid)
            self._say({"ended": number, "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _end_all(self) -> None:
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)
        for pid in self._numbers:
            os.waitpid(pid, 0)

    def _say(self, message: messages.Message) -> None:
        self._control.send(messages.to_line(message))

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        """Say every second that the process is alive, by a thread that ends with the block."""
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(worker.HEARTBEAT_SECONDS):
                    self._say({"alive": True})

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


if __name__ == "__main__":
    main()
