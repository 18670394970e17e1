"""Memory of this process and of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def release_free_memory() -> None:
    """Return memory that was freed to the system, where the C library (glibc) can.

    It keeps what was freed, and a forked process starts with a copy of that.
    """
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available_bytes() -> int | None:
    """Return the memory that programs and the page cache can use; None if the system does not tell.

    It is ``MemAvailable`` of Linux, or the smallest limit of the control groups of this process (of a
    container or a Slurm job, for example), whichever is less.

    Example:
        >>> available_bytes()  # doctest: +SKIP
        24877023232
    """
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
    return min([available, *_limits()])


def _limits() -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from _read_limits(_CGROUPS, path, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _read_limits(_CGROUPS / "memory", path, "memory.limit_in_bytes")


def _read_limits(root: Path, path: str, name: str) -> Iterator[int]:
    # A container may see its own group at the root, whatever the path says.
    group = PurePosixPath(path.lstrip("/"))
    for directory in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max" is no limit
            yield int((root / directory / name).read_text())
