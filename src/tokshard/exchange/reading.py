"""Token files as convert reads them: readers of formats, checked files, and the ends of documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xxhash

from tokshard.core.codec import Count, Record
from tokshard.core.formatting import counted
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import Compression, SourceDtype, TokenFormat
from tokshard.dataset.source import InputFile, Tokens
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.exchange.records import Integers
from tokshard.storage import fs, paths
from tokshard.storage.syscalls import Buffer

# Fewer tokens show no pattern: a document of one token may end with EOD token 0.
_LEAST_TOKENS = 4
_LEAST_LARGE_TOKENS = 128
_WIDTH_TOKENS = 1 << 19
COPY_HINT = "copy the file again from its source: it is truncated or damaged"

Rows = Iterator[tuple[Buffer, Integers]]
"""Content of a boundary file, and in it the starts and ends of documents, int64 of shape (rows, 2), or the
ends alone, of shape (rows, 1)."""

Metadata = tuple[int, int]
"""The bytes of a token, and the number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile(SourceFile):
    """A file of a conversion, which must not change until the conversion ends."""

    size_bytes: Count

    def head(self, size: int) -> bytes:
        """Return the first bytes, at most ``size``."""
        content = bytearray(min(self.size_bytes, size))
        InputFile(self.path).read_into(memoryview(content), 0)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class TokenFile(Record):
    """A file of tokens.

    Attributes:
        source: The file.
        dtype: Dtype of its tokens, by NumPy's name; they are little endian.
        header_bytes: Bytes before the tokens.
        tokens: Number of tokens, which fill the rest of the file.
        boundaries: File with the ends of its documents. Absent if there is none.
    """

    source: LocalFile
    dtype: str
    header_bytes: Count
    tokens: Count
    boundaries: LocalFile | None = None

    @property
    def path(self) -> str:
        """Its path."""
        return self.source.path

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """The dtype of its tokens."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def token_bytes(self) -> int:
        """Size of its tokens in bytes."""
        return self.source.size_bytes - self.header_bytes

    @property
    def inputs(self) -> tuple[LocalFile, ...]:
        """The inputs of the manifest: the file, then its boundaries."""
        return (self.source,) if self.boundaries is None else (self.source, self.boundaries)

    def read(self, data: InputFile, first: int, count: int) -> Tokens:
        """Return tokens of the opened file."""
        tokens = np.empty(count, self.token_dtype)
        data.read_into(tokens.data.cast("B"), self.header_bytes + first * tokens.itemsize)
        return tokens

    def __str__(self) -> str:
        documents = f", documents in {self.boundaries.path}" if self.boundaries else ""
        return f"{self.path} ({counted(self.tokens, 'token')} of {self.dtype}{documents})"


_Entry = tuple[LocalFile, LocalFile | None, Metadata | None]


class TokenReader:
    """Reader of the token files of a format.

    Tokens have no header, unless a subclass says so: their dtype is given, or follows from the files next to
    them.

    Args:
        name: The format.
        dtypes: The dtypes that it has.
        suffixes: The ends of the names of the files with tokens, and of the files with the boundaries of
            their documents.
    """

    HAS_HEADER: ClassVar[bool] = False
    """Whether a header tells the dtype of the tokens."""
    BEGINS_WITH_BOS: ClassVar[bool] = False
    """Whether documents begin with a BOS token; if not, they end as a file next to the tokens tells, or with
    an EOD token."""
    MASKS_SUFFIX: ClassVar[str | None] = None
    """What the name of a file next to the tokens has more, whose loss masks are not converted."""
    COMPRESSION: ClassVar[Compression] = "none"
    """The compression of the boundary file."""
    MISSING: ClassVar[str]
    """What a file lacks that does not tell its dtype, with a place for the name of the boundary file."""

    def __init__(self, name: TokenFormat, dtypes: Sequence[str], suffixes: Sequence[str]) -> None:
        self.name = name
        self.suffix = suffixes[0]
        self._boundaries_suffix = suffixes[-1]
        self._dtypes = dtypes

    def token_files(self, files: Sequence[str]) -> list[str]:
        """Return those of some files that have tokens of this format, by their names, in order."""
        return sorted(
            (path for path in files if path.endswith(self.suffix) and self._is_token_file(path)),
            key=self._order,
        )

    def chosen(self, directory: str, files: list[str], split: str) -> list[str]:  # noqa: ARG002
        """Return the token files of a directory that belong to a split: ``train``, ``val`` or ``all``."""
        return files

    def _is_token_file(self, path: str) -> bool:  # noqa: ARG002
        return True

    def _order(self, path: str) -> Any:
        return paths.natural_key(path)

    def open(
        self, files: Sequence[str], source_dtype: SourceDtype | None, *, is_recorded: bool
    ) -> tuple[TokenFile, ...]:
        """Open each file once, and check what can be checked without reading all of it.

        Args:
            files: The paths of the files.
            source_dtype: The dtype of their tokens; None if a header, boundaries of documents or metadata
                must tell it.
            is_recorded: Whether the manifest of an export of tokshard records their dtype.

        Raises:
            MissingFileError: A file does not exist.
            UsageError: The format does not have this dtype.
            InputError: The dtype of the tokens is unknown.
            IntegrityError: A header is invalid or contradicts the size of the file.
            StorageError: A file cannot be read.
        """
        sources = [LocalFile.of(path, format=self.name, compression="none") for path in files]
        opened = self._opened(sources, source_dtype)
        for file in () if is_recorded else opened:
            _check_width(file)
        return opened

    def rows(self, path: str, tokens: int) -> Rows:
        """Yield the rows of a boundary file in chunks, each with its content, decompressed.

        Args:
            path: The boundary file.
            tokens: The most tokens that the token file can have.

        Raises:
            IntegrityError: The file is damaged.
        """
        raise NotImplementedError

    def _metadata(self, source: LocalFile) -> Metadata | None:  # noqa: ARG002
        """Return what the metadata of a file tell; None without any."""
        return None

    def _opened(
        self, sources: Sequence[LocalFile], source_dtype: SourceDtype | None
    ) -> tuple[TokenFile, ...]:
        if source_dtype not in {None, *self._dtypes}:
            raise UsageError(
                f"--source-dtype must be one of {', '.join(self._dtypes)} for {self.name}, "
                f"got {source_dtype!r}",
                hint=f"pass the dtype in which {self.name} wrote these tokens, or omit --source-dtype",
            )
        entries = [(source, self._boundaries(source), self._metadata(source)) for source in sources]
        itemsize = (
            np.dtype(source_dtype).itemsize
            if source_dtype is not None
            else self._itemsize_from_boundaries(entries) or _itemsize_from_metadata(entries)
        )
        opened = []
        for source, boundaries, metadata in entries:
            is_bare = source.size_bytes > 0 and not (boundaries or metadata)
            if itemsize is None or (source_dtype is None and is_bare):
                missing = self.MISSING.format(self._boundaries_of(source.path))
                raise InputError(
                    f"the dtype of the tokens of {source.path} is unknown: it has {missing}",
                    hint="pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
                )
            dtype = f"uint{8 * itemsize}"
            tokens, remainder = divmod(source.size_bytes, itemsize)
            if remainder:
                raise damaged(
                    source.path,
                    f"must have {itemsize} bytes for each token ({dtype}), got {source.size_bytes} bytes",
                    offset=tokens * itemsize,
                    hint="copy the file again: it is truncated, or pass another --source-dtype",
                )
            if metadata is not None and metadata != (itemsize, tokens):
                raise damaged(
                    source.path,
                    f"must have {counted(metadata[1], 'token')} of {metadata[0]} bytes by its metadata, "
                    f"got {counted(tokens, 'token')} of {itemsize} bytes",
                )
            opened.append(TokenFile(source, dtype, 0, tokens, boundaries))
        return tuple(opened)

    def _boundaries_of(self, path: str) -> str:
        return path.removesuffix(self.suffix) + self._boundaries_suffix

    def _boundaries(self, source: LocalFile) -> LocalFile | None:
        name = self._boundaries_of(source.path)
        if not fs.isfile(name):
            return None
        return LocalFile.of(name, format=self.name, compression=self.COMPRESSION)

    def _itemsize_from_boundaries(self, entries: Sequence[_Entry]) -> int | None:
        """Return the bytes of a token by the first file whose last document ends behind its first token."""
        itemsizes = [np.dtype(name).itemsize for name in self._dtypes]
        for source, boundaries, _ in entries:
            end = None
            if boundaries is not None:
                for _, rows in self.rows(boundaries.path, source.size_bytes):
                    end = int(rows[-1, -1])
            if boundaries is None or end is None or source.size_bytes == end == 0:
                continue
            if fitting := [size for size in itemsizes if size * end == source.size_bytes]:
                return fitting[0]
            raise IntegrityError(
                f"{source.path} has {source.size_bytes} bytes, which are not tokens of "
                f"{' or '.join(map(str, itemsizes))} bytes: the last document in {boundaries.path} ends at "
                f"token {end}",
                path=source.path,
                hint="copy both files again: one is truncated, or they do not belong together",
            )
        return None


def _itemsize_from_metadata(entries: Sequence[_Entry]) -> int | None:
    first = {metadata[0]: source.path for source, _, metadata in reversed(entries) if metadata is not None}
    if len(first) > 1:
        raise InputError(
            f"all files must have the same dtype: by their metadata, the tokens of {first[2]} have 2 bytes, "
            f"and those of {first[4]} 4",
            hint="convert each dtype by itself with --dtype int32, and merge the datasets",
        )
    return next(iter(first), None)


def damaged(path: str, text: str, *, offset: int | None = None, hint: str = COPY_HINT) -> IntegrityError:
    """Return the error about a damaged file of tokens."""
    return IntegrityError(f"{path} {text}", path=path, offset=offset, hint=hint)


def _check_width(file: TokenFile) -> None:
    """Raise InputError if every second word is zero, as of uint32 tokens that are read as uint16.

    Every second word of uint32 tokens is below 16 if an id is above 65535 and all are below 2**20.
    """
    if file.token_dtype.itemsize > 2 or file.tokens < _LEAST_TOKENS:
        return
    words = file.read(InputFile(file.path), 0, min(file.tokens, _WIDTH_TOKENS))
    low = int(words[::2].max())
    high = int(words[1::2].max())
    if high and not (len(words) >= _LEAST_LARGE_TOKENS and high < 16 and low >= 256):
        return
    bits = 8 * file.token_dtype.itemsize
    wider = f"uint{2 * bits}"
    raise InputError(
        f"the tokens of {file.path} must be {file.dtype}, got {wider}: every second of its first "
        f"{len(words)} {bits}-bit words is {f'at most {high}' if high else 'zero'}",
        hint=f"pass --source-dtype {wider}"
        if not file.header_bytes
        else f"cut off the wrong header: tail -c +{file.header_bytes + 1} {shlex.quote(file.path)} > "
        f"tokens.npy, and convert tokens.npy with --from olmo --source-dtype {wider} --eod-id ID",
    )


class DocumentEnds:
    """The ends of the documents of a token file, taken in order.

    Attributes:
        content_bytes: Bytes of the boundary file, decompressed, that were read so far.
        digest: XXH3-128 of these bytes.

    Args:
        reader: The reader of the format.
        file: The token file.
        boundaries: Its boundary file.
    """

    def __init__(self, reader: TokenReader, file: TokenFile, boundaries: LocalFile) -> None:
        self._file = file
        self._boundaries = boundaries
        self.digest = xxhash.xxh3_128()
        self.content_bytes = 0
        self._chunks = self._checked(reader.rows(boundaries.path, file.tokens))
        self._held: Integers = np.empty(0, np.int64)

    def take(self, stop: int) -> Iterator[Integers]:
        """Yield the next ends that are at most ``stop``, a token of the file, in pieces.

        Raises:
            IntegrityError: The boundary file is damaged, or the last end is not at the end of the tokens.
        """
        while True:
            if not len(self._held):
                self._held = next(self._chunks, self._held)
            size = int(np.searchsorted(self._held, stop, side="right"))
            if not size:
                return
            taken = self._held[:size]
            self._held = self._held[size:]
            yield taken

    def _checked(self, chunks: Rows) -> Iterator[Integers]:
        """Yield ends of which none is before the last one, and whose starts, if there are some, are these."""
        limit = self._file.tokens
        last = 0
        row_count = 0
        for content, rows in chunks:
            self.digest.update(content)
            self.content_bytes += len(content)
            ends = rows[:, -1].copy()
            begins = np.concatenate(([last], ends[:-1]))
            wrong = (ends < begins) | (ends > limit) | (rows[:, 0] != begins if rows.shape[1] > 1 else False)
            if wrong.any():
                at = int(wrong.argmax())
                start = int(rows[at, 0])
                begin = int(begins[at])
                row = row_count + at
                text = (
                    f"the end of the document must be from {begin}, its start, to {limit}, the number of "
                    f"tokens in {self._file.path} ({self._file.dtype}), got {ends[at]}"
                )
                if rows.shape[1] > 1 and start != begin:
                    text = f"the document must start at token {begin}, where the last one ended, got {start}"
                place = f"byte {8 * row}" if self._boundaries.compression == "none" else f"row {row + 1}"
                raise self._error(f"{place}: {text}", "damaged")
            row_count += len(rows)
            last = int(ends[-1])
            yield ends
        if last != limit:
            raise self._error(
                f"the last document must end at token {limit}, the size of {self._file.path} in "
                f"{self._file.dtype}, got {last}",
                "truncated",
            )

    def _error(self, text: str, state: str) -> IntegrityError:
        return IntegrityError(
            f"{self._boundaries.path}: {text}",
            path=self._boundaries.path,
            hint=f"copy both files again: one is {state}, they do not belong together, or --source-dtype is "
            "wrong",
        )
