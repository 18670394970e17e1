"""The certificate of a blend: the content of a split, measured from its files.

A document is an entry of Megatron's document index: a sequence of the dataset. Sequences without tokens
are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.codec import Amount, Count, Record, Share
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import IntegrityError
from tokshard.samples.index.index import GPTDatasetIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.samples.blend.sources import BlendSplit

# Arrays of this many entries fit into the cache of a processor.
_ENTRIES_AT_ONCE = 1 << 16
_NOT_ONCE = "document_index must contain every document of its split once per epoch"
_NOT_FIRST = "sample_index must begin with the first document of each epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCertificate(Record):
    """The part of a split that is drawn from one source.

    Attributes:
        prefix: Path prefix of the dataset, as given.
        samples: Samples drawn.
        available: Samples of its index.
        tokens: Tokens drawn, without padding.
        documents: Documents of the split.
        documents_drawn: Documents of which any token is drawn.
        epochs: Tokens drawn, divided by the source's tokens in the split.
        document_least: Times that the least frequent document is drawn.
        document_most: Times that the most frequent document is drawn.
        weight: Requested share of the samples.
        share: Actual share of the samples.
        weight_error: Largest deviation from the weight at any prefix of the split, in samples.
    """

    prefix: str
    samples: Count
    available: Count
    tokens: Count
    documents: Count
    documents_drawn: Count
    epochs: Amount
    document_least: Count
    document_most: Count
    weight: Share
    share: Share
    weight_error: Amount


@dataclass(frozen=True, slots=True)
class Certificate(Record):
    """The certificate of a split, counted from its files.

    Attributes:
        samples: Samples of the split.
        tokens: Tokens of all samples, without padding and without the extra token of each sample.
        weight_error: Largest deviation of any source from its weight at any prefix of the split, in samples.
        sources: One entry for each source, in order.
    """

    samples: Count
    tokens: Count
    weight_error: Amount
    sources: tuple[SourceCertificate, ...]


def certify(split: BlendSplit, prefixes: Sequence[str]) -> Certificate:
    """Measure a split from its files.

    The sources are measured one after the other; :func:`measure_coverage` states the peak memory.

    Args:
        split: The split.
        prefixes: The path prefixes of its sources, as they were given.

    Raises:
        IntegrityError: The arrays contradict each other.
        StorageError: A file cannot be read.
    """
    errors = [0.0]
    if split.order is not None:
        arrays = split.order.load()
        draws, deviations = measure_weight_errors(
            arrays["dataset_index"], arrays["dataset_sample_index"], split.shares
        )
        if draws.tolist() != [source.draws for source in split.sources]:
            path = split.order.description_path
            raise IntegrityError(
                f"{path}: the order does not contain the planned samples",
                path=path,
                hint="run the same command with --rebuild",
            )
        errors = deviations.tolist()
    sources = tuple(
        SourceCertificate(
            prefix=prefix,
            samples=source.draws,
            available=source.epochs.samples,
            weight=weight,
            share=source.draws / split.samples if split.samples else 0.0,
            weight_error=error,
            **measure_coverage(
                IndexedDataset(source.path_prefix, mmap=False).sequence_lengths,
                GPTDatasetIndex(**source.index.load(), plan=source.epochs),
                source.draws,
            ),
        )
        for source, prefix, weight, error in zip(split.sources, prefixes, split.shares, errors, strict=True)
    )
    return Certificate(split.samples, sum(source.tokens for source in sources), max(errors), sources)


def measure_weight_errors(
    dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64], weights: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count the draws of each source, and measure its largest deviation from its weight at any prefix.

    Between two of its draws, a source only falls behind, and a draw moves it ahead by one sample: the largest
    deviation is just before or just after a draw, or at the end. Memory does not depend on the size.

    Args:
        dataset_index: The source of each sample.
        dataset_sample_index: The number of each sample in its source.
        weights: The weight of each source; their sum is 1.

    Returns:
        The draws: int64 of shape (sources,). And the deviations in samples: float64 of shape (sources,).

    Raises:
        IntegrityError: The dataset index names a source that does not exist, or the samples of a source are
            not numbered from 0.

    Example:
        >>> from tokshard.samples.blend.order import build_blending_indices
        >>> draws, errors = measure_weight_errors(*build_blending_indices([0.9, 0.1], 100), [0.9, 0.1])
        >>> draws.tolist(), errors.round(2).tolist()
        ([90, 10], [0.8, 0.8])
    """
    weight = np.array(weights, np.float64)
    draws = np.zeros(len(weight), np.int64)
    numbered = np.zeros(len(weight), np.int64)
    errors = np.zeros(len(weight))
    for begin in range(0, len(dataset_index), _ENTRIES_AT_ONCE):
        source = dataset_index[begin : begin + _ENTRIES_AT_ONCE].astype(np.int64)
        before = dataset_sample_index[begin : begin + _ENTRIES_AT_ONCE]
        if source.min() < 0 or source.max() >= len(weight):
            raise IntegrityError(f"dataset_index must hold source numbers below {len(weight)}")
        step = np.arange(begin, begin + len(source), dtype=np.float64)
        np.maximum.at(errors, source, weight[source] * step - before)
        np.maximum.at(errors, source, (before + 1) - weight[source] * (step + 1))
        np.maximum.at(numbered, source, before + 1)
        draws += np.bincount(source, minlength=len(weight))
    if (numbered != draws).any():
        raise IntegrityError("dataset_sample_index must number the samples of each source from 0")
    return draws, np.maximum(errors, weight * len(dataset_index) - draws)


