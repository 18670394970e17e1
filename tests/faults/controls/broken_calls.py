"""Ways to break tokshard at its storage calls. The crash campaign must notice each of them.

Each function gets the paths that a command makes, and breaks this process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.verdicts import SEALS

Finals = list[str]


def _patch(name: str, wrong: Callable[..., Any]) -> None:
    """Replace a storage call by a function of the right one and its arguments."""
    from tokshard.storage import syscalls

    original = getattr(syscalls, name)
    setattr(syscalls, name, lambda *arguments: wrong(original, *arguments))


def marker_before_data(finals: Finals) -> None:
    """Give files their names only after the marker has its own."""
    held: list[Callable[[], Any]] = []
    sources: set[str] = set()

    def name_it(original: Any, source: str, target: str) -> None:
        path = os.path.relpath(target)
        if path.endswith(SEALS):
            original(source, target)
            while held:
                held.pop(0)()
        elif path in finals:
            held.append(lambda: original(source, target))
            sources.add(source)
        else:
            original(source, target)

    def unlink(original: Any, path: str) -> None:
        if path in sources and held:
            held.append(lambda: original(path))
        else:
            original(path)

    for name in ("replace", "link"):
        _patch(name, name_it)
    _patch("unlink", unlink)


def old_files_stay(finals: Finals) -> None:
    """Remove no old file before new ones get their names."""
    _patch("unlink", lambda original, path: os.path.relpath(path) in finals or original(path))


def old_index_stays(finals: Finals) -> None:
    """Remove the old manifest, but not the old index, before new tokens get their name."""
    _patch("unlink", lambda original, path: path.endswith(".idx") or original(path))


def ignore_failed_fsync(finals: Finals) -> None:
    """Take a failed fsync for a success."""

    def wrong(original: Any, *arguments: Any) -> None:
        with contextlib.suppress(OSError):
            original(*arguments)

    _patch("fsync", wrong)


def never_fsync(finals: Finals) -> None:
    """Leave the data of files to the system."""
    _patch("fsync", lambda original, *arguments: None)


def never_fsync_directories(finals: Finals) -> None:
    """Leave the names of files to the system."""
    _patch("fsync_directory", lambda original, *arguments: None)


def copy_instead_of_rename(finals: Finals) -> None:
    """Write files under their final names."""

    def wrong(original: Any, source: str, target: str) -> None:
        from tokshard.storage import syscalls

        if os.path.relpath(target) not in finals:
            original(source, target)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        descriptor = syscalls.create(target)
        syscalls.write(descriptor, Path(source).read_bytes(), target)
        os.close(descriptor)

    for name in ("replace", "link"):
        _patch(name, wrong)


def keep_what_was_appended(finals: Finals) -> None:
    """Go on at the end of a file, whatever a killed run has left there."""

    def wrong(original: Any, descriptor: int, buffer: Any, path: str) -> None:
        os.lseek(descriptor, 0, os.SEEK_END)
        original(descriptor, buffer, path)

    _patch("truncate", lambda original, *arguments: None)
    _patch("write", wrong)


def forget_finished_work(finals: Finals) -> None:
    """Begin anew, whatever is finished."""
    if Path("out/x.bin").exists():
        return
    for path in Path("out").glob("x.tokshard/*"):
        if path.name not in {"manifest.json", "units.jsonl", "provenance.bin", "work.bak", "parts"}:
            shutil.rmtree(path, ignore_errors=True)


def ignore_short_writes(finals: Finals) -> None:
    """Write once, however much of it was written, and never compare sizes."""
    _without_checks()
    _patch("write", lambda original, descriptor, buffer, path: os.write(descriptor, buffer))


def ignore_failed_writes(finals: Finals) -> None:
    """Write as ``ndarray.tofile`` does, which does not report what its last buffer could not write."""
    _without_checks()

    def wrong(original: Any, descriptor: int, buffer: Any, path: str) -> None:
        with contextlib.suppress(OSError):
            original(descriptor, buffer, path)

    _patch("write", wrong)


def _without_checks() -> None:
    from tokshard.storage import files

    files._check_size = lambda *_: None


def sweep_by_name(finals: Finals) -> None:
    """Remove whatever looks temporary, whoever made it, after a run that was killed."""
    if not Path("out/x.tokshard/work").exists():
        return
    for pattern in ("*.part", "*-tmp", ".*-tmp", "x.tokshard/*.part"):
        for path in Path("out").glob(pattern):
            if path.is_file() and not path.is_symlink():
                path.unlink()
