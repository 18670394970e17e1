"""Journal of a run: the entries appended to its files, and checkpoints of what is durable.

Each entry is a line of JSON, ``{"entry": {...}, "xxh3_128": ...}``. A checkpoint,
``{"checkpoint": {NAME: SIZE}, "xxh3_128": ...}``, records the size of each file after everything before it
was fsynced, and can record a digest of the files. A run resumes from the last checkpoint. Each line has its
own digest; everything after a truncated or damaged line is redone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

from tokshard.core.background import Background
from tokshard.core.codec import Count, Record, Xxh3, decode, encode
from tokshard.errors import IntegrityError
from tokshard.storage import reading
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AppendFile

# 400 bytes for each of the fields of a unit are the longest entry.
_MAX_LINE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JournalLine(Record):
    """One line of a journal: an entry or a checkpoint."""

    entry: dict[str, Any] | None = None
    checkpoint: dict[str, Count] | None = None
    files_digest: Xxh3 | None = None
    digest: Xxh3 | None = None

    def _validate(self) -> None:
        if (self.entry is None) == (self.checkpoint is None):
            raise ValueError("a journal line must be an entry or a checkpoint")

    def to_bytes(self) -> bytes:
        """Return the line with its digest and line break."""
        return _compact(replace(self, digest=content_digest(_compact(self)))) + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> JournalLine | None:
        """Return the line without its digest; None if it is truncated or damaged."""
        if not content.endswith(b"\n"):
            return None
        try:
            line = decode(cls, json.loads(content), "the journal")
        except (IntegrityError, ValueError, RecursionError):
            return None
        bare = replace(line, digest=None)
        return bare if line.digest == content_digest(_compact(bare)) else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state from which a run can resume.

    Attributes:
        entries: The entries since the previous checkpoint.
        sizes: The size of each file in bytes, by name.
        journal_bytes: The size of the journal itself.
        files_digest: The digest of the files that was passed to :meth:`Journal.begin_checkpoint`.
    """

    entries: list[dict[str, Any]]
    sizes: dict[str, int]
    journal_bytes: int
    files_digest: str | None = None


class Journal:
    """A journal open for writing.

    Args:
        size_bytes: The size to continue from, see :class:`Checkpoint`.
    """

    def __init__(self, path: str, size_bytes: int) -> None:
        self._file = AppendFile(path, size_bytes)
        self._under_way: Background[None] | None = None
        self._waiting: list[dict[str, Any]] = []

    def append(self, entry: dict[str, Any]) -> None:
        """Append an entry; if a checkpoint is in progress, the entry is written after it."""
        if self._under_way is None:
            self._write(JournalLine(entry))
        else:
            self._waiting.append(entry)

    def checkpoint(self, files: Mapping[str, AppendFile]) -> None:
        """Fsync the files, then append and fsync a line with their sizes."""
        self.begin_checkpoint(files)
        self.settle()

    def begin_checkpoint(self, files: Mapping[str, AppendFile], files_digest: str | None = None) -> None:
        """Start a checkpoint in another thread; bytes written during it are not covered.

        ``files_digest``: a digest of the files as they are now, to compare on resume.

        Raises:
            IntegrityError: The size of a file is wrong. Nothing is started.
            StorageError: The previous checkpoint, which is awaited first, failed.
        """
        self.settle()
        for file in files.values():
            file.check_size()
        sizes = {name: file.size_bytes for name, file in files.items()}
        self._under_way = Background(partial(self._force, list(files.values()), sizes, files_digest))

    @property
    def is_settled(self) -> bool:
        """True if :meth:`settle` would return at once."""
        return self._under_way is None or self._under_way.done.is_set()

    def settle(self) -> None:
        """Wait for the checkpoint in progress, if any.

        Raises:
            StorageError: The fsync failed.
        """
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
            for entry in self._waiting:
                self._write(JournalLine(entry))
            self._waiting.clear()

    def close(self) -> None:
        """Close the file; safe to call twice. A checkpoint in progress is awaited first, even if it fails."""
        if self._under_way is not None:
            self._under_way.done.wait()
        self._file.close()

    def _force(self, files: list[AppendFile], sizes: dict[str, int], files_digest: str | None) -> None:
        for file in files:
            file.force()
        self._write(JournalLine(checkpoint=sizes, files_digest=files_digest))
        self._file.sync()

    def _write(self, line: JournalLine) -> None:
        self._file.write(line.to_bytes())


def read_checkpoints(
    path: str, *, accepts: Callable[[dict[str, Any]], bool] = lambda _: True
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a journal, up to the first line that is damaged or not accepted.

    An absent journal has no checkpoints.
    """
    try:
        journal = reading.open_file(path)
    except FileNotFoundError:
        return
    entries: list[dict[str, Any]] = []
    position = 0
    with journal:
        for content in _lines(journal):
            position += len(content)
            line = JournalLine.from_bytes(content)
            if line is None:
                return
            if line.checkpoint is not None:
                yield Checkpoint(entries, line.checkpoint, position, line.files_digest)
                entries = []
            elif line.entry is not None and accepts(line.entry):
                entries.append(line.entry)
            else:
                return


def read_entries(path: str) -> Iterator[dict[str, Any]]:
    """Yield all entries of a journal up to the first damaged line, with or without a later checkpoint."""
    with reading.open_file(path) as journal:
        for content in _lines(journal):
            line = JournalLine.from_bytes(content)
            if line is None:
                return
            if line.entry is not None:
                yield line.entry


def _lines(journal: IO[bytes]) -> Iterator[bytes]:
    # A piece of a longer line has no line break, and therefore counts as damaged.
    return iter(partial(journal.readline, _MAX_LINE_BYTES), b"")


def _compact(line: JournalLine) -> bytes:
    return json.dumps(encode(line), separators=(",", ":")).encode("ascii")
