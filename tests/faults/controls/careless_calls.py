"""Callers of the system that are wrong on purpose: they take the common answer for the only one."""

from __future__ import annotations

import os
from typing import Any


def ignore_short_writes() -> None:
    """Write once, however much of it was written."""
    from tokshard.storage import files, syscalls

    def wrong(descriptor: int, buffer: Any, path: str) -> None:
        os.write(descriptor, buffer)

    syscalls.write = wrong
    files._check_size = lambda *_: None


def take_failed_reads_for_the_end() -> None:
    """Return no bytes where a file cannot be read."""
    original = os.pread

    def wrong(descriptor: int, count: int, offset: int) -> bytes:
        try:
            return original(descriptor, count, offset)
        except OSError:
            return b""

    os.pread = wrong
