"""Summaries of cached indexes, of a whole cache, and of a blend."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokshard.core.codec import Amount, Count, Document, Md5, Record, Share
from tokshard.core.formatting import counted
from tokshard.core.lengths import LengthSummary
from tokshard.dataset.fingerprint import FingerprintedIndex, dataset_fingerprint
from tokshard.dataset.products import CACHE_LOCK
from tokshard.errors import InputError, IntegrityError, TokshardError, raise_exhaustion
from tokshard.samples.blend.certificate import measure_weight_errors
from tokshard.samples.index.description import BlendedDescription, Description, GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.examination import Examination, examine
from tokshard.samples.index.npy import map_npy
from tokshard.samples.index.sidecar import Sidecar

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ArraySummary(Record):
    """An array of an index."""

    name: str
    size_bytes: Count
    dtype: str
    shape: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class EntrySummary(Record):
    """The files of one dataset's index or of one blend, by their names and headers."""

    hash: Md5
    split: str
    is_blend: bool
    condition: Literal["complete", "missing", "differs"]
    reason: str
    datasets: tuple[str, ...]
    samples: Count | None
    size_bytes: Count
    arrays: tuple[ArraySummary, ...]
    description: Any
    sidecar: Sidecar | None

    @classmethod
    def of(cls, found: Examination) -> EntrySummary:
        """Return the summary of an entry that was examined by itself."""
        entry, description = found.entry, found.description
        datasets: tuple[str, ...] = ()
        if isinstance(description, BlendedDescription):
            datasets = tuple(dataset.dataset_path for dataset in description.datasets)
        elif description is not None:
            datasets = (description.dataset_path,)
        arrays = tuple(
            ArraySummary(name, spec.file_bytes, spec.dtype.name, spec.shape)
            for name, spec in found.specs.items()
        )
        samples = found.specs.get("dataset_index" if entry.is_blend else "shuffle_index")
        return cls(
            hash=entry.hash,
            split=entry.split,
            is_blend=entry.is_blend,
            condition="complete" if found.condition == "fresh" else found.condition,
            reason="; ".join(_problems(found)),
            datasets=datasets,
            samples=None if samples is None else samples.shape[0],
            size_bytes=sum(array.size_bytes for array in arrays),
            arrays=arrays,
            description=None if description is None else description.to_json(),
            sidecar=found.sidecar,
        )

    @property
    def name(self) -> str:
        """The dataset as the job names it, or the number of datasets that are blended."""
        if not self.datasets:
            return "unknown"
        return f"blend of {counted(len(self.datasets), 'dataset')}" if self.is_blend else self.datasets[0]


@dataclass(frozen=True, slots=True)
class CacheSummary(Document):
    """Summary of an index cache: a directory as Megatron's ``--data-cache-path``."""

    SCHEMA = "tokshard.inspect-cache/2"

    directory: str
    size_bytes: Count
    entries: tuple[EntrySummary, ...]


@dataclass(frozen=True, slots=True)
class SampleStatistics(Record):
    """Statistics of a dataset's index, counted in its arrays."""

    sequences: Count
    epochs: Amount
    sequences_per_sample: LengthSummary
    cut_documents: int | None = None
    cut_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SourceStatistics(Record):
    """Draws of a blend from one dataset."""

    dataset_path: str
    weight: Share
    draws: Count
    share: Share
    weight_error: Amount


DatasetCondition = Literal["unchanged", "changed", "unknown", "unreadable"]


@dataclass(frozen=True, slots=True)
class IndexSummary(Document):
    """Summary of one index of a cache."""

    SCHEMA = "tokshard.inspect-index/2"

    directory: str
    entry: EntrySummary
    dataset_condition: DatasetCondition | None
    detail: str | None
    statistics: SampleStatistics | None
    sources: tuple[SourceStatistics, ...] | None


def _problems(found: Examination) -> Iterator[str]:
    if found.replaced:
        yield "another process is replacing it"
    if found.missing:
        yield f"{', '.join(map(os.path.basename, found.missing))} missing"
    for problem in found.problems:
        yield problem.message


def entries_of(directory: str, names: Iterable[str]) -> list[CacheEntry]:
    """Return the entries of a cache that files belong to by their names, sorted; locks are no entries."""
    files = (name for name in names if not name.endswith(f"-{CACHE_LOCK}"))
    entries = (CacheEntry.of_file(os.path.join(directory, name)) for name in files)
    return sorted({entry for entry in entries if entry is not None}, key=lambda entry: entry.stem)


