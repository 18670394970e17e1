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
from typing import TYPE_CHECKING, Annotated, Protocol, Self

import numpy as np

from tokshard.core.codec import Key
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
class ConcatExpectation:
    """An epoch of the same documents if they were concatenated.

    Attributes:
        samples: The samples that begin and end in the epoch.
        cut_documents: The expected number of documents whose tokens are divided among samples.
        cut_tokens: The expected number of tokens of such documents.
    """

    samples: Annotated[int, Key("samples", "Samples that begin and end in the epoch.", minimum=0)]
    cut_documents: Annotated[
        float, Key("cut_documents", "Expected documents that are divided among samples.", minimum=0)
    ]
    cut_tokens: Annotated[float, Key("cut_tokens", "Expected tokens of such documents.", minimum=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingReport:
    """Numbers of an epoch of packed samples; they are the same in every epoch.

    Attributes:
        sequence_length: The tokens of a sample, without the extra one.
        documents: The documents with at least one token.
        tokens: Their tokens.
        samples: The samples.
        minimum_samples: A lower bound. Longer documents fill samples, and each has a remainder, which begins
            a sample; all documents need room; and the number of documents per sample may be limited.
        fill: The share of the capacity that is tokens.
        padding_tokens: The rest of the capacity, with the room that ``pad_multiple`` reserves.
        cut_documents: The documents that are divided among samples: all that are longer than a sample.
        cut_tokens: The tokens of these documents.
        documents_per_sample: The number of documents in each sample.
        concat: The same documents if they were concatenated.

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

    sequence_length: Annotated[int, Key("sequence_length", "Tokens of a sample.", minimum=1)]
    documents: Annotated[int, Key("documents", "Documents with at least one token.", minimum=1)]
    tokens: Annotated[int, Key("tokens", "Tokens of these documents.", minimum=1)]
    samples: Annotated[int, Key("samples", "Samples.", minimum=1)]
    minimum_samples: Annotated[
        int, Key("minimum_samples", "Samples that no packing with these options goes below.", minimum=1)
    ]
    fill: Annotated[float, Key("fill", "Share of the capacity that is tokens.", minimum=0, maximum=1)]
    padding_tokens: Annotated[int, Key("padding_tokens", "Capacity that is padding.", minimum=0)]
    cut_documents: Annotated[
        int, Key("cut_documents", "Documents that are longer than a sample, and therefore cut.", minimum=0)
    ]
    cut_tokens: Annotated[int, Key("cut_tokens", "Tokens of these documents.", minimum=0)]
    documents_per_sample: Annotated[
        LengthSummary, Key("documents_per_sample", "Number of documents in each sample.")
    ]
    concat: Annotated[ConcatExpectation, Key("concat", "The same documents if they were concatenated.")]

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
