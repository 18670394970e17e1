"""The certificate of a blend: the content of a split, measured from the files themselves.

Documents are those of Megatron's document index: sequences of the dataset. Sequences without tokens are
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from tokshard.core.codec import Amount, Bounds, Count, Record, Share
from tokshard.errors import IntegrityError
from tokshard.samples.blend.coverage import measure_coverage, measure_packed_coverage

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARITHMETIC = "rounded-product"
"""The lag is computed with the product rounded before the difference, as by Megatron on x86-64. Its builds
for ARM fuse the two operations, which orders ties otherwise."""

_DRAWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class SourceCertificate(Record):
    """The part of a split that is drawn from one source.

    Attributes:
        prefix: Path prefix of the dataset.
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
        largest_lag: Largest deviation below the weight at any prefix, in samples.
        largest_lead: Largest deviation above the weight at any prefix, in samples.
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
    largest_lag: float
    largest_lead: float

    @property
    def weight_error(self) -> float:
        """The largest distance from the weight at any prefix, in samples."""
        return max(self.largest_lag, self.largest_lead)


@dataclass(frozen=True, slots=True)
class Certificate(Record):
    """The certificate of a split, counted from its files.

    Attributes:
        samples: Samples of the split.
        tokens: Tokens of all samples, without padding and without the extra token of each sample.
        weight_error: Largest deviation of any source from its weight, over all prefixes of the split, in
            samples.
        draws_out_of_range: Draws of samples that a source does not have; always 0.
        arithmetic: Arithmetic of the lags: ``rounded-product``.
        sources: One entry for each source, in order.
    """

    samples: Count
    tokens: Count
    weight_error: float
    draws_out_of_range: Count
    arithmetic: Annotated[str, Bounds(pattern="[a-z-]+")]
    sources: tuple[SourceCertificate, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SourceArrays:
    """The arrays of a source that are measured.

    Attributes:
        prefix: The path prefix of the dataset, as the certificate names it.
        lengths: The tokens of all its sequences: int32.
        document_index: Its document index.
        shuffle_index: Its shuffle index.
        packed_rows: Its sample index, if its documents are packed; None for concatenated documents.
    """

    prefix: str
    lengths: NDArray[np.int32]
    document_index: NDArray[np.int32]
    shuffle_index: NDArray[Any]
    packed_rows: NDArray[Any] | None = None


def measure(
    blend: tuple[NDArray[np.int16], NDArray[np.int64]] | None,
    weights: Sequence[float],
    available: Sequence[int],
    sources: Iterable[SourceArrays],
    sequence_length: int,
) -> Certificate:
    """Measure a split from its arrays.

    Args:
        blend: The dataset index and the dataset sample index; None where the split is one source whole.
        weights: The share of the samples that is asked of each source; their sum is 1.
        available: The samples of each source's index.
        sources: The sources, in order; each is released before the next is requested.
        sequence_length: The tokens of a sample.

    Raises:
        IntegrityError: The arrays contradict each other.
    """
    if blend is None:
        errors = WeightErrors.of_one_source(available[0])
    else:
        errors = measure_weight_errors(*blend, weights, available)
    certificates = tuple(
        _certify(source, place, weights[place], errors, sequence_length)
        for place, source in zip(range(len(weights)), sources, strict=True)
    )
    return Certificate(
        samples=int(errors.draws.sum()),
        tokens=sum(certificate.tokens for certificate in certificates),
        weight_error=max(certificate.weight_error for certificate in certificates),
        draws_out_of_range=errors.out_of_range,
        arithmetic=ARITHMETIC,
        sources=certificates,
    )


def _certify(
    source: SourceArrays, place: int, weight: float, errors: WeightErrors, sequence_length: int
) -> SourceCertificate:
    draws, total = int(errors.draws[place]), int(errors.draws.sum())
    if source.packed_rows is None:
        seen = measure_coverage(
            source.lengths, source.document_index, source.shuffle_index, draws, sequence_length
        )
    else:
        seen = measure_packed_coverage(
            source.lengths,
            source.document_index,
            source.packed_rows,
            source.shuffle_index,
            draws,
            sequence_length,
        )
    return SourceCertificate(
        prefix=source.prefix,
        samples=draws,
        available=len(source.shuffle_index),
        tokens=seen.tokens,
        documents=seen.documents,
        documents_drawn=seen.documents_drawn,
        epochs=seen.tokens / seen.tokens_per_epoch,
        document_least=seen.document_least,
        document_most=seen.document_most,
        weight=weight,
        share=draws / total if total else 0.0,
        largest_lag=float(errors.lag[place]),
        largest_lead=float(errors.lead[place]),
    )


@dataclass(frozen=True, slots=True)
class WeightErrors:
    """Distances of a blend from its weights, in samples.

    Attributes:
        draws: How often each source is drawn: int64 of shape (sources,).
        lag: The largest distance of each source behind its weight: float64 of shape (sources,).
        lead: The largest distance ahead of it, likewise.
        out_of_range: Draws of a sample that the source does not have.
    """

    draws: NDArray[np.int64]
    lag: NDArray[np.float64]
    lead: NDArray[np.float64]
    out_of_range: int

    @classmethod
    def of_one_source(cls, samples: int) -> WeightErrors:
        """Return those of a split that is one source whole: there are none."""
        return cls(np.array([samples]), np.zeros(1), np.zeros(1), 0)


def measure_weight_errors(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    weights: Sequence[float],
    available: Sequence[int],
) -> WeightErrors:
    """Measure the largest distance of each source from its weight, at any prefix of the blend.

    Between two draws of a source it only falls behind, and a draw moves it ahead by one: so it is enough
    to look just before and just after each draw, and at the end. Memory does not depend on the size.

    Args:
        dataset_index: The source of each sample.
        dataset_sample_index: Which sample of its source it is.
        weights: The weight of each source; their sum is 1.
        available: The samples that each source has.

    Raises:
        IntegrityError: The dataset index names a source that is not there.

    Example:
        >>> from tokshard.samples.blend.order import build_blending_indices
        >>> errors = measure_weight_errors(*build_blending_indices([0.9, 0.1], 100), [0.9, 0.1], [100, 100])
        >>> errors.draws.tolist(), [round(float(lag), 2) for lag in errors.lag]
        ([90, 10], [0.8, 0.1])
    """
    size, sources = len(dataset_index), len(weights)
    weight, limits = np.array(weights, np.float64), np.array(available, np.int64)
    draws = np.zeros(sources, np.int64)
    lag = np.zeros(sources)
    lead = np.zeros(sources)
    out_of_range = 0
    for first in range(0, size, _DRAWS_AT_ONCE):
        source = dataset_index[first : first + _DRAWS_AT_ONCE].astype(np.int64)
        sample = dataset_sample_index[first : first + _DRAWS_AT_ONCE]
        if source.min() < 0 or source.max() >= sources:
            raise IntegrityError(f"dataset_index must hold source numbers below {sources}")
        step = np.arange(first, first + len(source), dtype=np.float64)
        np.maximum.at(lag, source, weight[source] * step - sample)
        np.maximum.at(lead, source, (sample + 1) - weight[source] * (step + 1))
        out_of_range += int(np.count_nonzero((sample < 0) | (sample >= limits[source])))
        draws += np.bincount(source, minlength=sources)
    return WeightErrors(draws, np.maximum(lag, weight * size - draws), lead, out_of_range)
