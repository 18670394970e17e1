"""Builders of the three arrays of an index.

The compiled kernel is kept for its speed: ``scripts/bench indices`` measures it against Megatron.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.formatting import size
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import MAX_INT32
from tokshard.samples.index.shuffling import BLOCK, ShuffleStream
from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Entries of the document index handled at once by numpy (working arrays of some MB), and by a kernel
# (about a tenth of a second, so that signals are handled between calls).
_PIECE = 1 << 18
_COMPILED_PIECE = 1 << 22


def build_document_index(
    documents: range | NDArray[np.int32], epochs: int, stream: ShuffleStream, *, separate_final_epoch: bool
) -> NDArray[np.int32]:
    """Build the document index: the order in which sequences are read.

    Peak memory is the result: 4 bytes per sequence and epoch.

    Args:
        documents: The numbers of the sequences of the split: a range of step 1, or int32 of shape (n,).
        epochs: The number of epochs.
        stream: The stream of the index's seed; it must be unused.
        separate_final_epoch: Whether the last epoch is shuffled separately. The other epochs are always
            shuffled together, so a sequence may occur twice before another occurs once.

    Returns:
        int32 of shape (n * epochs,).

    Raises:
        UsageError: It does not fit into memory.

    Example:
        >>> build_document_index(range(4), 2, ShuffleStream(1), separate_final_epoch=True)
        array([3, 2, 0, 1, 0, 2, 1, 3], dtype=int32)
    """
    count = len(documents)
    try:
        order = np.empty(count * epochs, np.int32)
    except MemoryError:
        raise UsageError(
            f"the document index of {epochs:,} epochs requires {size(4 * count * epochs)} of memory",
            hint="pass fewer samples or epochs",
        ) from None
    for first in range(0, count, _PIECE):
        piece = documents[first : first + _PIECE]
        numbers = np.arange(piece.start, piece.stop) if isinstance(piece, range) else piece
        order.reshape(epochs, count)[:, first : first + _PIECE] = numbers
    border = count * (epochs - 1) if separate_final_epoch and epochs > 1 else 0
    if border:
        stream.shuffle(order[:border])
    stream.shuffle(order[border:])
    return order


def build_sample_index(
    lengths: NDArray[np.int32], document_index: NDArray[np.int32], plan: EpochPlan
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Build the sample index: the start of each sample, and the end of the last.

    One pass over the document index. Peak memory is the result and some MB, unless the result's type is
    int64.

    Args:
        lengths: The tokens of all sequences of the dataset, not only of the split: int32 of shape
            (sequences,); it may be a view of a file, which is not copied.
        document_index: See :func:`build_document_index`.
        plan: The plan that the document index was built from.

    Returns:
        Of shape (samples + 1, 2): the position in the document index, and the first token in that
        document. int32, or int64 if the document index has more entries than int32 can address. With an
        extra token, a sample ends with the token that the next one begins with, so each token is exactly
        once the label of its predecessor; row k is the position of token ``k * sequence_length``. Without
        it, row k is one past the previous token.

    Raises:
        UsageError: The document index does not fit the plan or the lengths.
        InputError: The partial last sample is kept and would begin in an empty document.

    Example:
        >>> from tokshard.samples.index.epochs import plan_epochs
        >>> lengths = np.array([3, 5, 4], np.int32)
        >>> plan = plan_epochs(sequences=3, tokens_per_epoch=12, sequence_length=4, num_samples=None)
        >>> build_sample_index(lengths, np.array([2, 0, 1], np.int32), plan).tolist()
        [[0, 0], [1, 0], [2, 1]]
    """
    _check_document_index(lengths, document_index, plan)
    rows: NDArray[Any] = np.empty((plan.samples + 1, 2), sample_index_dtype(len(document_index)))
    rows[0] = 0
    large = len(document_index) + plan.samples >= WORTH_COMPILING and has_numba()
    write: Callable[..., tuple[int, int]] = _sample_rows
    if large:
        write = partial(compiled(sample_rows), np.empty(BLOCK, np.int64))
    piece = _COMPILED_PIECE if large else _PIECE
    row, token, extra = 1, 0, int(plan.extra_token)
    for first in range(0, len(document_index), piece):
        documents = document_index[first : first + piece]
        row, token = write(lengths, documents, first, token, rows, row, plan.sequence_length, extra)
    if token != plan.tokens:
        raise UsageError(f"document_index must have {plan.tokens} tokens, got {token}")
    if row < len(rows):
        rows[row:] = len(document_index) - 1, _last_offset(lengths, document_index, extra)
    return rows


