"""Faults at the storage calls of a command: the functions of :mod:`tokshard.storage.syscalls`, and no others.

``kill``: the process dies before the call. ``cut``: it dies in the middle of a write, or right after
another call. ``power``: it dies or has just ended, and what was not synced is lost: data, last names.
``ENOSPC``, ``EIO``: the call fails, a write after half of its bytes. ``foreign``: another program creates a
file before the call.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import inspect
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THEIRS = b"of another program"
LOG = "calls.txt"
_GROWING = (
    *(
        "create",
        "open_for_append",
        "write",
        "copy_range",
        "fsync",
        "fsync_directory",
        "close",
        "replace",
        "link",
    ),
    *("make_directory", "make_private_directory"),
)


@dataclass(frozen=True)
class Fault:
    """What happens at which call.

    Attributes:
        kind: One of those above.
        k: The number of the call, from 1; 0 for none: the calls are only counted.
        path: The file that the other program creates.
    """

    kind: str
    k: int
    path: str = ""

    @property
    def kills(self) -> bool:
        return self.kind in {"kill", "cut", "power"}


COUNT = Fault("kill", 0)


def call_names() -> list[str]:
    """Return the names of the storage calls."""
    from tokshard.storage import syscalls

    own = inspect.getmembers(syscalls, inspect.isfunction)
    return [name for name, call in own if call.__module__ == syscalls.__name__ and not name.startswith("_")]


def concerns(kind: str, name: str) -> bool:
    """Return whether a kind of fault can happen at a call."""
    return kind != "ENOSPC" or name in _GROWING


def install(fault: Fault, log: Path, root: str = ".") -> None:
    """Let a call of this process fail, and write the names of all its calls to a log.

    Args:
        fault: What happens.
        log: The file; or a line with the call at which the fault happens.
        root: The directory below which data is lost in a power failure.
    """
    from tokshard.storage import syscalls

    turn = threading.Lock()  # calls may be made in several threads
    # The power fails for all threads at once: none makes a call while another one's data is lost.
    power = threading.RLock()
    count = 0
    file = log.open("w", buffering=1)
    disk = Disk(root, fault.k) if fault.kind == "power" else None

    def wrap(name: str) -> None:
        original: Callable[..., Any] = getattr(syscalls, name)

        def wrapped(*arguments: Any) -> Any:
            nonlocal count
            with turn:
                count += 1
                mine = count
                if fault.k == 0:
                    print(name, file=file)
            with power if disk else contextlib.nullcontext():
                if mine == fault.k and not os.path.lexists(fault.path):
                    print("happened", name, file=file)
                    _happen(fault, name, original, arguments, disk)
                return disk.note(name, original, arguments) if disk else original(*arguments)

        setattr(syscalls, name, wrapped)

    for name in call_names():
        wrap(name)
    if disk:  # the power may also fail right after a success
        atexit.register(disk.lose, everything=True)


def _happen(
    fault: Fault, name: str, original: Callable[..., Any], arguments: tuple[Any, ...], disk: Disk | None
) -> None:
    if fault.kind == "foreign":
        Path(fault.path).parent.mkdir(parents=True, exist_ok=True)
        Path(fault.path).write_bytes(THEIRS)
        return
    if fault.kind in {"cut", "ENOSPC", "EIO"}:
        if name == "write":
            data = memoryview(arguments[1]).cast("B")
            os.write(arguments[0], data[: len(data) // 2])
        elif name == "copy_range":
            source, target, offset, size, path = arguments
            original(source, target, offset, size // 2, path)
        elif fault.kind == "cut":
            original(*arguments)
    if disk:
        disk.lose()
    if fault.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    from tokshard.errors import StorageError

    cause = OSError(getattr(errno, fault.kind), os.strerror(getattr(errno, fault.kind)))
    raise StorageError(name, str(arguments[-1]), cause) from cause


class Disk:
    """What a disk has when its power fails: the data of files and the names that were synced.

    Names are changed in order: some of the last changes that were not synced are lost.

    Args:
        root: The directory with all files.
        seed: Of how many are lost.
    """

    def __init__(self, root: str, seed: int) -> None:
        self._root = os.path.abspath(root)
        self._chance = random.Random(seed)
        self._saved = Path(f"{self._root}-lost-{os.getpid()}")
        self._sizes: dict[int, int] = {}
        self._removed: set[str] = set()
        self._names: list[tuple[str, Callable[[], object]]] = []
        for path in Path(self._root).rglob("*"):
            if path.is_file():
                self._sizes[path.stat().st_ino] = path.stat().st_size

    def note(self, name: str, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make a call, and remember what it changes."""
        target = os.path.abspath(arguments[-1])
        existed = os.path.lexists(target)
        saved = self._save(target) if name in {"replace", "unlink"} and os.path.isfile(target) else None
        if name.startswith("make") and not existed:  # it syncs its parent
            self._forget_on_loss(target, lambda: os.rmdir(target))
        result = original(*arguments)
        if name == "fsync":
            self._sizes[os.fstat(arguments[0]).st_ino] = os.fstat(arguments[0]).st_size
        elif name == "truncate":
            inode = os.fstat(arguments[0]).st_ino
            self._sizes[inode] = min(self._sizes.get(inode, 0), arguments[1])
        elif name == "fsync_directory":
            # With the removal of a directory, what was removed from it before is gone for good.
            gone = {target, *(path for path in self._removed if os.path.dirname(path) == target)}
            self._removed -= gone
            inside = tuple(f"{path}/" for path in gone - {target})
            self._names = [
                (directory, undo)
                for directory, undo in self._names
                if directory not in gone and not directory.startswith(inside)
            ]
        elif name in {"create", "open_for_append", "link"} and not existed:
            if name != "link":
                self._sizes[os.stat(target).st_ino] = 0
            self._forget_on_loss(target, lambda: os.unlink(target))
        elif name == "replace":
            self._forget_on_loss(
                target, lambda: (os.rename(target, arguments[0]), saved and os.link(saved, target))
            )
        elif name == "unlink" and saved:
            self._forget_on_loss(target, lambda: os.link(saved, target))
        elif name == "remove_directory" and existed:
            self._removed.add(target)
            self._forget_on_loss(target, lambda: os.mkdir(target))
        return result

    def lose(self, *, everything: bool = False) -> None:
        """Lose what was not synced."""
        kept = 0 if everything else self._chance.choice([0, 0, self._chance.randint(0, len(self._names))])
        for _, undo in reversed(self._names[kept:]):
            with contextlib.suppress(OSError):
                undo()
        for path in Path(self._root).rglob("*"):
            if path.is_file() and not path.is_symlink():
                size = self._sizes.get(path.stat().st_ino, path.stat().st_size)
                if size < path.stat().st_size:
                    os.truncate(path, size)

    def _forget_on_loss(self, path: str, undo: Callable[[], object]) -> None:
        self._names.append((os.path.dirname(path), undo))

    def _save(self, path: str) -> str:
        self._saved.mkdir(exist_ok=True)
        copy = str(self._saved / str(len(list(self._saved.iterdir()))))
        os.link(path, copy)
        return copy
