"""Memory of this process."""

from __future__ import annotations

from contextlib import suppress


def release_free_memory() -> None:
    """Return memory that was freed to the system, where the C library (glibc) can.

    It keeps what was freed, and a forked process starts with a copy of that.
    """
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
