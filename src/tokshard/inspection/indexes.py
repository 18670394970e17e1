"""Looking at one index of a cache: what it was made for, and what its arrays hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.certificate import measure_weight_errors
from tokshard.errors import InputError, TokshardError
from tokshard.index_cache.description import BlendedDescription, GPTDatasetDescription
from tokshard.index_cache.fingerprint import dataset_fingerprint, fingerprint_differences
from tokshard.index_cache.npy import map_npy
from tokshard.inspection.indexfiles import IndexFiles, look_at_files
from tokshard.inspection.lengths import LengthSummary, summarise
from tokshard.inspection.recognition import stem_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = "tokshard.inspect-index/1"

_CHUNK = 1 << 20
_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class SampleStatistics:
    """What the arrays of a dataset's index hold, measured.

    Attributes:
        sequences: The sequences of the split.
        epochs: How often the document index has each.
        pieces: How many sequences a sample consists of.
    """

    sequences: int
    epochs: float
    pieces: LengthSummary


@dataclass(frozen=True, slots=True)
class BlendedShare:
    """What a blend draws of one dataset.

    Attributes:
        dataset_path: The dataset, as the job names it.
        weight: The share that was asked for.
        draws: Its samples in the blend.
        share: The share that it has.
        off_by: How many samples it is behind or ahead of its share at most.
    """

    dataset_path: str
    weight: float
    draws: int
    share: float
    off_by: float


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """What the arrays of a blend hold, measured.

    Attributes:
        sources: The datasets, in the order of their numbers.
        drift: The largest deviation in each of up to 64 equal parts, in samples.
    """

    sources: tuple[BlendedShare, ...]
    drift: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What an index is.

    Attributes:
        files: Its files.
        origin: What is known of the data that it was made from, one sentence.
        samples: What its arrays hold; None for a blend, and where it is not complete.
        order: What the arrays of a blend hold.
    """

    files: IndexFiles
    origin: str
    samples: SampleStatistics | None
    order: OrderStatistics | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        return {
            "schema": SCHEMA,
            "directory": self.files.directory,
            **self.files.to_json(),
            "origin": self.origin,
            "statistics": None if self.samples is None else asdict(self.samples),
            "order": None if self.order is None else asdict(self.order),
        }


def inspect_index(path: str) -> IndexSummary:
    """Summarise an index; its arrays are read once, in bounded memory.

    Args:
        path: Any of its files; it need not be there.

    Raises:
        InputError: The name is not that of a file of an index.
        IntegrityError: An array holds what it cannot hold.
        StorageError: A file cannot be read.
    """
    directory, name = os.path.split(path)
    stem = stem_of(name)
    if stem is None:
        raise InputError(f"{path} is not named as a file of a cached index")
    files = look_at_files(directory, stem)
    whole = files.condition == "complete"
    return IndexSummary(
        files=files,
        origin=_origin(files),
        samples=_sample_statistics(files) if whole and not files.is_blend else None,
        order=_order_statistics(files) if whole and files.is_blend else None,
    )


def _origin(files: IndexFiles) -> str:
    description, sidecar = files.description, files.sidecar
    if isinstance(description, BlendedDescription):
        return "the order follows from the description alone"
    if sidecar is None:
        return "not made by tokshard, so what it was made from is not known"
    if not isinstance(description, GPTDatasetDescription):
        return "what it was made from cannot be told without its description"
    try:
        now = dataset_fingerprint(description.dataset_path)
    except TokshardError as error:
        return f"it cannot be compared with the dataset from here: {error.message}"
    changes = fingerprint_differences(sidecar.dataset, now)
    if changes:
        return f"the dataset has changed since: {', '.join(changes)}"
    return "the dataset is as it was when the index was made"


def _sample_statistics(files: IndexFiles) -> SampleStatistics:
    documents = map_npy(files.array_path("document_index"))
    lowest, highest = _range(documents)
    sequences = highest - lowest + 1
    rows = map_npy(files.array_path("sample_index"))
    return SampleStatistics(
        sequences=sequences,
        epochs=len(documents) / sequences if sequences else 0.0,
        pieces=summarise(_pieces(rows)),
    )


def _range(documents: NDArray[np.int32]) -> tuple[int, int]:
    """Return the smallest and the largest number; (0, -1) for none."""
    if not len(documents):
        return 0, -1
    chunks = [documents[first : first + _CHUNK] for first in range(0, len(documents), _CHUNK)]
    return min(int(one.min()) for one in chunks), max(int(one.max()) for one in chunks)


def _pieces(rows: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield the number of sequences that each sample reads from, in pieces."""
    for first in range(0, len(rows) - 1, _CHUNK):
        yield np.maximum(np.diff(rows[first : first + _CHUNK + 1, 0].astype(np.int64)), 0) + 1


def _order_statistics(files: IndexFiles) -> OrderStatistics | None:
    description = files.description
    if not isinstance(description, BlendedDescription) or not description.datasets:
        return None
    total = sum(description.weights)
    shares = [weight / total if total else 0.0 for weight in description.weights]
    drift = measure_weight_errors(
        map_npy(files.array_path("dataset_index")),
        map_npy(files.array_path("dataset_sample_index")),
        shares,
        [_ENDLESS] * len(shares),
    )
    size = int(drift.draws.sum())
    sources = tuple(
        BlendedShare(
            dataset_path=one.dataset_path,
            weight=weight,
            draws=int(draws),
            share=int(draws) / size if size else 0.0,
            off_by=float(max(lag, lead)),
        )
        for one, weight, draws, lag, lead in zip(
            description.datasets, shares, drift.draws, drift.lag, drift.lead, strict=True
        )
    )
    return OrderStatistics(sources, drift.curve)
