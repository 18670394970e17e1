"""The journal of a run: what has been appended to its files, and up to where that is on the disk.

A line of JSON for each thing done, and from time to time a *checkpoint* line, which says how long each
file was when everything before it had been forced to the disk. A run goes on from the last checkpoint.
Each line holds its own digest: what comes after a cut or damaged line is made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokshard.core.background import Background
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AppendFile

_CHECKPOINT = "checkpoint"
_LINE_DIGEST = "line_xxh3_128"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A moment to which a run can go back.

    Attributes:
        entries: What was noted since the checkpoint before.
        sizes: How long each file was, by its name.
        journal_bytes: How long the journal itself was.
    """

    entries: list[dict[str, Any]]
    sizes: dict[str, int]
    journal_bytes: int


class Journal:
    """A journal open for writing.

    Args:
        path: The file; created where it is absent.
        size_bytes: The size to continue from, which a :class:`Checkpoint` tells.
    """

    def __init__(self, path: str, size_bytes: int) -> None:
        self._file = AppendFile(path, size_bytes)
        self._under_way: Background[None] | None = None
        self._waiting: list[dict[str, Any]] = []

    def append(self, entry: dict[str, Any]) -> None:
        """Note one thing; behind a checkpoint that is under way when that has been settled."""
        if self._under_way is None:
            self._write(entry)
        else:
            self._waiting.append(entry)

    def checkpoint(self, files: Mapping[str, AppendFile]) -> None:
        """Force the files to the disk, and then a line with their sizes."""
        self.begin_checkpoint(files)
        self.settle()

    def begin_checkpoint(self, files: Mapping[str, AppendFile]) -> None:
        """Do so in another thread. What the files grow by meanwhile is not covered.

        Args:
            files: The files, by the names under which the checkpoint notes their sizes.

        Raises:
            IntegrityError: A file is not as long as it should be. Nothing is begun.
            StorageError: The checkpoint before this one, which is waited for, has failed.
        """
        self.settle()
        for file in files.values():
            file.check_size()
        sizes = {name: file.size_bytes for name, file in files.items()}
        self._under_way = Background(partial(self._force, list(files.values()), sizes))

    @property
    def is_settled(self) -> bool:
        """Whether :meth:`settle` would not have to wait."""
        return self._under_way is None or self._under_way.done.is_set()

    def settle(self) -> None:
        """Wait for the checkpoint that is under way, if one is.

        Raises:
            StorageError: The files could not be forced to the disk.
        """
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
            for entry in self._waiting:
                self._write(entry)
            self._waiting.clear()

    def close(self) -> None:
        """Close the file; safe to call twice. A checkpoint under way comes to its end, whatever that is."""
        if self._under_way is not None:
            self._under_way.done.wait()
        self._file.close()

    def _force(self, files: list[AppendFile], sizes: dict[str, int]) -> None:
        for file in files:
            file.force()
        self._write({_CHECKPOINT: sizes})
        self._file.sync()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(_compact({**entry, _LINE_DIGEST: content_digest(_compact(entry))}) + b"\n")


def read_checkpoints(
    path: str, *, accepts: Callable[[dict[str, Any]], bool] = lambda _: True
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a journal, up to the first line that is damaged or not accepted.

    Args:
        path: The journal. One that is absent has no checkpoints.
        accepts: Tells whether an entry may stay.
    """
    try:
        journal = open(path, "rb")  # noqa: SIM115 - in a with below
    except FileNotFoundError:
        return
    entries: list[dict[str, Any]] = []
    position = 0
    with journal:
        for line in journal:
            position += len(line)
            entry = _parse(line)
            if entry is None:
                return
            if _CHECKPOINT in entry:
                yield Checkpoint(entries, entry[_CHECKPOINT], position)
                entries = []
            elif accepts(entry):
                entries.append(entry)
            else:
                return


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a line's entry; None for a line that is cut or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    digest = entry.pop(_LINE_DIGEST, None)
    return entry if digest == content_digest(_compact(entry)) else None


def _compact(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode("ascii")
