"""System calls that fail on purpose: the library of preload.c, and what to tell it.

The library must be loaded when a process starts, by LD_PRELOAD. It is inactive until :meth:`Calls.arm`.
What it counts and does is in a file that a process and all that it starts have in common.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

KINDS = (
    *("open", "read", "write", "fsync", "close", "rename", "link", "unlink", "mkdir", "rmdir"),
    *("truncate", "copy", "mmap", "stat", "lock", "list"),
)
ACTIONS = {"short": -1, "zero": -2}
_FOREVER = 1 << 60

# What each kind of call can do without being asked: fail in these ways, or do less.
FAULTS = {
    "open": ("EIO", "EMFILE", "ENFILE", "ENOMEM", "EINTR", "ESTALE", "ENOSPC"),
    "read": ("short", "EIO", "EINTR", "ESTALE", "ENOMEM"),
    "write": ("short", "EIO", "ENOSPC", "EINTR", "ESTALE", "EDQUOT"),
    "fsync": ("EIO", "ENOSPC", "ESTALE"),
    "close": ("EIO", "ENOSPC", "EINTR", "ESTALE"),
    "rename": ("EIO", "ENOSPC", "ESTALE", "ENOMEM"),
    "link": ("EIO", "ENOSPC", "ESTALE", "ENOMEM"),
    "unlink": ("EIO", "ESTALE", "ENOMEM"),
    "mkdir": ("EIO", "ENOSPC", "ESTALE", "ENOMEM"),
    "rmdir": ("EIO", "ESTALE", "EBUSY"),
    "truncate": ("EIO", "EINTR", "ENOSPC", "ESTALE"),
    "copy": ("short", "zero", "EIO", "ENOSPC", "EXDEV", "EINVAL", "EOPNOTSUPP", "ENOMEM"),
    "mmap": ("ENOMEM", "EAGAIN", "ENODEV"),
    "stat": ("EIO", "ESTALE", "ENOMEM"),
    "lock": ("EIO", "EINTR", "ENOLCK", "ESTALE"),
    "list": ("EIO", "EMFILE", "ENOMEM", "ESTALE"),
}
# Of these a program must not notice anything: it can try again, or do it in another way. (Not after an
# interrupted close: the file is closed then, and what was written may be lost.)
HARMLESS = {
    (kind, fault)
    for kind, faults in FAULTS.items()
    for fault in faults
    if kind != "close" and fault in {"short", "EINTR", "zero", "EXDEV", "EINVAL", "EOPNOTSUPP"}
}


class _State(ctypes.Structure):
    _fields_ = [
        ("armed", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("k", ctypes.c_int64),
        ("until", ctypes.c_int64),
        ("action", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("fired", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("counts", ctypes.c_int64 * len(KINDS)),
        ("prefix", ctypes.c_char * 512),
        ("where", ctypes.c_char * 512),
    ]


def reason_not_to(run: str = "cc") -> str | None:
    """Return why the library cannot be used here; None if it can."""
    if os.uname().sysname != "Linux":
        return "not on Linux"
    return None if shutil.which(run) else "no C compiler (cc)"


def environment_with_library(directory: str | Path) -> dict[str, str]:
    """Compile the library; return the variables with which a process must start to use it."""
    library, state = Path(directory, "calls.so"), Path(directory, "calls")
    source = Path(__file__).with_name("preload.c")
    compiler = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(compiler, check=True)
    state.write_bytes(bytes(ctypes.sizeof(_State)))
    before = os.environ.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": f"{library}:{before}" if before else str(library),
        "TOKSHARD_CALLS": str(state),
    }


class Calls:
    """The state of the library in this process."""

    def __init__(self) -> None:
        descriptor = os.open(os.environ["TOKSHARD_CALLS"], os.O_RDWR)
        self._memory = mmap.mmap(descriptor, ctypes.sizeof(_State))
        os.close(descriptor)
        self._state = _State.from_buffer(self._memory)

    @contextlib.contextmanager
    def armed(
        self, below: str, kind: int = -1, k: int = 0, action: int = 0, times: int | None = 1
    ) -> Iterator[None]:
        """Count the calls on paths below a directory; let one or more of them fail.

        Args:
            below: The directory, absolute.
            kind: The position in :data:`KINDS`; -1 only counts.
            k: Which of these calls is the first to fail, from 1.
            action: An ``errno``, or one of :data:`ACTIONS`.
            times: How many fail; None for all from there on.
        """
        state = self._state
        state.kind, state.k, state.action = kind, k, action
        state.until = _FOREVER if times is None else k + times
        state.fired = state.total = 0
        state.prefix, state.where = os.fsencode(below), b""
        for number in range(len(KINDS)):
            state.counts[number] = 0
        state.armed = 1
        try:
            yield
        finally:
            state.armed = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many calls of each kind there were since the last time that this was armed."""
        return dict(zip(KINDS, self._state.counts, strict=True))

    @property
    def total(self) -> int:
        return int(self._state.total)

    @property
    def fired(self) -> int:
        """How many calls failed."""
        return int(self._state.fired)

    @property
    def where(self) -> str:
        """The path of the first call that failed."""
        return os.fsdecode(self._state.where)


def action_of(name: str) -> int:
    """Return the number of a fault or action by its name."""
    return ACTIONS[name] if name in ACTIONS else int(getattr(errno, name))
