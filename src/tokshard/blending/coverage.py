"""Coverage of a source by a split: the documents and tokens that the samples drawn from its index read.

Documents are those of Megatron's document index: sequences of the dataset. Sequences without tokens are
not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.kernels import cover_documents, cover_once, place_documents
from tokshard.errors import IntegrityError
from tokshard.gpt_index.shuffling import BLOCK
from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The places of so many appearances are held at once, or of an eighth of them all: each part costs a pass
# over the document index.
_PLACES_AT_ONCE = 1 << 22
_MOST_PASSES = 8
# About a tenth of a second: signals are handled between two calls.
_ENTRIES_OF_A_CALL = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 18
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Documents of a dataset that the first samples of an index read; empty documents are not counted.

    Attributes:
        documents: The entries of the split that have tokens: what Megatron calls documents here are
            the sequences of the dataset.
        documents_drawn: How many of them are seen at all.
        document_least: How often the least seen document is, where any token of it counts.
        document_most: How often the most seen document is.
        token_least: How often the least seen token is.
        token_most: How often the most seen token is.
        tokens: The tokens of all samples together, without padding and without the extra token.
        tokens_per_epoch: The tokens of the split.
    """

    documents: int
    documents_drawn: int
    document_least: int
    document_most: int
    token_least: int
    token_most: int
    tokens: int
    tokens_per_epoch: int


def measure_coverage(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    shuffle_index: NDArray[Any],
    draws: int,
    sequence_length: int,
) -> SourceCoverage:
    """Count what the first ``draws`` samples of an index show.

    The peak of memory is a byte for each sample and about a byte for each entry of the document index.

    Args:
        lengths: The tokens of all sequences of the dataset: int32.
        document_index: The document index: int32. Each document of the split is in it once an epoch.
        shuffle_index: The shuffle index.
        draws: How many samples are drawn.
        sequence_length: The tokens of a sample.

    Raises:
        IntegrityError: The arrays do not belong together.

    Example:
        >>> lengths, shuffled = np.array([6, 4], np.int32), np.array([1, 0], np.uint32)
        >>> seen = measure_coverage(lengths, np.array([1, 0], np.int32), shuffled, 1, 4)
        >>> seen.documents_drawn, seen.tokens, seen.token_least, seen.token_most
        (1, 4, 0, 1)
    """
    first, count = _documents(document_index, len(lengths))
    epochs = len(document_index) // count
    drawn = _drawn(shuffle_index, draws)
    worth = len(document_index) + len(drawn) >= WORTH_COMPILING // 10 and has_numba()
    choose: Callable[[Any], Any] = compiled if worth else _as_it_is
    totals = np.array([0, _NEVER, 0, _NEVER, 0], np.int64)
    cover = _cover_once if len(document_index) == count else _cover
    cover(lengths, document_index, range(first, first + count), drawn, sequence_length, totals, choose)
    own = lengths[first : first + count]
    per_epoch = int(own.sum(dtype=np.int64))
    return SourceCoverage(
        documents=int(np.count_nonzero(own)),
        documents_drawn=int(totals[0]),
        document_least=int(totals[1]),
        document_most=int(totals[2]),
        token_least=int(totals[3]),
        token_most=int(totals[4]),
        tokens=_tokens(drawn, sequence_length, per_epoch * epochs),
        tokens_per_epoch=per_epoch,
    )


