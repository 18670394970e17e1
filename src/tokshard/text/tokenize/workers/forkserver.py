"""The worker processes: ``python -m tokshard.text.tokenize.workers.forkserver`` loads and forks them.

Its arguments are the numbers of sockets: one to the job, and one for each worker that the job may use. It
loads libraries, tokenizer and encoders once, and forks the worker of a socket when its first task arrives;
the workers share what it has loaded. It has no thread when it forks. When the job goes away, the sockets
end, each worker ends itself, and the forkserver ends those that cannot. All may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from tokshard.core.memory import release_free_memory
from tokshard.errors import reason_of
from tokshard.text.tokenize.encoder import UnitEncoder, progress_each
from tokshard.text.tokenize.workers.channel import Channel, Ended, sendable
from tokshard.text.tokenize.workers.pool import cannot_start
from tokshard.text.tokenizer import fast

_HEARTBEAT_SECONDS = 1.0
_PROGRESS_SECONDS = 0.2
_LOOK_MILLISECONDS = 100
# What workers are going to need, with or without the fast encoder.
_LIBRARIES = ("numpy", "orjson", "xxhash", "tokenizers")


def main() -> None:
    """Run the forkserver until the job closes the first socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both may reach all processes; the job ends its workers
        signal.signal(number, signal.SIG_IGN)
    connection, *ends = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    os.dup2(2, 1)  # whatever a library prints must not mix with the results on stdout
    gc.disable()  # nothing here is garbage, and what is collected would be copied in each worker
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    job = Channel(connection)
    with _ending(job):
        encoder = _load(job)
        release_free_memory()  # definitions were parsed: workers would begin with that much more
        gc.freeze()
        _fork_and_watch(encoder, job, ends)


def _load(job: Channel) -> UnitEncoder:
    is_loaded = threading.Event()
    beating = threading.Thread(target=_beat, args=(job, is_loaded), daemon=True)
    beating.start()
    try:
        for name in _LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        with contextlib.suppress(ImportError):
            fast.import_library()
        what, *arguments = job.receive()
        if what == "expect":
            tokenizer, settings = arguments
            fast.load_ahead(tokenizer, **settings)
            what, *arguments = job.receive()
        encoder = UnitEncoder(*arguments)
        encoder.load()
        return encoder
    finally:
        is_loaded.set()
        beating.join()


def _fork_and_watch(encoder: UnitEncoder, job: Channel, ends: list[socket.socket]) -> None:
    numbers = {end.fileno(): number for number, end in enumerate(ends)}
    workers: dict[int, int] = {}  # the number of each living worker, by its process id
    poll = select.poll()
    for descriptor in (job.connection.fileno(), *numbers):
        poll.register(descriptor, select.POLLIN)
    while job.connection.fileno() not in (ready := dict(poll.poll(_LOOK_MILLISECONDS))):
        for descriptor in ready:
            number = numbers[descriptor]
            try:
                pid = os.fork()
            except OSError as error:
                raise cannot_start(reason_of(error)) from error
            if pid == 0:
                for end in {job.connection, *ends} - {ends[number]}:
                    end.close()
                gc.enable()
                _work(encoder, Channel(ends[number]))
            workers[pid] = number
            poll.unregister(descriptor)
            ends[number].close()
        while workers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            _tell(job, Ended(workers.pop(pid), pid, os.waitstatus_to_exitcode(status)))
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)


def _work(encoder: UnitEncoder, job: Channel) -> NoReturn:
    with _ending(job):
        _tell(job, os.getpid())
        threading.Thread(target=_beat, args=(job, threading.Event()), daemon=True).start()
        while True:
            for event in progress_each(_PROGRESS_SECONDS, encoder.encode(job.receive())):
                _tell(job, event)


def _beat(job: Channel, is_enough: threading.Event) -> None:
    while not is_enough.wait(_HEARTBEAT_SECONDS):
        _tell(job, os.getpid())


@contextlib.contextmanager
def _ending(job: Channel) -> Iterator[None]:
    """End this process with the block, or when the job goes away; the job raises an error of the block."""
    try:
        yield
    except EOFError:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the job raises it
        _tell(job, sendable(error))
        os._exit(1)
    os._exit(0)  # there is much memory, and no use in freeing it piece by piece


def _tell(job: Channel, message: object) -> None:
    try:
        job.send(message)
    except (BrokenPipeError, ConnectionResetError):  # the job is gone
        os._exit(0)


if __name__ == "__main__":
    main()
