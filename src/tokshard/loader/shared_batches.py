"""Transport of micro-batches from the worker processes of a torch ``DataLoader``.

torch passes each tensor through a new shared file, with new pages in both processes, which costs many times
as much as to read it. Here a worker writes all arrays of a micro-batch into one anonymous file in memory
(``memfd_create``), which it uses again once they were read. The system frees the file with the last process
that has it open, however that ends. The process that receives the arrays copies them out at once.
"""

from __future__ import annotations

import errno
import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from tokshard.errors import WorkerError, reason_of
from tokshard.loader.memory import Memory

Fields = tuple[tuple[str, tuple[int, ...], str], ...]
"""The names, shapes and dtypes of some arrays."""

# A file begins with random bytes, which name its content, or with zeros once that was read.
_NAME_BYTES = 16
_READ = bytes(_NAME_BYTES)
# Linux transfers a little less than 2 GiB in one call.
_MOST_BYTES = 1 << 30

_memory = Memory()
_lock = threading.Lock()
_descriptors: list[int] = []
os.register_at_fork(after_in_child=_descriptors.clear)  # the files of the parent remain the parent's


class SharedBatch(dict[str, Any]):
    """A micro-batch of tensors that multiprocessing sends to another process as a dictionary of copies.

    Where the system has no such files, it crosses as torch sends tensors.
    """


def _send(batch: SharedBatch) -> tuple[Any, ...]:
    try:
        arrays = {name: np.asarray(tensor.numpy(), order="C") for name, tensor in batch.items()}
        path, content = _write([array.data for array in arrays.values()])
    except (AttributeError, RuntimeError, TypeError, OSError):
        # A collate function has put something else into it, or memory is short.
        return dict, (dict(batch),)
    fields = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
    return _receive, (path, content, fields)


def _receive(path: str, content: bytes, fields: Fields) -> dict[str, Any]:
    import torch

    arrays = _memory.arrays(tuple((shape, dtype) for _, shape, dtype in fields))
    try:
        _read(path, content, [array.data for array in arrays])
    except OSError as error:
        raise WorkerError(f"cannot read the micro-batch of a loading worker: {reason_of(error)}") from error
    return {name: torch.from_numpy(array) for (name, _, _), array in zip(fields, arrays, strict=True)}


def _write(buffers: list[memoryview]) -> tuple[str, bytes]:
    """Write buffers to a file; return its path, for any process of this user, and the name of its content."""
    size_bytes = _size_bytes(buffers)
    # The files of a process that has changed its user, for example, are open to root alone.
    if size_bytes > _MOST_BYTES or os.stat("/proc/self/fd").st_uid != os.geteuid():
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    content = os.urandom(_NAME_BYTES)
    with _lock:
        unused = (file for file in _descriptors if os.pread(file, _NAME_BYTES, 0) in {_READ, b""})
        descriptor = next(unused, -1)
        if descriptor < 0:
            _descriptors.append(descriptor := os.memfd_create("tokshard-memory"))
        if os.pwritev(descriptor, [content, *buffers], 0) != size_bytes:
            os.pwrite(descriptor, _READ, 0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return f"/proc/{os.getpid()}/fd/{descriptor}", content


def _read(path: str, content: bytes, buffers: list[memoryview]) -> None:
    """Fill buffers of the sizes that were written. Then the file may be used again."""
    found = bytearray(_NAME_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.preadv(descriptor, [found, *buffers], 0) != _size_bytes(buffers) or found != content:
            raise FileNotFoundError(errno.ENOENT, "its process has ended, or it was read before")
        os.pwrite(descriptor, _READ, 0)
    finally:
        os.close(descriptor)


def _size_bytes(buffers: list[memoryview]) -> int:
    return _NAME_BYTES + sum(buffer.nbytes for buffer in buffers)


ForkingPickler.register(SharedBatch, _send)