def measure_packed_coverage(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    rows: NDArray[Any],
    shuffle_index: NDArray[Any],
    draws: int,
    sequence_length: int,
) -> SourceCoverage:
    """Count what the first ``draws`` samples of an index of packed documents show.

    The peak of memory is a byte for each sample, and 20 bytes for each document.

    Args:
        lengths: The tokens of all sequences of the dataset: int32.
        document_index: The document index: int32. Each document of the split is in it once an epoch, and one
            more at the end.
        rows: The sample index, of shape (samples + 1, 2).
        shuffle_index: The shuffle index.
        draws: How many samples are drawn.
        sequence_length: The tokens of a sample.

    Raises:
        IntegrityError: The arrays do not belong together.

    Example:
        >>> documents, rows = np.array([1, 0, 1], np.int32), np.array([[0, 0], [0, 4], [2, 0]], np.int32)
        >>> lengths, shuffled = np.array([2, 5], np.int32), np.array([1, 0], np.uint32)
        >>> seen = measure_packed_coverage(lengths, documents, rows, shuffled, 1, 4)
        >>> seen.documents_drawn, seen.tokens, seen.token_least, seen.token_most
        (2, 3, 0, 1)
    """
    entries = document_index[:-1]
    first, count = _documents(entries, len(lengths))
    own = lengths[first : first + count].astype(np.int64)
    documents = int(np.count_nonzero(own))
    samples = len(rows) - 1
    epochs = len(entries) // documents
    if len(entries) != epochs * documents or samples % epochs:
        raise IntegrityError("document_index must contain every document of its split once per epoch")
    drawn = _drawn(shuffle_index, draws)
    # A document is read in as many pieces as it has samples.
    pieces = -(-own // sequence_length)
    begins = pieces.cumsum() - pieces
    times = np.zeros(int(pieces.sum()), np.int32)
    seen = np.zeros(count, np.int32)
    for epoch in range(epochs):
        appears = np.zeros(count, np.int8)
        of_epoch = slice(epoch * (samples // epochs), (epoch + 1) * (samples // epochs))
        starts = np.ascontiguousarray(rows[of_epoch, 0]).astype(np.int64)
        for at in range(epoch * documents, (epoch + 1) * documents, _DOCUMENTS_AT_ONCE):
            stop = min(at + _DOCUMENTS_AT_ONCE, (epoch + 1) * documents)
            which = entries[at:stop].astype(np.int64) - first
            appears[which] += 1
            number = pieces[which]
            ends = number.cumsum()
            last = np.searchsorted(starts, np.arange(at, stop), side="right") - 1
            place = np.arange(int(ends[-1])) - (ends - number).repeat(number)
            row = (last - number + 1).repeat(number) + place
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < len(starts):
                raise IntegrityError("sample_index must begin with the first document of each epoch")
            read = drawn[of_epoch][row]
            times[begins[which].repeat(number) + place] += read
            seen[which] += np.maximum.reduceat(read, ends - number)
        _check_seen(appears, (own > 0).astype(np.int8))
    sizes = np.full(len(times), sequence_length, np.int64)
    ends = begins + pieces
    with_tokens = own > 0
    sizes[ends[with_tokens] - 1] = (own[with_tokens] - 1) % sequence_length + 1
    return SourceCoverage(
        documents=documents,
        documents_drawn=int(np.count_nonzero(seen)),
        document_least=int(seen[with_tokens].min()),
        document_most=int(seen.max()),
        token_least=int(times.min()),
        token_most=int(times.max()),
        tokens=int((sizes * times).sum()),
        tokens_per_epoch=int(own.sum()),
    )


def _cover_once(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    documents: range,
    drawn: NDArray[np.uint8],
    sequence_length: int,
    totals: NDArray[np.int64],
    choose: Callable[[Any], Any],
) -> None:
    kernel, token = _cover_piece, 0
    if choose is compiled:
        kernel = partial(compiled(cover_once), np.empty(BLOCK, np.int64))
    seen = np.zeros(len(documents), np.uint8)
    for at in range(0, len(document_index), _ENTRIES_OF_A_CALL):
        piece = document_index[at : at + _ENTRIES_OF_A_CALL]
        token = kernel(lengths, piece, documents.start, seen, drawn, sequence_length, token, totals)
    _check_seen(seen, 1)


def _cover_piece(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    first: int,
    seen: NDArray[np.uint8],
    drawn: NDArray[np.uint8],
    sequence_length: int,
    token: int,
    totals: NDArray[np.int64],
) -> int:
    # The numpy equivalent of :func:`tokshard.blending.kernels.cover_once`.
    sizes = lengths[documents].astype(np.int64)
    ends = sizes.cumsum() + token
    seen += np.bincount(documents - first, minlength=len(seen)).astype(np.uint8)
    begins, ends, after = (ends - sizes)[sizes > 0], ends[sizes > 0], int(ends[-1])
    if len(ends):
        begins, ends = begins // sequence_length, (ends - 1) // sequence_length + 1
        before = np.concatenate([[0], drawn.cumsum(dtype=np.int64)])
        number = before[np.minimum(ends, len(drawn))] - before[np.minimum(begins, len(drawn))]
        some, whole = number > 0, number == ends - begins
        least, most = int(some.min()), int(some.max())
        totals[0] += np.count_nonzero(some)
        totals[1:] = (
            min(totals[1], least), max(totals[2], most),
            min(totals[3], int(whole.min())), max(totals[4], most),
        )  # fmt: skip
    return after


def _cover(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    documents: range,
    drawn: NDArray[np.uint8],
    sequence_length: int,
    totals: NDArray[np.int64],
    choose: Callable[[Any], Any],
) -> None:
    epochs = len(document_index) // len(documents)
    longest = int(lengths[documents.start : documents.stop].max())
    events = np.empty((longest // sequence_length + 3) * epochs, np.int64)
    rows = max(_PLACES_AT_ONCE // epochs, -(-len(documents) // _MOST_PASSES), 1)
    for first in documents[::rows]:
        places = np.empty((min(rows, documents.stop - first), epochs), np.int64)
        seen = np.zeros(len(places), np.int64)
        choose(place_documents)(lengths, document_index, first, places, seen)
        _check_seen(seen, epochs)
        choose(cover_documents)(lengths, first, places, drawn, sequence_length, totals, events)


def _check_seen(seen: NDArray[Any], epochs: int | NDArray[Any]) -> None:
    if (seen != epochs).any():
        raise IntegrityError("document_index must contain every document of its split once per epoch")


def _documents(document_index: NDArray[np.int32], available: int) -> tuple[int, int]:
    if not len(document_index):
        raise IntegrityError("the document index is empty")
    first, last = int(document_index.min()), int(document_index.max())
    if first < 0 or last >= available:
        raise IntegrityError(
            f"document_index must hold document numbers below {available}, got {first} to {last}"
        )
    return first, last - first + 1


def _drawn(shuffle_index: NDArray[Any], draws: int) -> NDArray[np.uint8]:
    drawn = np.zeros(len(shuffle_index), np.uint8)
    chosen = shuffle_index[:draws]
    if len(chosen) < draws or (draws and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(drawn)):
        raise IntegrityError(f"shuffle_index must contain {draws} distinct samples of {len(drawn)}")
    drawn[chosen] = 1
    return drawn


def _as_it_is(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _tokens(drawn: NDArray[np.uint8], sequence_length: int, stream_tokens: int) -> int:
    # Only samples at the end of the stream can be short.
    whole = min(stream_tokens // sequence_length, len(drawn))
    rest = stream_tokens - whole * sequence_length
    short = bool(drawn[whole : whole + 1].any())
    return int(np.count_nonzero(drawn[:whole])) * sequence_length + (rest if short else 0)
