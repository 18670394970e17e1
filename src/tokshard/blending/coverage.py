"""How often the documents and tokens of a source are seen: counted from its index, not computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.kernels import cover_documents, cover_once, place_documents
from tokshard.errors import IntegrityError
from tokshard.gpt_index.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The places of so many appearances are held at once, or of an eighth of them all: each part costs a pass
# over the document index.
_PLACES_AT_ONCE = 1 << 22
_MOST_PASSES = 8
# About a tenth of a second: signals are handled between two calls.
_ENTRIES_OF_A_CALL = 1 << 22
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the first samples of an index show of a dataset. Documents without tokens are not counted.

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
) -> Coverage:
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
    return Coverage(
        documents=int(np.count_nonzero(own)),
        documents_drawn=int(totals[0]),
        document_least=int(totals[1]),
        document_most=int(totals[2]),
        token_least=int(totals[3]),
        token_most=int(totals[4]),
        tokens=_tokens(drawn, sequence_length, per_epoch * epochs),
        tokens_per_epoch=per_epoch,
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
    kernel, token = choose(cover_once), 0
    seen = np.zeros(len(documents), np.uint8)
    for at in range(0, len(document_index), _ENTRIES_OF_A_CALL):
        piece = document_index[at : at + _ENTRIES_OF_A_CALL]
        token = kernel(lengths, piece, documents.start, seen, drawn, sequence_length, token, totals)
    _check_seen(seen, 1)


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
    rows = max(_PLACES_AT_ONCE // epochs, -(-len(documents) // _MOST_PASSES), 1)
    for first in documents[::rows]:
        places = np.empty((min(rows, documents.stop - first), epochs), np.int64)
        seen = np.zeros(len(places), np.int64)
        choose(place_documents)(lengths, document_index, first, places, seen)
        _check_seen(seen, epochs)
        choose(cover_documents)(lengths, first, places, drawn, sequence_length, totals)


def _check_seen(seen: NDArray[Any], epochs: int) -> None:
    if (seen != epochs).any():
        raise IntegrityError("the document index does not hold every document of its split once an epoch")


def _documents(document_index: NDArray[np.int32], available: int) -> tuple[int, int]:
    """Return the first document of the split and how many there are."""
    if not len(document_index):
        raise IntegrityError("the document index is empty")
    first, last = int(document_index.min()), int(document_index.max())
    if first < 0 or last >= available:
        raise IntegrityError(
            f"the document index names the documents {first} to {last}, but the dataset has {available}"
        )
    return first, last - first + 1


def _drawn(shuffle_index: NDArray[Any], draws: int) -> NDArray[np.uint8]:
    """Return for each sample, in the order of the stream, whether it is drawn."""
    drawn = np.zeros(len(shuffle_index), np.uint8)
    chosen = shuffle_index[:draws]
    if len(chosen) < draws or (draws and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(drawn)):
        raise IntegrityError(f"the shuffle index of {len(drawn)} samples does not hold {draws} of them")
    drawn[chosen] = 1
    return drawn


def _as_it_is(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _tokens(drawn: NDArray[np.uint8], sequence_length: int, stream_tokens: int) -> int:
    """Count the tokens of the drawn samples; only those at the end of the stream can be short."""
    whole = min(stream_tokens // sequence_length, len(drawn))
    rest = stream_tokens - whole * sequence_length
    short = bool(drawn[whole : whole + 1].any())
    return int(np.count_nonzero(drawn[:whole])) * sequence_length + (rest if short else 0)