def build_shuffle_index(plan: EpochPlan, stream: ShuffleStream) -> NDArray[np.uint32] | NDArray[np.int64]:
    """Build the shuffle index: the order in which samples are used.

    Peak memory is the result: 4 bytes per sample.

    Args:
        plan: The plan of the index.
        stream: The stream that shuffled the document index.

    Returns:
        Of shape (samples,): uint32, or int64 from 2**32 - 2 samples on. If the final epoch is separate,
        the samples that end before it come first.

    Example:
        >>> from tokshard.samples.index.epochs import plan_epochs
        >>> plan = plan_epochs(sequences=3, tokens_per_epoch=12, sequence_length=2, num_samples=None)
        >>> build_shuffle_index(plan, ShuffleStream(1))
        array([2, 1, 4, 0, 3], dtype=uint32)
    """
    order: NDArray[Any] = np.arange(plan.samples, dtype=shuffle_index_dtype(plan.samples))
    border = plan.samples_before_final if plan.separate_final_epoch else plan.samples
    stream.shuffle(order[:border])
    stream.shuffle(order[border:])
    return order


def sample_index_dtype(documents: int) -> type[np.int32 | np.int64]:
    """Return the dtype of the sample index over a document index of some length, as Megatron chooses it."""
    return np.int32 if documents <= MAX_INT32 else np.int64


def shuffle_index_dtype(samples: int) -> type[np.uint32 | np.int64]:
    """Return the dtype of the shuffle index of a number of samples, as Megatron chooses it."""
    return np.uint32 if samples < np.iinfo(np.uint32).max - 1 else np.int64


def _check_document_index(
    lengths: NDArray[np.int32], document_index: NDArray[np.int32], plan: EpochPlan
) -> None:
    if len(document_index) != plan.documents:
        raise UsageError(f"document_index must have {plan.documents} entries, got {len(document_index)}")
    least, most = int(document_index.min()), int(document_index.max())
    if least < 0 or most >= len(lengths):
        raise UsageError(
            f"document_index must hold sequence numbers from 0 to {len(lengths) - 1}, "
            f"got {least if least < 0 else most}"
        )


def _last_offset(lengths: NDArray[np.int32], document_index: NDArray[np.int32], extra: int) -> int:
    offset = int(lengths[document_index[-1]]) - extra
    if offset < 0:
        raise InputError(
            f"the partial last sample of validation would begin at the empty sequence {document_index[-1]}",
            hint="drop the partial last sample, or use another seed",
        )
    return offset


def _sample_rows(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    position: int,
    token: int,
    rows: NDArray[Any],
    row: int,
    sequence_length: int,
    extra: int,
) -> tuple[int, int]:
    # The numpy equivalent of :func:`sample_rows`.
    sizes = lengths[documents]
    ends = np.cumsum(sizes, dtype=np.int64) + token
    token = int(ends[-1])
    stop = min(len(rows), (token - extra) // sequence_length + 1)
    for first in range(row, stop, _PIECE):
        last = min(first + _PIECE, stop)
        begins = np.arange(first, last) * sequence_length
        found = np.searchsorted(ends, begins + (extra - 1), side="right")
        rows[first:last, 0] = found + position
        rows[first:last, 1] = begins - (ends[found] - sizes[found])
    return max(row, stop), token


def sample_rows(  # noqa: PLR0913, PLR0917 - a kernel has no objects
    ahead: NDArray[np.int64],
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    position: int,
    token: int,
    rows: NDArray[Any],
    row: int,
    sequence_length: int,
    extra: int,
) -> tuple[int, int]:
    """Write the rows of the sample index that fall into a piece of the document index.

    Memory bandwidth is the limit, so it reads all lengths of a block before it uses the first.

    Args:
        ahead: Room for :data:`BLOCK` lengths.
        lengths: The tokens of each sequence of the dataset.
        documents: The piece; all entries are sequence numbers.
        position: The position of the piece in the document index.
        token: The number of tokens before the piece.
        rows: The sample index, of shape (samples + 1, 2).
        row: The first row not written yet.
        sequence_length: The tokens of a sample.
        extra: 1 where a sample has one more token, else 0.

    Returns:
        The first row still not written, and the number of tokens before the end of the piece.
    """
    wanted = row * sequence_length + extra - 1
    for begin in range(0, len(documents), BLOCK):
        count = min(BLOCK, len(documents) - begin)
        for k in range(count):
            ahead[k] = lengths[documents[begin + k]]
        for k in range(count):
            end = token + int(ahead[k])
            while wanted < end and row < len(rows):
                rows[row, 0] = position + begin + k
                rows[row, 1] = row * sequence_length - token
                row += 1
                wanted += sequence_length
            token = end
    return row, token
