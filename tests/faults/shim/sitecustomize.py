"""Lets worker processes misbehave, and tells what they do; Python imports it if its folder is on PYTHONPATH.

TOKSHARD_SHIM says what happens before the unit of index TOKSHARD_SHIM_UNIT (of each unit, if that is
unset): raise, abort, exit, garble or cut (it sends what is no message, or half of one), sleep, hold (until
the process is ended), late (it waits until six are begun), or nothing. TOKSHARD_SHIM_LOG is a file that gets
a line for each part that is begun: its name, and the process. TOKSHARD_SHIM_MAIN is set where the main
process shall misbehave, which encodes small inputs itself.
"""

import errno
import gc
import os
import random
import signal
import sys
import time


def _misbehave():
    if os.environ.get("TOKSHARD_SHIM") == "raise":
        raise ZeroDivisionError("a bug in the worker")
    if os.environ.get("TOKSHARD_SHIM") == "abort":
        os.abort()
    if os.environ.get("TOKSHARD_SHIM") == "exit":
        os._exit(3)
    if os.environ.get("TOKSHARD_SHIM") == "garble":
        _connection().sendall(b"\0\0\0\4junk")
        time.sleep(3600)
    if os.environ.get("TOKSHARD_SHIM") == "cut":
        _connection().sendall(b"\0\0\0\4ju")
        os._exit(3)
    if os.environ.get("TOKSHARD_SHIM") == "sleep":
        time.sleep(random.uniform(0, 0.05))
    if os.environ.get("TOKSHARD_SHIM") == "hold":
        time.sleep(3600)
    if os.environ.get("TOKSHARD_SHIM") == "late":
        while _begun() < 6:
            time.sleep(0.001)


def _connection():
    """Return the socket of this worker to the job."""
    from tokshard.text.tokenize.workers.channel import Channel

    channels = [found for found in gc.get_objects() if isinstance(found, Channel)]
    (mine,) = (channel.connection for channel in channels if channel.connection.fileno() >= 0)
    return mine


def _begun():
    with open(os.environ["TOKSHARD_SHIM_LOG"]) as file:
        return len(file.readlines())


def _install():
    from tokshard.text.tokenize.encoder import UnitEncoder

    original = UnitEncoder.encode
    wanted = os.environ.get("TOKSHARD_SHIM_UNIT")

    def encode(self, task):
        if log := os.environ.get("TOKSHARD_SHIM_LOG"):
            with open(log, "a") as file:
                file.write(f"{task.part} {os.getpid()}\n")
        if wanted is None or int(wanted) == task.key.index:
            _misbehave()
        return original(self, task)

    UnitEncoder.encode = encode
    if at := os.environ.get("TOKSHARD_SHIM_CALL"):
        _fail_at(*at.split())


def _fail_at(name, k, what):
    """Let the k-th call of a storage function in each worker be its death, or fail on a full disk."""
    from tokshard.errors import StorageError
    from tokshard.storage import syscalls

    original, seen = getattr(syscalls, name), {}

    def wrapped(*arguments):
        count = seen[os.getpid()] = seen.get(os.getpid(), 0) + 1
        if count == int(k):
            if name == "write":  # half of it
                data = bytes(memoryview(arguments[1]).cast("B"))
                original(arguments[0], data[: len(data) // 2], *arguments[2:])
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(name, str(arguments[-1]), cause) from cause
        return original(*arguments)

    setattr(syscalls, name, wrapped)


# Workers are forked by it, and begin with what it has loaded.
if "tokshard.text.tokenize.workers.forkserver" in sys.orig_argv or os.environ.get("TOKSHARD_SHIM_MAIN"):
    _install()
