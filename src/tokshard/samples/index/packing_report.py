"""Report of an epoch of packed samples, compared with concatenation.

All numbers follow from the number of documents of each length, so that no data is read again.

Concatenation writes the tokens of all documents of an epoch in one row and cuts it every S tokens. A
document of L tokens that begins at token t is cut if one of the L - 1 places between its tokens is a multiple
of S. Let g be the greatest common divisor of S and the lengths of all documents: then t is a multiple of g.
If all multiples of g below S are equally likely as remainders of t, a document of L <= S tokens is cut with
probability (L - g) / S, and a longer one always. This is

- for every order of the documents, the average over the S / g places at which the first sample can begin;
- the limit of the average over all orders as the number of documents grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from tokshard.core.codec import Amount, Count, Positive, Record, Share
from tokshard.core.lengths import LengthSummary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.samples.index.packing import Packing


class _EpochPacks(Protocol):
    # The part of :class:`tokshard.samples.index.best_fit.EpochPacks` that determines the report.
    @property
    def sequence_length(self) -> int: ...
    @property
    def packing(self) -> Packing: ...
    @property
    def counts(self) -> NDArray[np.int64]: ...
    @property
    def unpadded_counts(self) -> NDArray[np.int64]: ...
    @property
    def full_samples(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def remainders(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def documents_per_sample(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatExpectation(Record):
    """An epoch of the same documents if they were concatenated."""

    samples: Count
    cut_documents: Amount
    cut_tokens: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingReport(Record):
    """Numbers of an epoch of packed samples; they are the same in every epoch.

    Example:
        >>> from tokshard.samples.index.best_fit import EpochPacks
        >>> from tokshard.samples.index.packing import Packing
        >>> packs = EpochPacks.of(np.array([3, 5, 4, 9, 0], np.int32), range(5), 8, Packing())
        >>> report = PackingReport.of(packs, extra_token=True)
        >>> report.samples, report.minimum_samples, report.fill, report.padding_tokens
        (3, 3, 0.875, 3)
        >>> report.cut_documents, report.concat.cut_documents
        (1, 2.125)
    """

    sequence_length: Positive
    documents: Positive
    tokens: Positive
    samples: Positive
    minimum_samples: Positive
    fill: Share
    padding_tokens: Count
    cut_documents: Count
    cut_tokens: Count
    documents_per_sample: LengthSummary
    concat: ConcatExpectation

    @classmethod
    def of(cls, packs: _EpochPacks, *, extra_token: bool) -> Self:
        """Return the report of an epoch with at least one token.

        Args:
            packs: The packs of the epoch.
            extra_token: Whether samples have one more token, the last label.
        """
        size = packs.sequence_length
        capacity = packs.samples * size
        short, longer = _counted(packs.unpadded_counts, size)
        # Of a longer document only the remainder is known, which differs from its length by a multiple of S.
        common = math.gcd(size, *short, *longer)
        short_tokens = _total(short)
        cut_tokens = packs.full_samples * size + _total(longer)
        squares = sum(length * length * documents for length, documents in short.items())
        return cls(
            sequence_length=size,
            documents=packs.documents,
            tokens=packs.tokens,
            samples=packs.samples,
            minimum_samples=packs.full_samples + _minimum_packs(packs),
            fill=packs.tokens / capacity,
            padding_tokens=capacity - packs.tokens,
            cut_documents=packs.remainders,
            cut_tokens=cut_tokens,
            documents_per_sample=LengthSummary.of_counts(packs.documents_per_sample()),
            concat=ConcatExpectation(
                samples=max(0, packs.tokens - extra_token) // size,
                cut_documents=packs.remainders + (short_tokens - common * sum(short.values())) / size,
                cut_tokens=cut_tokens + (squares - common * short_tokens) / size,
            ),
        )


def _minimum_packs(packs: _EpochPacks) -> int:
    size, limit = packs.sequence_length, packs.packing.max_documents
    room = sum(map(_total, _counted(packs.counts, size)))
    by_limit = 0 if limit is None else -(-packs.documents // limit)
    return max(-(-room // size), packs.remainders, by_limit)


def _counted(counts: NDArray[np.int64], size: int) -> tuple[dict[int, int], dict[int, int]]:
    # The documents by their lengths, and the remainders by theirs: Python integers, whose squares are exact.
    keys = np.flatnonzero(counts)
    short, longer = keys[keys <= size], keys[keys > size]
    return (
        dict(zip(short.tolist(), counts[short].tolist(), strict=True)),
        dict(zip((longer - size).tolist(), counts[longer].tolist(), strict=True)),
    )


def _total(documents: dict[int, int]) -> int:
    return sum(length * number for length, number in documents.items())
