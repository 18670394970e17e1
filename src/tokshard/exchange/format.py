"""The base class of formats: what export writes, and the names of all formats.

The module of this package with the name of a format holds everything about it. Its ``FORMAT`` is the class:
dtypes, names of files, defaults, what the format adds to the options and the parameters, the writer, and, if
convert reads the format, the reader (:mod:`tokshard.exchange.reading`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np

from tokshard.core.background import Background
from tokshard.exchange.manifest import ExportedFile, ExportParameters
from tokshard.exchange.options import ExportOptions, FormatName
from tokshard.exchange.records import Records
from tokshard.storage.files import DigestingWriter

if TYPE_CHECKING:
    from tokshard.exchange.reading import TokenReader
    from tokshard.exchange.source import OpenSource  # convert does without plans and indexes

_MOST_UNDER_WAY = 4


def format_of(name: str) -> type[Format]:
    """Return the class of a format."""
    form: type[Format] = import_module(f"tokshard.exchange.{name}").FORMAT
    return form


def all_formats() -> dict[str, type[Format]]:
    """Return the classes of all formats by name."""
    return {name: format_of(name) for name in get_args(FormatName)}


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Consecutive records: numbers ``first`` to ``stop``, of the tokens ``begin`` to ``end``."""

    number: int
    first: int
    stop: int
    begin: int
    end: int

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.end - self.begin


class Stage:
    """The directory in which files are written; each appears complete or not at all.

    Files are forced to the disk by threads while the next ones are written. On exit, all of them are on the
    disk under their names.

    Attributes:
        files: The files that were written.

    Raises:
        StorageError: On exit or while a later file is written: a file could not be written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: list[ExportedFile] = []
        self._under_way: deque[Background[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        errors = [file.exception() for file in self._under_way]  # waits for all
        if kind is None:
            for error in filter(None, errors):
                raise error

    @contextmanager
    def file(self, name: str, *, tokens: int | None = None) -> Iterator[DigestingWriter]:
        """Write a file; on exit all of it is written, but not forced to the disk yet."""
        while len(self._under_way) > _MOST_UNDER_WAY:
            self._under_way.popleft().result()
        file = DigestingWriter(os.path.join(self.directory, name))
        file.__enter__()
        try:
            yield file
        except BaseException:
            file.discard()
            raise
        self._under_way.append(Background(lambda: file.__exit__(None, None, None)))
        record = file.record()
        self.files.append(ExportedFile(name, record.size_bytes, record.xxh3_128, tokens))


class Format:
    """A format, and as an instance its writer for the records and parameters of one export."""

    DTYPES: ClassVar[tuple[str, ...]]
    """The dtypes of tokens, the smallest first."""
    SUFFIXES: ClassVar[tuple[str, ...]]
    """The ends of the names of all files, first that of the files with tokens."""
    SHARD_TOKENS: ClassVar[int]
    """The tokens of a shard of the format's own writer."""
    DEFAULT_NAME: ClassVar[str | None] = None
    """The beginning of file names; None for the name of the source."""
    IS_NAMED_AS_SPLIT: ClassVar[bool] = False
    """Whether file names of samples begin with the name of their split."""
    HAS_LAST_LABEL: ClassVar[bool] = True
    """Whether readers expect one more token in each sample, the last label."""
    NO_SAMPLES: ClassVar[str | None] = None
    """The reason why samples cannot be exported; None if they can."""
    HAS_EMPTY_SHARDS: ClassVar[bool] = True
    """Whether there are shards without tokens: of empty records, or a single one without any record."""
    RULE: ClassVar[Literal["below", "within", "reaches"]]
    """Where a shard of whole records ends: before the record with which it has as many tokens as the limit
    (``below``) or more (``within``), or after the record with which it has as many (``reaches``)."""
    READER: ClassVar[TokenReader | None] = None
    """The reader for convert; None if convert does not read the format."""

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        self.parameters = parameters
        self._records = records
        self._name = parameters.name
        self._limit = parameters.shard_tokens
        self._dtype = np.dtype(parameters.dtype).newbyteorder("<")

    @staticmethod
    def added_parameters(options: ExportOptions, source: OpenSource, dtype: np.dtype[Any]) -> dict[str, Any]:  # noqa: ARG004
        """Return the parameters that only this format has, by their names.

        Args:
            options: The options of the export.
            source: The records and their tokenizer.
            dtype: The dtype of the output.

        Raises:
            UsageError: An option is missing.
        """
        return {}

    def warning(self, shards: int, tokens: int) -> str | None:  # noqa: ARG002
        """Return what is wrong with an export of so many shards and tokens; None if nothing is."""
        return None

    def export(self, stage: Stage) -> int:
        """Write all files; return the number of tokens in them that the source does not have."""
        for shard in self.shards():
            self.write(shard, stage)
        return 0

    def write(self, shard: ShardRange, stage: Stage) -> None:
        """Write the files of a shard of whole records."""
        raise NotImplementedError

    def count_files(self) -> int:
        """Return the number of files of the whole export; an estimate if only the tokens decide."""
        return len(self.SUFFIXES) * sum(1 for _ in self.shards())

    def shards(self) -> Iterator[ShardRange]:
        """Yield the shards of a format that cuts between records; an oversized record is one by itself."""
        records = self._records
        if not records.count and self.HAS_EMPTY_SHARDS:
            yield ShardRange(0, 0, 0, 0, 0)
        number = 0
        first = 0
        begin = 0
        while first < records.count:
            if not self.HAS_EMPTY_SHARDS:
                first = records.first_end_above(begin, first=first)
                if first == records.count:
                    return
            if self.RULE == "within":
                stop = records.first_end_above(begin + self._limit, first=first)
            else:
                stop = records.first_end_at(begin + self._limit, first=first) + (self.RULE == "reaches")
            stop = min(max(stop, first + 1), records.count)
            end = records.begin(stop)
            yield ShardRange(number, first, stop, begin, end)
            number += 1
            first = stop
            begin = end

    def _write_tokens(self, name: str, shard: ShardRange, stage: Stage) -> None:
        with stage.file(name, tokens=shard.tokens) as file:
            for block in self._records.blocks(shard.begin, shard.end, self._dtype):
                file.write(block.data)
