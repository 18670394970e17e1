"""The documents in the tokens of a file, by the rules of each format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokshard.dataset.parameters import BosTreatment
from tokshard.exchange.conversion.boundaries import DocumentEnds
from tokshard.exchange.conversion.content import TokenBlock
from tokshard.exchange.conversion.files import TokenFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Tokens of the output and the documents that end in them.

    Attributes:
        tokens: The tokens.
        ends: The ends of documents, as positions in ``tokens`` from 0 to its length, in order. Equal ones
            are those of empty documents.
        begins: For each end, the token of the file at which the next document begins.
    """

    tokens: NDArray[Any]
    ends: Integers
    begins: Integers


class Splitter(Protocol):
    """The rule of a format for a whole conversion.

    Attributes:
        ends_with_file: Whether the last document of each file ends with the file.
    """

    ends_with_file: bool

    def begin_file(self, file: TokenFile, documents: int) -> None:
        """Begin a file, of which an earlier run has converted some documents."""

    def split(self, block: TokenBlock) -> Iterator[OutputPiece]:
        """Yield the output of a block in pieces, at least one; its tokens may be changed."""

    def end_file(self) -> tuple[int, str] | None:
        """Check the end of a file; return size and digest of the content of its boundaries, if any."""

    def end(self) -> OutputPiece | None:
        """Return the end of the last document, unless it has ended."""


class SplitAtBoundaries:
    """Documents whose ends are in a file beside the tokens, or follow the EOD token if there is none."""

    ends_with_file = True

    def __init__(self, eod_id: int | None) -> None:
        self._eod_id = eod_id
        self._ends: DocumentEnds | None = None

    def begin_file(self, file: TokenFile, documents: int) -> None:
        """Open the boundaries of a file."""
        self._ends = None if file.boundaries is None else DocumentEnds(file, documents)

    def split(self, block: TokenBlock) -> Iterator[OutputPiece]:
        """Yield the tokens as they are."""
        tokens, first = block.tokens, block.first
        if self._ends is None:
            begins = np.flatnonzero(tokens == self._eod_id) + (first + 1)
            yield OutputPiece(tokens, begins - first, begins)
            return
        # Any number of empty documents can end at the same token: each piece has a bounded number of ends.
        for begins in self._ends.take(first + len(tokens)):
            size = int(begins[-1]) - first
            yield OutputPiece(tokens[:size], begins - first, begins)
            tokens, first = tokens[size:], first + size
        yield OutputPiece(tokens, _NONE, _NONE)

    def end_file(self) -> tuple[int, str] | None:
        """Check that the documents end with the file."""
        if self._ends is None:
            return None
        digest = self._ends.finish()
        return self._ends.content_bytes, digest

    def end(self) -> None:
        """Return nothing: the last document has ended with its file."""


class SplitAtBos:
    """Documents that begin with the BOS token, wherever their file ends."""

    ends_with_file = False

    def __init__(self, bos_id: int, eod_id: int, bos: BosTreatment) -> None:
        self._bos_id = bos_id
        self._eod_id = eod_id
        self._bos = bos
        self._has_document = False

    def begin_file(self, file: TokenFile, documents: int) -> None:
        """Continue the last document."""

    def split(self, block: TokenBlock) -> Iterator[OutputPiece]:
        """Yield the tokens with the BOS token of each document moved behind it, kept or dropped."""
        tokens = block.tokens
        places = np.flatnonzero(tokens == self._bos_id)
        is_first = bool(len(tokens)) and not self._has_document
        self._has_document |= is_first
        # The BOS token of the very first document ends none.
        leads = is_first and bool(len(places)) and int(places[0]) == 0
        ending = places[1:] if leads else places
        begins = ending + block.first
        if self._bos == "keep":
            yield OutputPiece(tokens, ending, begins)
            return
        if self._bos == "drop":
            removed = np.arange(int(leads), len(places))
            yield OutputPiece(tokens[tokens != self._bos_id], ending - removed, begins)
            return
        tokens[places] = self._eod_id
        yield OutputPiece(tokens[int(leads) :], ending + (1 - int(leads)), begins)

    def end_file(self) -> None:
        """Return nothing: there are no boundaries, and the next file continues the document."""

    def end(self) -> OutputPiece | None:
        """Return the EOD token of the last document, or its end alone."""
        if not self._has_document:
            return None
        tokens = np.array([self._eod_id] if self._bos == "move" else [], np.int64)
        return OutputPiece(tokens, np.array([len(tokens)]), _NONE)
