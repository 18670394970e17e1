"""The conversion itself: tokens and document lengths in the work directory, with checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokshard.core.codec import Count, Record, decode, encode
from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.layout import MAX_LENGTH
from tokshard.dataset.manifest import UNKNOWN_ENCODER
from tokshard.dataset.records import UnitRecord
from tokshard.errors import InputError
from tokshard.exchange.conversion.content import FileContent, TokenBlock
from tokshard.exchange.conversion.files import TokenFile
from tokshard.exchange.conversion.splitting import OutputPiece, Splitter
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AppendFile
from tokshard.storage.journal import Journal, read_checkpoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS_NAME = "0.bin"
LENGTHS_NAME = "lengths"
JOURNAL_NAME = "convert.jsonl"
CHECKPOINT_BYTES = 1 << 30

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ConvertedUnit(Record):
    """Journal entry: a unit whose documents are complete."""

    unit: UnitRecord
    next_file: Count
    next_token: Count
    longest: Count
    eod_tokens: Count
    ended: Count


@dataclass(slots=True)
class _Counts:
    documents: int = 0
    empty: int = 0
    longest: int = 0
    eod_tokens: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class IdLimit:
    """The largest id that the output may have.

    Attributes:
        highest: The id.
        dtype: The dtype of the output.
        eod_id: The EOD token, if it is known.
    """

    highest: int
    dtype: np.dtype[Any]
    eod_id: int | None

    def converted(self, block: TokenBlock, file: TokenFile) -> TokenBlock:
        """Return a block in the dtype of the output.

        Raises:
            InputError: An id is too large.
        """
        tokens = block.tokens
        if len(tokens) and self.highest < np.iinfo(tokens.dtype).max and int(tokens.max()) > self.highest:
            at = int((tokens > self.highest).argmax())
            offset = file.header_bytes + (block.first + at) * file.dtype.itemsize
            raise InputError(
                f"{file.path} at byte {offset}: the id of token {block.first + at} must be at most "
                f"{self.highest}, got {tokens[at]}",
                hint="pass the --tokenizer or --vocab-size of these tokens, or their --source-dtype",
            )
        if tokens.dtype != self.dtype:
            same_width = tokens.dtype.itemsize == self.dtype.itemsize
            tokens = tokens.view(self.dtype) if same_width else tokens.astype(self.dtype)
        return replace(block, tokens=tokens)


class TokenConversion:
    """The tokens converted so far.

    A unit has the documents that begin in it, and the piece of the output with their tokens.

    Attributes:
        units: The units whose documents are complete.
        entries: Their entries in the journal.
        resumed_bytes: The bytes of token files that an earlier run has converted.

    Raises:
        IntegrityError: The files in the directory are shorter than the journal says.
    """

    def __init__(
        self,
        directory: str,
        files: Sequence[TokenFile],
        splitter: Splitter,
        limit: IdLimit,
        progress: Progress,
    ) -> None:
        self._files = files
        self._splitter = splitter
        self._limit = limit
        self._progress = progress
        journal_path = os.path.join(directory, JOURNAL_NAME)
        self.entries: list[ConvertedUnit] = []
        sizes: dict[str, int] = {}
        journal_bytes = 0
        for checkpoint in read_checkpoints(journal_path):
            self.entries += [decode(ConvertedUnit, entry, journal_path) for entry in checkpoint.entries]
            sizes, journal_bytes = checkpoint.sizes, checkpoint.journal_bytes
        self._inputs = _input_numbers(files)
        self._begins = [0, *accumulate(file.tokens * file.dtype.itemsize for file in files)]
        self._file, self._token = (
            (self.entries[-1].next_file, self.entries[-1].next_token) if self.entries else (0, 0)
        )
        self._documents = sum(entry.unit.documents for entry in self.entries)
        self.resumed_bytes = self._synced_bytes = self._read_bytes = self._bytes_before(
            self._file, self._token
        )
        self._journal = Journal(journal_path, journal_bytes)
        self._counts = _Counts()
        self._state = xxhash.xxh3_128()
        self._pending: list[tuple[int, int]] = []  # (file, unit): their documents are incomplete
        self._contents: dict[int, FileContent] = {}
        try:
            self._tokens = AppendFile(os.path.join(directory, TOKENS_NAME), sizes.get(TOKENS_NAME, 0))
            self._lengths = AppendFile(os.path.join(directory, LENGTHS_NAME), sizes.get(LENGTHS_NAME, 0))
        except BaseException:
            self._journal.close()
            raise
        self._unit_begin = self._document_begin = self._written
        self._last_token = -1

    @property
    def units(self) -> list[UnitRecord]:
        """The units whose documents are complete, in order."""
        return [entry.unit for entry in self.entries]

    def run(self) -> None:
        """Convert the remaining tokens and fsync.

        Raises:
            InputError: An id is too large, a document is too long, or a file has changed.
            IntegrityError: The boundaries of documents are damaged.
            StorageError: A file cannot be read, or the output cannot be written. Everything up to the last
                checkpoint is kept.
        """
        first = self._token
        for number in range(self._file, len(self._files)):
            self._convert(number, first)
            first = 0
        last = self._splitter.end()
        if last is not None:
            self._add(last)
        self._finish_units(len(self._files), 0)
        self._checkpoint()

    def close(self) -> None:
        """Close all files."""
        self._tokens.close()
        self._lengths.close()
        self._journal.close()

    @property
    def _written(self) -> int:
        # The tokens of the output.
        return self._tokens.size_bytes // self._limit.dtype.itemsize

    def _convert(self, number: int, first: int) -> None:
        file, splitter = self._files[number], self._splitter
        converted = []
        if number == self._file:  # that an earlier run may have begun
            converted = [entry for entry in self.entries if entry.unit.input == self._inputs[number]]
        content = self._contents[number] = FileContent(file)
        splitter.begin_file(file, sum(entry.unit.documents for entry in converted))
        begun = converted[-1].unit.unit if converted else -1
        before = self._read_bytes - first * file.dtype.itemsize
        for block in content.blocks(first):
            if block.unit > begun:
                begun = block.unit
                self._pending.append((number, begun))
            for piece in splitter.split(self._limit.converted(block, file)):
                self._split(piece, block, is_last=block.unit == content.units - 1)
            self._read_bytes = before + (block.first + len(block.tokens)) * file.dtype.itemsize
            self._tell()
        found = splitter.end_file()
        if splitter.ends_with_file:
            self._end_file(number, found)

    def _split(self, piece: OutputPiece, block: TokenBlock, *, is_last: bool) -> None:
        stays_open = is_last and self._splitter.ends_with_file
        if len(self._pending) > 1 and len(piece.ends):
            # The first end in this block is that of the last document of an earlier unit.
            number, begin = self._pending[-1][0], int(piece.begins[0])
            piece = self._add_head(piece, 1)
            self._finish_units(number, begin, keep=int(stays_open or begin < block.stop))
        at_stop = np.flatnonzero(piece.begins >= block.stop)
        if self._pending and len(at_stop) and not stays_open:
            piece = self._add_head(piece, int(at_stop[0]) + 1)
            self._finish_units(self._pending[-1][0], block.stop)
        self._add(piece)

    def _add_head(self, piece: OutputPiece, count: int) -> OutputPiece:
        # Add the first documents of a piece; return the rest.
        stop = int(piece.ends[count - 1])
        self._add(OutputPiece(piece.tokens[:stop], piece.ends[:count], piece.begins[:count]))
        return OutputPiece(piece.tokens[stop:], piece.ends[count:] - stop, piece.begins[count:])

    def _add(self, piece: OutputPiece) -> None:
        tokens = np.ascontiguousarray(piece.tokens, self._limit.dtype)
        begin = self._written
        ends = piece.ends + begin
        lengths = np.diff(ends, prepend=self._document_begin) if len(ends) else _NONE
        if len(lengths):
            self._add_documents(lengths, piece.ends, tokens)
            self._document_begin = int(ends[-1])
        if len(tokens):
            if self._limit.eod_id is not None:
                self._counts.eod_tokens += int(np.count_nonzero(tokens == self._limit.eod_id))
            view = tokens.data.cast("B")
            self._state.update(view)
            self._tokens.write(view)
            self._last_token = int(tokens[-1])

    def _add_documents(
        self, lengths: NDArray[np.int64], ends: NDArray[np.int64], tokens: NDArray[Any]
    ) -> None:
        counts = self._counts
        longest = int(lengths.max())
        if longest > MAX_LENGTH:
            place = self._documents + int(lengths.argmax())
            raise InputError(
                f"document {place} of the output must have at most {MAX_LENGTH} tokens, got {longest}",
                hint="check --bos-id or --eod-id: documents may begin or end with another token",
            )
        counts.documents += len(lengths)
        counts.longest = max(counts.longest, longest)
        counts.empty += int((lengths == 0).sum())
        self._documents += len(lengths)
        if self._limit.eod_id is not None:
            with_tokens = ends[lengths > 0]
            last = tokens[with_tokens[with_tokens > 0] - 1]
            counts.ended += int(np.count_nonzero(last == self._limit.eod_id))
            # The last token of a document that ends at 0 was in the block before.
            if len(with_tokens) and with_tokens[0] == 0:
                counts.ended += self._last_token == self._limit.eod_id
        self._lengths.write(lengths.astype("<i4").data.cast("B"))

    def _end_file(self, number: int, boundaries: tuple[int, str] | None) -> None:
        if self._document_begin < self._written:
            self._add(OutputPiece(np.empty(0, self._limit.dtype), np.zeros(1, np.int64), _NONE))
        entry = None
        if boundaries is not None:
            size, digest = boundaries
            record = _unit(self._inputs[number] + 1, 0, size, digest, _Counts(), 0, content_digest())
            entry = ConvertedUnit(record, number + 1, 0, 0, 0, 0)
        self._finish_units(number + 1, 0, boundaries=entry)

    def _finish_units(
        self, next_file: int, next_token: int, *, keep: int = 0, boundaries: ConvertedUnit | None = None
    ) -> None:
        # Everything written belongs to the first pending unit: no document begins in the others.
        finished = self._pending[: len(self._pending) - keep]
        if not finished:
            return
        self._pending = self._pending[len(finished) :]
        for file, unit in finished:
            content, counts = self._contents[file], self._counts
            tokens = self._written - self._unit_begin
            record = _unit(
                self._inputs[file],
                unit,
                content.unit_bytes(unit),
                content.digests[unit],
                counts,
                tokens,
                self._state.hexdigest(),
            )
            self._enter(
                ConvertedUnit(record, next_file, next_token, counts.longest, counts.eod_tokens, counts.ended)
            )
            self._counts, self._state, self._unit_begin = _Counts(), xxhash.xxh3_128(), self._written
        if boundaries is not None:
            self._enter(boundaries)
        for file in [known for known in self._contents if known < finished[-1][0]]:
            del self._contents[file]
        read = self._bytes_before(next_file, next_token)
        if read - self._synced_bytes >= CHECKPOINT_BYTES:
            self._checkpoint()
            self._synced_bytes = read

    def _enter(self, entry: ConvertedUnit) -> None:
        self.entries.append(entry)
        self._journal.append(encode(entry))

    def _checkpoint(self) -> None:
        self._journal.checkpoint({TOKENS_NAME: self._tokens, LENGTHS_NAME: self._lengths})

    def _bytes_before(self, number: int, token: int) -> int:
        # Of token files, without headers.
        return self._begins[number] + (token * self._files[number].dtype.itemsize if token else 0)

    def _tell(self) -> None:
        self._progress.update(ProgressUpdate(self._read_bytes, self._documents, self._written))


def _input_numbers(files: Sequence[TokenFile]) -> list[int]:
    # In the manifest, the boundaries of a file are the input after it.
    return [0, *accumulate(1 if file.boundaries is None else 2 for file in files)]


def _unit(
    number: int, unit: int, size: int, digest: str, counts: _Counts, tokens: int, tokens_digest: str
) -> UnitRecord:
    return UnitRecord(
        input=number,
        unit=unit,
        content_bytes=size,
        content_xxh3_128=digest,
        lines=counts.documents,
        documents=counts.documents,
        rejected=0,
        sequences=counts.documents - counts.empty,
        tokens=tokens,
        tokens_xxh3_128=tokens_digest,
        encoder=UNKNOWN_ENCODER,
    )
