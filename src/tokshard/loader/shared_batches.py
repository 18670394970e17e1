"""Transport of micro-batches from the worker processes of a torch ``DataLoader``.

torch passes each tensor through shared memory of its own: new files, descriptors and, in both processes, new
pages for every micro-batch, which costs many times as much as to read it. Here a worker writes all arrays of
a micro-batch into one file in memory, which it uses again once they were read. The process that receives them
copies them out at once, into memory that it uses again once nobody refers to them, and so never sees a later
micro-batch in them.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import WorkerError, reason_of
from tokshard.loader.memory import Memory
from tokshard.storage.memory_files import MemoryFiles, read_once

if TYPE_CHECKING:
    from collections.abc import Callable

    TensorBatch = dict[str, Any]
    Fields = tuple[tuple[str, tuple[int, ...], str], ...]
    """The names, shapes and dtypes of some arrays."""


class SharedBatch(dict[str, Any]):
    """A micro-batch of tensors that arrives in another process as a dictionary of other tensors.

    Only when multiprocessing sends it. A copy that a collate function made as an ordinary dictionary crosses
    as torch sends tensors, and so does this one where the system has no such files.
    """


_files = MemoryFiles()
_memory = Memory()


def _send(batch: SharedBatch) -> tuple[Callable[..., TensorBatch], tuple[Any, ...]]:
    try:
        arrays = {name: np.asarray(tensor.numpy(), order="C") for name, tensor in batch.items()}
        path, content = _files.write([array.data for array in arrays.values()])
    except (AttributeError, RuntimeError, TypeError, OSError):
        # A collate function has put something else into it, or memory is short.
        return dict, (dict(batch),)
    fields = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
    return _receive, (path, content, fields)


def _receive(path: str, content: bytes, fields: Fields) -> TensorBatch:
    import torch

    arrays = _memory.arrays(tuple((shape, dtype) for _, shape, dtype in fields))
    try:
        read_once(path, content, [array.data for array in arrays])
    except OSError as error:
        raise WorkerError(f"cannot read the micro-batch of a loading worker: {reason_of(error)}") from error
    return {name: torch.from_numpy(array) for (name, _, _), array in zip(fields, arrays, strict=True)}


ForkingPickler.register(SharedBatch, _send)
