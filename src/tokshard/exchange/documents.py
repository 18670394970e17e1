"""The documents in token files, divided by the rules of each format: the piece of the output of a conversion.

A unit of work is a range of about 64 MiB of a token file; the first one includes the header. It has the
documents that begin in it. A file with boundaries is an input with a single unit, without documents.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import xxhash

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.concatenate import StreamName
from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.layout import MAX_LENGTH
from tokshard.dataset.manifest import PROVENANCE_NAME, UNITS_NAME, UNKNOWN_ENCODER
from tokshard.dataset.parameters import ConvertParameters
from tokshard.dataset.provenance import ORIGIN
from tokshard.dataset.records import UnitRecord, to_line
from tokshard.dataset.source import InputFile, Tokens
from tokshard.errors import InputError
from tokshard.exchange.reading import DocumentEnds, TokenFile, TokenReader
from tokshard.exchange.records import Integers
from tokshard.storage.syscalls import Buffer

_NONE = np.empty(0, np.int64)
UNIT_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
STREAMS: tuple[StreamName, ...] = ("bin", "lengths", "sequences", PROVENANCE_NAME, UNITS_NAME)
"""The streams of a converted dataset."""

Chunks = Iterator[tuple[StreamName, Buffer]]
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _DividedTokens:
    """Tokens of the output.

    Attributes:
        tokens: The tokens.
        ends: The ends of documents, as positions from 0 to the number of tokens, in order. Equal ones are
            those of empty documents.
        begins: For each end, the token of the file at which the next document begins.
    """

    tokens: Tokens
    ends: Integers
    begins: Integers


class ConvertedDocuments:
    """The documents of all token files, in order: a piece of a dataset, which is read once.

    Args:
        reader: The reader of their format.
        files: The token files.
        parameters: The dtype of the output, and the tokens that divide documents.
        highest: The largest id that the output may have.
        progress: Receives the progress.

    Attributes:
        counts: The counts of all units that are complete.
        ended: The number of documents that end with the EOD token.
        units: The number of these units.
    """

    def __init__(
        self,
        reader: TokenReader,
        files: Sequence[TokenFile],
        parameters: ConvertParameters,
        highest: int,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._files = files
        self._parameters = parameters
        self._dtype = np.dtype(parameters.dtype).newbyteorder("<")
        self._highest = highest
        self._progress = progress
        self.counts = NO_COUNTS
        self.ended = 0
        self.units = 0
        # The input and the unit in which the next document begins.
        self._place: _Place = (0, 0)
        # Size and digest of what was read of that unit and later ones.
        self._pending: deque[tuple[_Place, int, xxhash.xxh3_128]] = deque()
        self._unit: Counter[str] = Counter()
        self._longest = 0
        self._unit_digest = xxhash.xxh3_128()
        self._row = 0  # documents of the input so far
        self._has_document = False
        self._open_tokens = 0  # of the document that has not ended
        self._last_token = -1

    def streams(self) -> Chunks:
        """Yield the tokens, lengths and file positions of the documents, and the units.

        Raises:
            InputError: An id is too large, a document is too long, or a file has changed.
            IntegrityError: The boundaries of documents are damaged.
            StorageError: A file cannot be read.
        """
        numbers = [0, *accumulate(len(file.inputs) for file in self._files)]
        for file, (number, following) in zip(self._files, pairwise(numbers), strict=True):
            ends = DocumentEnds(self._reader, file, file.boundaries) if file.boundaries else None
            for first, tokens in self._read(number, file):
                for block in self._split(first, tokens, ends):
                    yield from self._append(number, file, block)
                tokens_done = self.counts.tokens + self._unit["tokens"]
                size_bytes = tokens_done * self._dtype.itemsize
                self._progress.update(
                    ProgressUpdate(size_bytes, self._documents, tokens_done, content=" written")
                )
            if ends is not None:
                self._pending.append(((number + 1, 0), ends.content_bytes, ends.digest))
            is_last = following == numbers[-1]
            if self._open_tokens if self._parameters.bos is None else (self._has_document and is_last):
                yield from self._append(number, file, self._end_of(file))
            if self._parameters.bos is None or is_last:
                yield from self._finish_units((following, 0))

    @property
    def _documents(self) -> int:
        return self.counts.documents + self._unit["documents"]

    def _read(self, number: int, file: TokenFile) -> Iterator[tuple[int, Tokens]]:
        """Yield the tokens of a file, which may be changed, in blocks, with the number of the first of each.

        A file without tokens has an empty block: empty documents can end there.
        """
        data = InputFile(file.path)
        if data.size_bytes != file.source.size_bytes:
            raise InputError(
                f"{file.path} had {file.source.size_bytes} bytes and now has {data.size_bytes}",
                hint="run the same command again when no process writes the file",
            )
        header = bytearray(file.header_bytes)
        data.read_into(memoryview(header), 0)
        edges = [0, *range(UNIT_BYTES, file.token_bytes, UNIT_BYTES), file.token_bytes]
        buffer = np.empty(min(BLOCK_BYTES, file.token_bytes), np.uint8)
        for unit, (begin, end) in enumerate(pairwise(edges)):
            before = b"" if unit else header
            digest = xxhash.xxh3_128(before)
            self._pending.append(((number, unit), len(before) + end - begin, digest))
            for position in range(begin, end, BLOCK_BYTES) or (begin,):
                content = buffer[: min(BLOCK_BYTES, end - position)]
                data.read_into(content.data, len(header) + position)
                data.prefetch(len(header) + position + len(content), BLOCK_BYTES)
                digest.update(content.data)
                tokens = content.view(file.token_dtype)
                first = position // tokens.itemsize
                self._check_ids(file, first, tokens)
                same_width = tokens.itemsize == self._dtype.itemsize
                yield first, tokens.view(self._dtype) if same_width else tokens.astype(self._dtype)

    def _check_ids(self, file: TokenFile, first: int, tokens: Tokens) -> None:
        if self._highest >= np.iinfo(tokens.dtype).max or int(tokens.max(initial=0)) <= self._highest:
            return
        at = int((tokens > self._highest).argmax())
        offset = file.header_bytes + (first + at) * tokens.itemsize
        raise InputError(
            f"{file.path} at byte {offset}: the id of token {first + at} must be at most {self._highest}, "
            f"got {tokens[at]}",
            hint="pass the --tokenizer or --vocab-size of these tokens"
            f"{'' if file.header_bytes else ', or their --source-dtype'}",
        )

    def _split(self, first: int, tokens: Tokens, ends: DocumentEnds | None) -> Iterator[_DividedTokens]:
        """Divide tokens of a file by the rule of its format."""
        if self._parameters.bos is not None:
            yield self._split_at_bos(first, tokens)
        elif ends is None:  # documents end with the EOD token
            positions = np.flatnonzero(tokens == self._parameters.eod_id) + 1
            yield _DividedTokens(tokens, positions, positions + first)
        else:
            # Any number of empty documents can end at a token: a block has a bounded number of ends.
            for begins in ends.take(first + len(tokens)):
                size = int(begins[-1]) - first
                yield _DividedTokens(tokens[:size], begins - first, begins)
                tokens = tokens[size:]
                first = first + size
            yield _DividedTokens(tokens, _NONE, _NONE)

    def _split_at_bos(self, first: int, tokens: Tokens) -> _DividedTokens:
        """Replace the BOS tokens by EOD tokens of the documents before them, or keep or drop them."""
        positions = np.flatnonzero(tokens == self._parameters.bos_id)
        # The BOS token of the very first document ends none.
        leads = int(not self._has_document and len(positions) > 0 and int(positions[0]) == 0)
        self._has_document |= len(tokens) > 0
        ending = positions[leads:]
        begins = ending + first
        if self._parameters.bos == "keep":
            return _DividedTokens(tokens, ending, begins)
        if self._parameters.bos == "drop":
            removed = np.arange(leads, len(positions))
            return _DividedTokens(np.delete(tokens, positions), ending - removed, begins)
        tokens[positions] = self._parameters.eod_id
        return _DividedTokens(tokens[leads:], ending + (1 - leads), begins)

    def _end_of(self, file: TokenFile) -> _DividedTokens:
        """Return the end of the document that the end of the file ends."""
        is_moved = self._parameters.bos == "move"
        tokens = np.full(int(is_moved), self._parameters.eod_id if is_moved else 0, self._dtype)
        return _DividedTokens(tokens, np.array([len(tokens)]), np.array([file.tokens]))

    def _append(self, number: int, file: TokenFile, block: _DividedTokens) -> Chunks:
        """Yield the streams of a block, divided between the units of an input."""
        units = block.begins * file.token_dtype.itemsize // UNIT_BYTES
        units = np.minimum(units, max(0, file.token_bytes - 1) // UNIT_BYTES)
        unit = self._place[1] if self._place[0] == number else -1
        tokens = block.tokens
        ends = block.ends
        done = 0
        # The last documents of units: the next one begins in a later unit.
        for last in np.flatnonzero(np.diff(units, prepend=unit)).tolist():
            size = int(ends[last - done])
            count = last + 1 - done
            yield from self._add(tokens[:size], ends[:count])
            yield from self._finish_units((number, int(units[last])))
            tokens = tokens[size:]
            ends = ends[count:] - size
            done = last + 1
        yield from self._add(tokens, ends)

    def _add(self, tokens: Tokens, ends: Integers) -> Chunks:
        """Yield the streams of tokens of a unit."""
        eod_id = self._parameters.eod_id
        ended = 0
        lengths = _NONE
        if len(ends):
            lengths = np.diff(ends, prepend=-self._open_tokens)
            self._check_lengths(lengths)
            filled = lengths > 0
            stops = ends[filled]
            # The last token of a document that ends at 0 was in the block before.
            ended = int(np.count_nonzero(tokens[stops[stops > 0] - 1] == eod_id))
            ended += int(len(stops) > 0 and stops[0] == 0 and self._last_token == eod_id)
            yield "lengths", lengths[filled].astype("<i4").data.cast("B")
            yield "sequences", filled.astype("<u4").data.cast("B")
            origins = np.empty(len(ends), ORIGIN)
            origins["offset"] = np.arange(self._row, self._row + len(ends))
            origins["line"] = origins["offset"] + 1
            yield PROVENANCE_NAME, origins.tobytes()
            self._row += len(ends)
            self._open_tokens = -int(ends[-1])
        if len(tokens):
            content = np.ascontiguousarray(tokens).data.cast("B")
            self._unit_digest.update(content)
            yield "bin", content
            self._open_tokens += len(tokens)
            self._last_token = int(tokens[-1])
        self.ended += ended
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        self._unit.update(
            documents=len(lengths),
            sequences=int(np.count_nonzero(lengths)),
            tokens=len(tokens),
            eod_in_text=0 if eod_id is None else int(np.count_nonzero(tokens == eod_id)) - ended,
        )

    def _check_lengths(self, lengths: Integers) -> None:
        longest = int(lengths.max())
        if longest > MAX_LENGTH:
            raise InputError(
                f"document {self._documents + int(lengths.argmax())} of the output must have at most "
                f"{MAX_LENGTH} tokens, got {longest}",
                hint="check --bos-id or --eod-id: documents may begin or end with another token",
            )

    def _finish_units(self, following: _Place) -> Chunks:
        """Yield the lines of the units before the one in which the next document begins."""
        while self._pending and self._pending[0][0] < following:
            (number, unit), content_bytes, content_digest = self._pending.popleft()
            unit_counts: dict[str, Any] = self._unit
            documents = self._unit["documents"]
            counts = replace(
                NO_COUNTS,
                records=documents,
                lines=documents,
                content_bytes=content_bytes,
                empty_documents=documents - self._unit["sequences"],
                longest_sequence=self._longest,
                encoders={UNKNOWN_ENCODER: documents} if documents else {},
                **unit_counts,
            )
            record = UnitRecord(
                input=number,
                unit=unit,
                content_xxh3_128=content_digest.hexdigest(),
                tokens_xxh3_128=self._unit_digest.hexdigest(),
                counts=counts,
            )
            self.counts += counts
            self.units += 1
            self._unit.clear()
            self._longest = 0
            self._unit_digest = xxhash.xxh3_128()
            if number < following[0]:
                self._row = 0
            yield UNITS_NAME, to_line(record)
        self._place = following
