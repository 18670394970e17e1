"""Coverage of a source by a split: the documents and tokens that the samples drawn from its index read.

Documents are those of Megatron's document index: sequences of the dataset. Sequences without tokens are
not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A block of so many entries fits a processor's cache.
_ENTRIES_AT_ONCE = 1 << 16
_DOCUMENTS_AT_ONCE = 1 << 18
_NOT_ONCE = "document_index must contain every document of its split once per epoch"


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Documents of a dataset that the first samples of an index read; empty documents are not counted.

    Attributes:
        documents: The entries of the split that have tokens: what Megatron calls documents here are
            the sequences of the dataset.
        documents_drawn: How many of them are seen at all.
        document_least: How often the least seen document is, where any token of it counts.
        document_most: How often the most seen document is.
        tokens: The tokens of all samples together, without padding and without the extra token.
        tokens_per_epoch: The tokens of the split.
    """

    documents: int
    documents_drawn: int
    document_least: int
    document_most: int
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

    The peak of memory is a byte for each sample and two bytes for each document (four above 255 epochs).

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
        >>> seen.documents, seen.documents_drawn, seen.tokens
        (2, 1, 4)
    """
    first, count = _documents(document_index, len(lengths))
    epochs = len(document_index) // count
    if len(document_index) != epochs * count:
        raise IntegrityError(_NOT_ONCE)
    drawn = _drawn(shuffle_index, draws)
    own = lengths[first : first + count]
    appears = np.zeros(count, np.min_scalar_type(epochs))
    seen = np.zeros_like(appears)
    one = appears.dtype.type(1)
    begin = 0  # the tokens before the block
    for at in range(0, len(document_index), _ENTRIES_AT_ONCE):
        documents = document_index[at : at + _ENTRIES_AT_ONCE].astype(np.int64) - first
        sizes = own[documents].astype(np.int64)
        ends = sizes.cumsum() + begin
        # How many of the block's samples before each one are drawn; samples after the last are not.
        sample = begin // sequence_length
        block = drawn[sample : (int(ends[-1]) - 1) // sequence_length + 1]
        before = np.concatenate([[0], block.cumsum(dtype=np.int64)])
        # A document reads its samples from `start` to `stop`, as numbers within the block.
        start = np.minimum((ends - sizes) // sequence_length - sample, len(block))
        stop = np.minimum((ends - 1) // sequence_length + 1 - sample, len(block))
        is_seen = (before[stop] > before[start]) & (sizes > 0)
        np.add.at(appears, documents, one)
        np.add.at(seen, documents[is_seen], one)
        begin = int(ends[-1])
    _check_seen(appears, epochs)
    times = seen[own > 0]
    per_epoch = int(own.sum(dtype=np.int64))
    return SourceCoverage(
        documents=len(times),
        documents_drawn=int(np.count_nonzero(times)),
        document_least=int(times.min()),
        document_most=int(times.max()),
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

    The peak of memory is 9 bytes for each sample and 5 bytes for each document.

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
        >>> seen.documents, seen.documents_drawn, seen.tokens
        (2, 2, 3)
    """
    entries = document_index[:-1]
    first, count = _documents(entries, len(lengths))
    own = lengths[first : first + count]
    documents = int(np.count_nonzero(own))
    samples = len(rows) - 1
    epochs = len(entries) // max(1, documents)
    if not documents or len(entries) != epochs * documents or samples % epochs:
        raise IntegrityError(_NOT_ONCE)
    drawn = _drawn(shuffle_index, draws)
    seen = np.zeros(count, np.int32)
    tokens = 0
    for epoch in range(epochs):
        appears = np.zeros(count, np.int8)
        of_epoch = slice(epoch * (samples // epochs), (epoch + 1) * (samples // epochs))
        starts = np.ascontiguousarray(rows[of_epoch, 0]).astype(np.int64)
        for at in range(epoch * documents, (epoch + 1) * documents, _DOCUMENTS_AT_ONCE):
            stop = min(at + _DOCUMENTS_AT_ONCE, (epoch + 1) * documents)
            which = entries[at:stop].astype(np.int64) - first
            appears[which] += 1
            # A document is read in as many pieces as it has samples; the last one can be short.
            sizes = own[which].astype(np.int64)
            if not sizes.all():
                raise IntegrityError(_NOT_ONCE)  # packed indexes have no empty documents
            number = -(-sizes // sequence_length)
            ends = number.cumsum()
            last = np.searchsorted(starts, np.arange(at, stop), side="right") - 1
            place = np.arange(int(ends[-1])) - (ends - number).repeat(number)
            row = (last - number + 1).repeat(number) + place
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < len(starts):
                raise IntegrityError("sample_index must begin with the first document of each epoch")
            read = drawn[of_epoch][row]
            missing = number * sequence_length - sizes
            tokens += int(np.count_nonzero(read)) * sequence_length - int(missing[read[ends - 1] > 0].sum())
            seen[which] += np.maximum.reduceat(read, ends - number)
        _check_seen(appears, (own > 0).astype(np.int8))
    return SourceCoverage(
        documents=documents,
        documents_drawn=int(np.count_nonzero(seen)),
        document_least=int(seen[own > 0].min()),
        document_most=int(seen.max()),
        tokens=tokens,
        tokens_per_epoch=int(own.sum(dtype=np.int64)),
    )


def _check_seen(seen: NDArray[Any], epochs: int | NDArray[Any]) -> None:
    if (seen != epochs).any():
        raise IntegrityError(_NOT_ONCE)


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


def _tokens(drawn: NDArray[np.uint8], sequence_length: int, stream_tokens: int) -> int:
    # Only samples at the end of the stream can be short.
    whole = min(stream_tokens // sequence_length, len(drawn))
    rest = stream_tokens - whole * sequence_length
    short = bool(drawn[whole : whole + 1].any())
    return int(np.count_nonzero(drawn[:whole])) * sequence_length + (rest if short else 0)
