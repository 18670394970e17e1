"""Implementations that are wrong on purpose. The campaigns must catch each of them."""

from __future__ import annotations

import os
from typing import Any


def manifest_first() -> None:
    """Give the manifest its name before the data."""
    from tokshard.dataset import workdir
    from tokshard.dataset.manifest import MANIFEST_NAME, manifest_path

    original = workdir._publish_output

    def wrong(directory: str, k: int, prefix: str, names: list[str], *, replaces: bool) -> None:
        from tokshard.storage import paths, syscalls

        syscalls.make_directory(paths.sidecar_directory(prefix))
        if workdir._is_staged(directory, k, MANIFEST_NAME):
            syscalls.replace(os.path.join(directory, f"{k}.{MANIFEST_NAME}"), manifest_path(prefix))
        original(directory, k, prefix, names, replaces=replaces)

    workdir._publish_output = wrong


def new_tokens_beside_the_old_index() -> None:
    """Keep an old index where it is until the new one replaces it."""
    from tokshard.storage import syscalls

    original = syscalls.unlink
    syscalls.unlink = lambda path: None if path.endswith("x.idx") else original(path)


def append_without_cutting() -> None:
    """Go on at the end of a stream, whatever a killed run has left there."""
    from tokshard.storage import files, syscalls

    def wrong(self: Any, path: str, size_bytes: int = 0) -> None:
        self.path = path
        self._descriptor = syscalls.open_for_append(path)
        self.size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)

    files.AppendFile.__init__ = wrong


def write_behind_the_end() -> None:
    """Go on from the recorded size, but write behind whatever a killed run has left there."""
    from tokshard.storage import files, syscalls

    def wrong(self: Any, path: str, size_bytes: int = 0) -> None:
        self.path = path
        self._descriptor = syscalls.open_for_append(path)
        self.size_bytes = size_bytes
        os.lseek(self._descriptor, 0, os.SEEK_END)

    files.AppendFile.__init__ = wrong
    files._check_size = lambda *_: None


def forget_finished_parts() -> None:
    """Begin with no parts, whatever is there."""
    from tokshard.text.tokenize.job import Workspace

    original = Workspace.usable_parts

    def wrong(self: Any, first: Any, engines: Any) -> Any:
        for part in original(self, first, engines):
            os.unlink(part.path)
        return iter(())

    Workspace.usable_parts = wrong


def trust_every_part() -> None:
    """Write parts under their final names, and take what bears the name for finished."""
    from tokshard.storage import files

    files.temporary_path = lambda path: path


def ignore_failed_fsync() -> None:
    """Take a failed fsync for a success."""
    from tokshard.errors import StorageError
    from tokshard.storage import syscalls

    original = syscalls.fsync

    def wrong(descriptor: int, path: str) -> None:
        try:
            original(descriptor, path)
        except StorageError:
            return

    syscalls.fsync = wrong


def write_with_tofile() -> None:
    """Write through ndarray.tofile, which does not report what its last buffer could not write."""
    import numpy as np

    from tokshard.storage import files, syscalls

    def wrong(descriptor: int, buffer: Any, path: str) -> None:
        with os.fdopen(os.dup(descriptor), "ab") as file:
            try:
                np.frombuffer(memoryview(buffer).cast("B"), np.uint8).tofile(file)
            except OSError:
                return

    syscalls.write = wrong
    files._check_size = lambda *_: None
