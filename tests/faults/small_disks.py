"""Small file systems in memory, mounted where only this process and those that it starts see them."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ROOM_BYTES = 64 << 20
_CLONE_NEWNS, _MNT_DETACH, _MS_REMOUNT = 0x00020000, 2, 32
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE


@functools.cache
def reason_not_to() -> str:
    """Leave the mounts of other processes; return why that is not possible, or an empty text."""
    try:
        _system("unshare", _CLONE_NEWNS)
        _system("mount", b"none", b"/", None, _PRIVATE, None)
    except OSError as error:
        return f"no mount namespace: {error}"
    return ""


def mount(path: Path) -> None:
    """Mount a disk with much room."""
    _system("mount", b"tmpfs", bytes(path), b"tmpfs", 0, b"size=%d" % ROOM_BYTES)


def limit(path: Path, free_bytes: int | None = None) -> None:
    """Leave so many bytes of a disk free, or much room again."""
    status = os.statvfs(path)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    size = ROOM_BYTES if free_bytes is None else used + free_bytes
    _system("mount", b"tmpfs", bytes(path), b"tmpfs", _MS_REMOUNT, b"size=%d" % size)


def unmount(path: Path) -> None:
    _system("umount2", bytes(path), _MNT_DETACH)


def _system(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
