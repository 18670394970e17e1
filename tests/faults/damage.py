"""Damage of files: what disks, editors and other programs do to unfinished work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n{}\n" + bytes(40))


def empty(path: Path) -> None:
    os.truncate(path, 0)


def swap(path: Path) -> None:
    """Exchange two numbers of eight bytes, which a sum of the bytes does not notice."""
    content = path.read_bytes()
    path.write_bytes(content[8:16] + content[:8] + content[16:])


def remove(path: Path) -> None:
    path.unlink()


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"in a directory")


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    """Replace a file by a link to a copy."""
    copy = Path("in", f"copy-of-{path.name}")
    copy.parent.mkdir(exist_ok=True)
    shutil.move(path, copy)
    path.symlink_to(copy.absolute())


WAYS: dict[str, Callable[[Path], None]] = {
    way.__name__: way
    for way in (flip, cut, lengthen, empty, swap, remove, become_directory, become_pipe, become_link)
}