def measure_coverage(lengths: NDArray[np.int32], index: GPTDatasetIndex, draws: int) -> dict[str, Any]:
    """Count the documents and the tokens that the first samples of an index read.

    Peak memory is 9 bytes for each sample, or 13 to 17 for packed samples, and 5 bytes for each
    document, or 7 above 255 epochs.

    Args:
        lengths: The tokens of all sequences of the dataset: int32.
        index: The index of a split of the dataset.
        draws: The number of samples that are drawn.

    Returns:
        The fields ``tokens``, ``documents``, ``documents_drawn``, ``epochs``, ``document_least`` and
        ``document_most`` of a :class:`SourceCertificate`.

    Raises:
        IntegrityError: The arrays contradict each other.
    """
    is_packed = index.plan.packed is not None
    sequence_length = index.plan.sequence_length
    # The last entry of a packed index is read only as the last label.
    entries = index.document_index[:-1] if is_packed else index.document_index
    first, last = (int(entries.min()), int(entries.max())) if len(entries) else (0, -1)
    if not 0 <= first <= last < len(lengths):
        raise IntegrityError(
            f"document_index must hold document numbers below {len(lengths)}, got {first} to {last}"
        )
    split_lengths = lengths[first : last + 1]
    has_entries = split_lengths > 0 if is_packed else np.ones(len(split_lengths), np.bool_)
    epochs, excess = divmod(len(entries), max(1, int(np.count_nonzero(has_entries))))
    if excess or not split_lengths.any():
        raise IntegrityError(_NOT_ONCE)
    row_starts = _packed_row_starts(index, epochs) if is_packed else None
    drawn_before = _drawn_before(index.shuffle_index, draws, sequence_length)

    number = np.min_scalar_type(epochs).type
    once = number(1)  # of the dtype of the arrays, or add.at takes ten times as long
    missing = has_entries * number(epochs)
    times = np.zeros_like(missing)
    tokens = stream_end = 0
    for at in range(0, len(entries), _ENTRIES_AT_ONCE):
        documents = entries[at : at + _ENTRIES_AT_ONCE].astype(np.int64) - first
        sizes = split_lengths[documents].astype(np.int64)
        # Positions of the first token of each document and after its last one: row k of the sample index
        # has the positions k * sequence_length to (k + 1) * sequence_length - 1.
        if row_starts is None:
            ends = stream_end + sizes.cumsum()
            begins = ends - sizes
            stream_end = int(ends[-1])
        else:
            # The last row of a document is the last one that begins with it or before it. A document that
            # is longer than a row also fills the rows before its last one.
            positions = np.arange(at, at + len(sizes), dtype=row_starts.dtype)
            last_rows = np.searchsorted(row_starts, positions, side="right") - 1
            begins = (last_rows - (sizes - 1) // sequence_length) * sequence_length
            ends = begins + sizes
            if begins.min() < 0:
                raise IntegrityError(_NOT_FIRST)
        drawn = drawn_before(ends) - drawn_before(begins)
        tokens += int(drawn.sum())
        np.subtract.at(missing, documents, once)
        np.add.at(times, documents[drawn > 0], once)
    if missing.any():
        raise IntegrityError(_NOT_ONCE)
    times = times[split_lengths > 0]
    return {
        "tokens": tokens,
        "documents": len(times),
        "documents_drawn": int(np.count_nonzero(times)),
        "epochs": tokens / int(split_lengths.sum(dtype=np.int64)),
        "document_least": int(times.min()),
        "document_most": int(times.max()),
    }


def _packed_row_starts(index: GPTDatasetIndex, epochs: int) -> NDArray[Any]:
    """Return the entry of the document index that each row of a packed sample index begins with."""
    starts = np.ascontiguousarray(index.sample_index[:-1, 0])
    rows, excess = divmod(len(starts), epochs)
    documents = (len(index.document_index) - 1) // epochs
    is_whole = rows and not excess and len(starts) == len(index.shuffle_index)
    if not is_whole or (starts[::rows] != np.arange(epochs) * documents).any():
        raise IntegrityError(_NOT_FIRST)
    return starts


def _drawn_before(
    shuffle_index: NDArray[Any], draws: int, sequence_length: int
) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function that counts, for each position, the drawn positions before it."""
    rows = len(shuffle_index)
    chosen = shuffle_index[:draws]
    is_drawn = np.zeros(rows + 1, np.uint8)  # the last entry is for tokens after all rows
    if len(chosen) and 0 <= int(chosen.min()) <= int(chosen.max()) < rows:
        is_drawn[chosen] = 1
    if np.count_nonzero(is_drawn) != draws:
        raise IntegrityError(f"shuffle_index must contain {draws} distinct samples of {rows}")
    drawn_rows = np.zeros(rows + 1, np.int64)  # number of drawn rows before each row
    drawn_rows[1:] = is_drawn[:-1]
    drawn_rows.cumsum(out=drawn_rows)

    def drawn_before(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        row = np.minimum(positions // sequence_length, rows)
        drawn: NDArray[np.int64] = drawn_rows[row] * sequence_length
        return drawn + is_drawn[row] * (positions % sequence_length)

    return drawn_before
