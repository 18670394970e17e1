"""The base class of formats, the rule for the dtype of their tokens, and the files being written."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from tokshard.core.background import Background
from tokshard.errors import UsageError
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.records import Conversion, Records
from tokshard.exchange.shards import ExportedFile, Position, ShardRange, WrittenShard
from tokshard.storage.files import DigestingWriter

_MOST_UNDER_WAY = 4


class Stage:
    """The directory in which files are written; each appears complete or not at all.

    Files are forced to the disk by threads while the next ones are written. On exit, all of them are on the
    disk under their names.

    Raises:
        StorageError: On exit or while a later file is written: a file could not be written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files: list[ExportedFile] = []
        self._under_way: deque[Background[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._under_way:
            file.exception()  # waits
        if error is None:
            for file in self._under_way:
                file.result()

    @contextmanager
    def file(self, name: str, *, tokens: int | None = None) -> Iterator[DigestingWriter]:
        """Write a file; on exit all of it is written, but not forced to the disk yet."""
        file = DigestingWriter(os.path.join(self.directory, name))
        file.__enter__()
        try:
            yield file
        except BaseException:
            file.discard()
            raise
        self._under_way.append(Background(lambda: file.__exit__(None, None, None)))
        record = file.record()
        self._files.append(ExportedFile(name, record.size_bytes, record.xxh3_128, tokens))

    def take(self) -> tuple[ExportedFile, ...]:
        """Return the files that were written since the last call, by name."""
        while len(self._under_way) > _MOST_UNDER_WAY:
            self._under_way.popleft().result()
        files, self._files = self._files, []
        return tuple(sorted(files, key=lambda file: file.name))


class Format(ABC):
    """Writer of a format, for the records and parameters of one export."""

    DTYPES: ClassVar[tuple[str, ...]]
    """The dtypes of tokens, the smallest first."""
    SUFFIXES: ClassVar[tuple[str, ...]]
    """The ends of the names of all files, first that of the files with tokens."""
    SHARD_TOKENS: ClassVar[int]
    """The tokens of a shard of the format's own writer."""
    DEFAULT_NAME: ClassVar[str | None] = None
    """The beginning of file names; None for the name of the source."""
    HAS_LAST_LABEL: ClassVar[bool] = True
    """Whether readers expect one more token in each sample, the last label."""

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        self._records = records
        self._name, self._limit = parameters.name, parameters.shard_tokens
        self._dtype = _little(parameters.dtype)
        self._conversion = Conversion(records, self._dtype)

    @abstractmethod
    def next_shard(self, number: int, position: Position) -> ShardRange | None:
        """Return the shard that begins at a position of the records; None after the last one."""

    @abstractmethod
    def write(self, shard: ShardRange, position: Position, stage: Stage) -> WrittenShard:
        """Write the files of a shard."""

    def finish(self, written: Sequence[WrittenShard], stage: Stage) -> None:  # noqa: B027 - not all have any
        """Write the files that describe all shards together."""

    @abstractmethod
    def count_files(self) -> int:
        """Return the number of files of the whole export; an estimate if only the tokens decide."""

    def count_shards(self) -> int:
        """Return the number of shards of a format that cuts between records."""
        number, position = 0, Position(0, 0)
        while (shard := self.next_shard(number, position)) is not None:
            number, position = number + 1, Position(shard.stop, 0)
        return number


@dataclass(frozen=True, slots=True)
class ChosenDtype:
    """The dtype of the tokens in the output, and the reason for it."""

    dtype: np.dtype[Any]
    reason: str


def choose_dtype(
    records: Records,
    allowed: Sequence[str],
    *,
    requested: str | None = None,
    vocab_size: int | None = None,
) -> ChosenDtype:
    """Return the dtype of the output.

    It is the requested one; else the smallest one that holds all ids of the vocabulary; else, if the size of
    the vocabulary is unknown, the smallest one that is as wide as the tokens of the records.

    Args:
        records: The records.
        allowed: The names of the format's dtypes, the smallest first.
        requested: The name that the user requests.
        vocab_size: The size of the vocabulary.

    Raises:
        UsageError: The requested dtype is not one of the format's, or none holds the vocabulary.
    """
    if requested is not None:
        if requested not in allowed:
            raise UsageError(f"--dtype must be one of {', '.join(allowed)}, got {requested!r}")
        return ChosenDtype(_little(requested), "requested by --dtype")
    if vocab_size is not None:
        for name in allowed:
            if vocab_size - 1 <= int(np.iinfo(name).max):
                return ChosenDtype(_little(name), f"holds the vocabulary of {vocab_size:,} tokens")
        raise UsageError(
            f"a vocabulary of {vocab_size:,} tokens does not fit {allowed[-1]}, the format's largest dtype"
        )
    wide = next(
        (name for name in allowed if np.dtype(name).itemsize >= records.token_dtype.itemsize), allowed[-1]
    )
    return ChosenDtype(
        _little(wide), f"as wide as the {records.token_dtype.name} tokens: the vocabulary size is unknown"
    )


def _little(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("<")