def entries_in(directory: str) -> list[CacheEntry]:
    """Return the entries that have any file in a directory, sorted.

    Raises:
        InputError: The directory cannot be read.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}") from error
    return entries_of(directory, names)


def inspect_cache(directory: str) -> CacheSummary:
    """Summarize a cache from names and headers: no array is read.

    Raises:
        InputError: The directory cannot be listed.
        StorageError: A file cannot be read.
    """
    entries = [EntrySummary.of(examine(entry)) for entry in entries_in(directory)]
    entries.sort(key=lambda entry: (entry.is_blend, entry.name, entry.split, entry.hash))
    return CacheSummary(directory, sum(entry.size_bytes for entry in entries), tuple(entries))


def inspect_index(path: str) -> IndexSummary:
    """Summarize an index; its arrays are read once, in bounded memory.

    Args:
        path: Any of its files, which need not exist.

    Raises:
        InputError: The name is not that of a file of an index.
        IntegrityError: An array holds impossible values.
        StorageError: A file cannot be read.
    """
    directory, name = os.path.split(path)
    named = entries_of(directory, [name])
    if not named:
        raise InputError(f"{path} is not the name of a cached index file")
    entry, found = named[0], examine(named[0])
    whole = found.condition == "fresh"
    condition, detail = _dataset_condition(found)
    return IndexSummary(
        directory=directory,
        entry=EntrySummary.of(found),
        dataset_condition=condition,
        detail=detail,
        statistics=_sample_statistics(found, condition) if whole and not entry.is_blend else None,
        sources=_source_statistics(entry, found.description) if whole and entry.is_blend else None,
    )


def _dataset_condition(found: Examination) -> tuple[DatasetCondition | None, str | None]:
    description, sidecar = found.description, found.sidecar
    if found.entry.is_blend:
        return None, None
    if sidecar is None or sidecar.origin is None or not isinstance(description, GPTDatasetDescription):
        return "unknown", None
    try:
        now = dataset_fingerprint(description.dataset_path)
    except TokshardError as error:
        raise_exhaustion(error)
        return "unreadable", error.message
    changes = now.changes_since(sidecar.origin.dataset)
    return ("changed", ", ".join(changes)) if changes else ("unchanged", None)


def _sample_statistics(found: Examination, condition: DatasetCondition | None) -> SampleStatistics:
    entry, description = found.entry, found.description
    origin = None if found.sidecar is None else found.sidecar.origin
    documents = map_npy(entry.array_path("document_index"))
    lowest, highest = _range(documents)
    sequences = highest - lowest + 1
    epochs = len(documents) / sequences if sequences else 0.0
    packed = None if origin is None else origin.plan.packed
    if packed is not None:
        # Sequences without tokens are left out, and one more entry closes the last sample.
        epochs = (len(documents) - 1) / packed.documents
    rows = map_npy(entry.array_path("sample_index"))
    cut_documents = cut_tokens = None
    if origin is not None and origin.plan.extra_token and isinstance(description, GPTDatasetDescription):
        lengths = None
        if condition == "unchanged":
            lengths = FingerprintedIndex.open(description.dataset_path).table.sequence_lengths
        cut_documents, cut_tokens = _cuts(entry, documents, rows, lengths)
    return SampleStatistics(
        sequences=sequences,
        epochs=epochs,
        sequences_per_sample=LengthSummary.of(_sequences_per_sample(rows, packed=packed is not None)),
        cut_documents=cut_documents,
        cut_tokens=cut_tokens,
    )


def _cuts(
    entry: CacheEntry, documents: NDArray[np.int32], rows: NDArray[Any], lengths: NDArray[np.int32] | None
) -> tuple[int, int | None]:
    # (entries of the document index within which a sample begins, their tokens).
    cut, tokens, last = 0, 0, -1
    for first in range(0, len(rows), _CHUNK):
        chunk = rows[first : first + _CHUNK]
        positions = np.unique(chunk[chunk[:, 1] > 0, 0])
        if len(positions) and positions[0] == last:
            positions = positions[1:]
        if not len(positions):
            continue
        last = int(positions[-1])
        cut += len(positions)
        if lengths is not None:
            try:
                tokens += int(lengths[documents[positions]].sum(dtype=np.int64))
            except IndexError as error:
                path = entry.array_path("sample_index")
                raise IntegrityError(f"{path} refers to documents that do not exist", path=path) from error
    return cut, None if lengths is None else tokens


def _range(documents: NDArray[np.int32]) -> tuple[int, int]:
    # (0, -1) for an empty array.
    if not len(documents):
        return 0, -1
    chunks = [documents[first : first + _CHUNK] for first in range(0, len(documents), _CHUNK)]
    return min(int(chunk.min()) for chunk in chunks), max(int(chunk.max()) for chunk in chunks)


def _sequences_per_sample(rows: NDArray[Any], *, packed: bool) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(rows) - 1, _CHUNK):
        after = np.diff(rows[first : first + _CHUNK + 1, 0].astype(np.int64))
        # A packed sample ends before the sequence where the next one begins, unless that continues it.
        yield np.maximum(after, 1) if packed else np.maximum(after, 0) + 1


def _source_statistics(
    entry: CacheEntry, description: Description | None
) -> tuple[SourceStatistics, ...] | None:
    if not isinstance(description, BlendedDescription) or not description.datasets:
        return None
    total = sum(description.weights)
    weights = [weight / total if total else 0.0 for weight in description.weights]
    arrays = entry.load()
    counted_draws, errors = measure_weight_errors(
        arrays["dataset_index"], arrays["dataset_sample_index"], weights
    )
    size = int(counted_draws.sum())
    return tuple(
        SourceStatistics(dataset.dataset_path, weight, draws, draws / size if size else 0.0, error)
        for dataset, weight, draws, error in zip(
            description.datasets, weights, counted_draws.tolist(), errors.tolist(), strict=True
        )
    )
