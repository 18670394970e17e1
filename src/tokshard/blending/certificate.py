"""The certificate of a blend: what it holds of each source, measured from the files themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from tokshard.blending.coverage import Coverage, measure_coverage
from tokshard.blending.drift import measure_drift
from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ARITHMETIC = "product rounded before difference"
"""How lags are computed. Megatron's builds for ARM fuse the two operations and order ties otherwise."""


@dataclass(frozen=True, slots=True)
class SourceCertificate:
    """What a split holds of one source.

    Attributes:
        prefix: The dataset.
        samples: The samples that are drawn of it.
        available: The samples that its index has.
        tokens: The tokens of the drawn samples, without padding.
        documents: Its sequences in the split that have tokens; Megatron's document index counts these.
        documents_drawn: How many of them are seen at all.
        epochs: ``tokens`` over the tokens of the split.
        document_least: How often the least seen document is; any token of it counts.
        document_most: How often the most seen document is.
        token_least: How often the least seen token is.
        token_most: How often the most seen token is.
        target_share: The share of the samples that was asked for.
        share: The share that it has.
        largest_lag: How many samples it is behind its share at most, at any prefix.
        largest_lead: How many it is ahead at most.
    """

    prefix: str
    samples: int
    available: int
    tokens: int
    documents: int
    documents_drawn: int
    epochs: float
    document_least: int
    document_most: int
    token_least: int
    token_most: int
    target_share: float
    share: float
    largest_lag: float
    largest_lead: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a split holds.

    Attributes:
        samples: The samples of the split.
        tokens: The tokens of all of them, without padding.
        largest_deviation: The largest distance of any source from its share at any prefix, in samples.
            It is below 1 for two sources, and mostly for more; but not always.
        drift: The largest deviation in each of up to 64 equal parts of the split.
        draws_out_of_range: Draws of samples that a source does not have; always 0 where Megatron can
            train.
        arithmetic: How the order of the blend was computed.
        sources: One for each source, in order.
    """

    samples: int
    tokens: int
    largest_deviation: float
    drift: tuple[float, ...]
    draws_out_of_range: int
    arithmetic: str
    sources: tuple[SourceCertificate, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Read a certificate back.

        Raises:
            IntegrityError: A field is missing, unknown, or of a wrong kind.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or value.keys() != names or not isinstance(value["sources"], list):
            raise IntegrityError(f"{path}: a certificate does not have its fields", path=path)
        counts = [value[name] for name in ("samples", "tokens", "draws_out_of_range")]
        drift = value["drift"]
        numbers = [value["largest_deviation"], *(drift if isinstance(drift, list) else [None])]
        if not all(map(_is_count, counts)) or not all(map(_is_number, numbers)):
            raise IntegrityError(f"{path}: a number of a certificate is none", path=path)
        sources = tuple(_source(entry, path) for entry in value["sources"])
        return cls(**{**value, "drift": tuple(drift), "sources": sources})


@dataclass(frozen=True, slots=True, eq=False)
class SourceArrays:
    """What is measured of a source.

    Attributes:
        prefix: The dataset, as the certificate names it.
        share: The share that was asked for.
        lengths: The tokens of all its sequences: int32.
        document_index: Its document index.
        shuffle_index: Its shuffle index.
    """

    prefix: str
    share: float
    lengths: NDArray[np.int32]
    document_index: NDArray[np.int32]
    shuffle_index: NDArray[Any]


def measure(
    blend: tuple[NDArray[np.int16], NDArray[np.int64]] | None,
    shares: Sequence[float],
    available: Sequence[int],
    sources: Iterable[SourceArrays],
    sequence_length: int,
) -> Certificate:
    """Measure a split from its arrays.

    Args:
        blend: The dataset index and the dataset sample index; None where the split is one source whole.
        shares: The share of each source.
        available: The samples of each source's index.
        sources: The sources, in order; each is let go before the next is asked for.
        sequence_length: The tokens of a sample.

    Raises:
        IntegrityError: The arrays contradict each other.
    """
    curve: tuple[float, ...]
    if blend is None:
        draws, lags, leads, curve, outside = [available[0]], [0.0], [0.0], (0.0,), 0
    else:
        drift = measure_drift(*blend, shares, available)
        draws, lags, leads = drift.draws.tolist(), drift.lag.tolist(), drift.lead.tolist()
        curve, outside = drift.curve, drift.out_of_range
    total = sum(draws)
    certificates = tuple(
        _certify(source, count, total, len(source.shuffle_index), lag, lead, sequence_length)
        for source, count, lag, lead in zip(sources, draws, lags, leads, strict=True)
    )
    return Certificate(
        samples=total,
        tokens=sum(one.tokens for one in certificates),
        largest_deviation=max(*lags, *leads),
        drift=curve,
        draws_out_of_range=outside,
        arithmetic=ARITHMETIC,
        sources=certificates,
    )


def _certify(
    source: SourceArrays, draws: int, total: int, available: int, lag: float, lead: float, length: int
) -> SourceCertificate:
    seen: Coverage = measure_coverage(
        source.lengths, source.document_index, source.shuffle_index, draws, length
    )
    return SourceCertificate(
        prefix=source.prefix,
        samples=draws,
        available=available,
        tokens=seen.tokens,
        documents=seen.documents,
        documents_drawn=seen.documents_drawn,
        epochs=seen.tokens / seen.tokens_per_epoch,
        document_least=seen.document_least,
        document_most=seen.document_most,
        token_least=seen.token_least,
        token_most=seen.token_most,
        target_share=source.share,
        share=draws / total if total else 0.0,
        largest_lag=lag,
        largest_lead=lead,
    )


def _source(value: Any, path: str) -> SourceCertificate:
    names = {field.name: str(field.type) for field in fields(SourceCertificate)}
    if not isinstance(value, dict) or value.keys() != names.keys():
        raise IntegrityError(f"{path}: a source of a certificate does not have its fields", path=path)
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    for name, kind in names.items():
        if type(value[name]) not in kinds[kind]:
            raise IntegrityError(f"{path}: {name} of a certificate is {value[name]!r}", path=path, field=name)
    return SourceCertificate(**value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float}
