"""The base class of formats: what export writes, and the names of all formats.

The module of this package with the name of a format holds everything about it. Its ``FORMAT`` is the class:
dtypes, names of files, defaults, what the format adds to the options and the parameters, the writer, and, if
convert reads the format, the reader (:mod:`tokshard.exchange.reading`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np

from tokshard.core.background import Background
from tokshard.core.codec import Bounds, Count, Positive, Record, Xxh3
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer
from tokshard.errors import UsageError
from tokshard.exchange.options import ExportOptions, FormatName, HeaderName
from tokshard.exchange.records import Conversion, Records, begin_of, first_end_above, first_end_at
from tokshard.storage.files import DigestingWriter

if TYPE_CHECKING:
    from tokshard.exchange.reading import TokenReader

_MOST_UNDER_WAY = 4


def format_of(name: str) -> type[Format]:
    """Return the class of a format."""
    form: type[Format] = import_module(f"tokshard.exchange.{name}").FORMAT
    return form


def all_formats() -> dict[str, type[Format]]:
    """Return the classes of all formats by name."""
    return {name: format_of(name) for name in get_args(FormatName)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportParameters(Record):
    """The options that determine the bytes of an export."""

    format: FormatName
    dtype: Annotated[str, Bounds(pattern="uint(8|16|32|64)|int(32|64)")]
    name: str
    shard_tokens: Positive
    eod_id: Count | None = None
    bos_id: Count | None = None
    val_shards: Count | None = None
    header: HeaderName | None = None
    tokenizer_name: str | None = None
    last_label: bool | None = None
    pad_id: Count | None = None


@dataclass(frozen=True, slots=True)
class ExportedFile(Record):
    """A file of an export."""

    name: str
    size_bytes: Count
    xxh3_128: Xxh3
    tokens: Count | None = None


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


@dataclass(frozen=True, slots=True)
class KnownSource:
    """What a format may use of the source for its parameters.

    Attributes:
        name: The source as the user named it.
        dtype: The dtype of the output.
        tokenizer: The tokenizer, with all fields unknown if it is mixed.
        tokenizer_path: The file that defines it, as recorded.
    """

    name: str
    dtype: np.dtype[Any]
    tokenizer: DatasetTokenizer
    tokenizer_path: str | None


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
        self._records = records
        self._name = parameters.name
        self._limit = parameters.shard_tokens
        self._dtype = _little(parameters.dtype)
        self._conversion = Conversion(records, self._dtype)

    @staticmethod
    def parameters(options: ExportOptions, known: KnownSource) -> dict[str, Any]:  # noqa: ARG004
        """Return the parameters that only this format has, by their names.

        Args:
            options: The options of the export.
            known: What is known of the source.

        Raises:
            UsageError: An option is missing.
        """
        return {}

    @staticmethod
    def warning(parameters: ExportParameters, shards: int, tokens: int) -> str | None:  # noqa: ARG004
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
                first = first_end_above(records, begin, first=first)
                if first == records.count:
                    return
            if self.RULE == "within":
                stop = first_end_above(records, begin + self._limit, first=first)
            else:
                stop = first_end_at(records, begin + self._limit, first=first) + (self.RULE == "reaches")
            stop = min(max(stop, first + 1), records.count)
            end = begin_of(records, stop)
            yield ShardRange(number, first, stop, begin, end)
            number += 1
            first = stop
            begin = end

    def _write_tokens(self, name: str, shard: ShardRange, stage: Stage) -> None:
        with stage.file(name, tokens=shard.tokens) as file:
            for block in self._conversion.blocks(shard.begin, shard.end):
                file.write(block.data)


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
    own = records.token_dtype
    wide = next((name for name in allowed if np.dtype(name).itemsize >= own.itemsize), allowed[-1])
    return ChosenDtype(_little(wide), f"as wide as the {own.name} tokens: the vocabulary size is unknown")


def _little(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("<")
