"""Copies of many ranges of memory-mapped files in one system call.

A call for each range costs several times as much as the copy, and threads that make such calls from Python
wait for each other. If the program itself copied a page that cannot be read (the file was truncated, the disk
failed), SIGBUS would kill it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RANGES_PER_CALL = 1024  # IOV_MAX of Linux


def copy_mapped(addresses: NDArray[np.int64], sizes: NDArray[np.int64], target: NDArray[np.uint8]) -> int:
    """Copy ranges of memory into an array, one after the other, without the GIL.

    The kernel makes the copies, by ``process_vm_readv`` of this process, and stops at memory that cannot be
    read.

    Args:
        addresses: The address of each range: int64 of shape (ranges,).
        sizes: Its number of bytes: int64 of shape (ranges,).
        target: An array of at least as many bytes as all ranges together.

    Returns:
        The number of ranges that were copied. It is 0 where the system or a sandbox has no such call.
    """
    call = _process_vm_readv()
    if call is None:
        return 0
    ranges = np.stack((addresses, sizes), axis=1)
    position = 0
    for first in range(0, len(sizes), _RANGES_PER_CALL):
        part = ranges[first : first + _RANGES_PER_CALL]
        ends = np.cumsum(part[:, 1])
        room = np.array([target.ctypes.data + position, ends[-1]], np.int64)
        copied = call(os.getpid(), room.ctypes.data, 1, part.ctypes.data, len(part), 0)
        if copied != ends[-1]:
            return first + int(np.searchsorted(ends, copied, side="right"))
        position += copied
    return len(sizes)


@cache
def _process_vm_readv() -> Callable[..., int] | None:
    try:
        call: Any = ctypes.CDLL(None).process_vm_readv
    except (AttributeError, OSError):
        return None
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong)
    function: Callable[..., int] = call
    return function
