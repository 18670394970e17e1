"""Summaries of cached indexes, of a whole cache, and of a blend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from tokshard.core.codec import Document, Key
from tokshard.core.formatting import counted
from tokshard.core.lengths import LengthSummary
from tokshard.dataset.fingerprint import FingerprintedIndex, dataset_fingerprint
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import InputError, IntegrityError, TokshardError, raise_exhaustion
from tokshard.samples.blend.certificate import Certificate, measure_weight_errors
from tokshard.samples.blend.document import BlendDocument, document_path
from tokshard.samples.index.description import BlendedDescription, Description, GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry, Sidecar, entries_in, entries_of
from tokshard.samples.index.examination import Condition, Examination, examine
from tokshard.samples.index.npy import map_npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 20
_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """An array of an index."""

    name: Annotated[str, Key("name", "Name of the array: document_index, ...")]
    size_bytes: Annotated[int, Key("size_bytes", "Size of the file.", minimum=0)]
    dtype: Annotated[str, Key("dtype", "Dtype of the array.")]
    shape: Annotated[tuple[int, ...], Key("shape", "Shape of the array.", minimum=0)]


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """The files of one dataset's index or of one blend, by their names and headers."""

    hash: Annotated[str, Key("hash", "Hash in the names of the files.", pattern="[0-9a-f]{32}")]
    split: Annotated[str, Key("split", "train, valid or test.")]
    is_blend: Annotated[bool, Key("blend", "Whether it is the order of a blend.")]
    condition: Annotated[
        Condition,
        Key("condition", "complete; missing: Megatron would build all files again; damaged; or outdated."),
    ]
    detail: Annotated[str, Key("detail", "Missing files, and what is damaged; empty if complete.")]
    datasets: Annotated[
        tuple[str, ...], Key("datasets", "Datasets by their paths in the description; none if unreadable.")
    ]
    samples: Annotated[int | None, Key("samples", "Samples; null if that array is missing.", minimum=0)]
    size_bytes: Annotated[int, Key("size_bytes", "Size of all arrays.", minimum=0)]
    arrays: Annotated[tuple[ArraySummary, ...], Key("arrays", "Arrays that are whole.")]
    description: Annotated[Any, Key("description", "Megatron's description, whose hash names the files.")]
    sidecar: Annotated[Sidecar | None, Key("sidecar", "The sidecar; null if Megatron alone built it.")]

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
            condition=found.condition,
            detail="; ".join(_problems(found)),
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

    SCHEMA = "tokshard.inspect-cache/1"

    directory: Annotated[str, Key("directory", "Directory of the cache.")]
    size_bytes: Annotated[int, Key("size_bytes", "Size of all arrays.", minimum=0)]
    entries: Annotated[
        tuple[EntrySummary, ...], Key("entries", "Indexes of datasets, then blends, by dataset and split.")
    ]


@dataclass(frozen=True, slots=True)
class SampleStatistics:
    """Statistics of a dataset's index, counted in its arrays."""

    sequences: Annotated[int, Key("sequences", "Sequences of the split.", minimum=0)]
    epochs: Annotated[float, Key("epochs", "Times that the document index has each.", minimum=0)]
    sequences_per_sample: Annotated[
        LengthSummary,
        Key(
            "sequences_per_sample",
            "Sequences that a sample reads from; the borrowed last label of a packed sample is not counted.",
        ),
    ]
    cut_documents: Annotated[
        int | None,
        Key(
            "cut_documents",
            "Entries of the document index that are divided among samples; absent if samples have no "
            "additional token.",
            omit_none=True,
        ),
    ] = None
    cut_tokens: Annotated[
        int | None,
        Key("cut_tokens", "Their tokens; absent unless the dataset is unchanged.", omit_none=True),
    ] = None


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Draws of a blend from one dataset."""

    dataset_path: Annotated[str, Key("dataset_path", "The dataset, as the job names it.")]
    weight: Annotated[float, Key("weight", "Share of the samples that was requested.", minimum=0, maximum=1)]
    draws: Annotated[int, Key("draws", "Its samples in the blend.", minimum=0)]
    share: Annotated[float, Key("share", "Share of the samples that it has.", minimum=0, maximum=1)]
    weight_error: Annotated[
        float, Key("weight_error", "Largest distance from its weight at any prefix, in samples.", minimum=0)
    ]


DatasetCondition = Literal["unchanged", "changed", "unknown", "unreadable"]


@dataclass(frozen=True, slots=True)
class IndexSummary(Document):
    """Summary of one index of a cache."""

    SCHEMA = "tokshard.inspect-index/1"

    directory: Annotated[str, Key("directory", "Directory of the cache.")]
    entry: Annotated[EntrySummary, Key("entry", "Its files.")]
    dataset_condition: Annotated[
        DatasetCondition | None,
        Key(
            "dataset_condition",
            "The dataset since the index was built: unchanged, changed, unknown (not built by tokshard) or "
            "unreadable from here; null for a blend, which follows from its description.",
        ),
    ]
    detail: Annotated[str | None, Key("detail", "The changes, or why the dataset cannot be read.")]
    statistics: Annotated[
        SampleStatistics | None, Key("statistics", "Null for a blend, and if the index is not complete.")
    ]
    sources: Annotated[
        tuple[SourceStatistics, ...] | None,
        Key("sources", "Draws from the datasets, in their order; null unless it is a complete blend."),
    ]


@dataclass(frozen=True, slots=True)
class BlendSourceSummary:
    """A source of a split."""

    prefix: Annotated[str, Key("prefix", "Path prefix of the dataset.")]
    hash: Annotated[str, Key("hash", "Hash of its index.")]
    draws: Annotated[int, Key("draws", "Samples that the split reads.", minimum=0)]


@dataclass(frozen=True, slots=True)
class BlendSplitSummary:
    """A split of a blend."""

    name: Annotated[str, Key("name", "train, valid, test, or valid.0 and so on.")]
    kind: Annotated[str, Key("kind", "single (one dataset), weighted, proportional or exhaustive.")]
    samples: Annotated[int, Key("samples", "Samples of the split.", minimum=0)]
    hash: Annotated[str | None, Key("hash", "Hash of the blend's files; null for a single source.")]
    sources: Annotated[tuple[BlendSourceSummary, ...], Key("sources", "Sources in their order.")]
    certificate: Annotated[Certificate, Key("certificate", "Its content, measured when it was built.")]


@dataclass(frozen=True, slots=True)
class BlendSummary(Document):
    """Summary of a blend, from its document."""

    SCHEMA = "tokshard.inspect-blend/1"

    path: Annotated[str, Key("path", "The blend.json.")]
    id: Annotated[str, Key("id", "SHA-256 of what the blend is.")]
    cache_directory: Annotated[str, Key("cache_directory", "Directory of the index files.")]
    sequence_length: Annotated[int, Key("sequence_length", "Tokens of a sample.", minimum=1)]
    seed: Annotated[int, Key("seed", "Seed of all shuffles.", minimum=0)]
    splits: Annotated[tuple[BlendSplitSummary, ...], Key("splits", "Splits that have data.")]
    tokenizers: Annotated[
        tuple[DatasetTokenizer, ...] | None,
        Key("tokenizers", "The different tokenizers of the datasets, if recorded.", omit_none=True),
    ]
    job_tokenizer: Annotated[
        TokenizerIdentity | None, Key("job_tokenizer", "Tokenizer of the job, if recorded.", omit_none=True)
    ]
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key("tokenizer_mismatches", "Mismatches of tokenizers that were allowed.", omit_none=True),
    ]


def _problems(found: Examination) -> Iterator[str]:
    if found.replaced:
        yield "another process is replacing it"
    if found.missing:
        yield f"{', '.join(map(os.path.basename, found.missing))} missing"
    for problem in found.problems:
        yield problem.message


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
    whole = found.condition == "complete"
    condition, detail = _dataset_condition(found)
    return IndexSummary(
        directory=directory,
        entry=EntrySummary.of(found),
        dataset_condition=condition,
        detail=detail,
        statistics=_sample_statistics(found, condition) if whole and not entry.is_blend else None,
        sources=_source_statistics(entry, found.description) if whole and entry.is_blend else None,
    )


def inspect_blend(path: str) -> BlendSummary:
    """Summarize a blend; none of its arrays is opened.

    Args:
        path: The ``blend.json``, or its directory.

    Raises:
        MissingFileError, IntegrityError: See :meth:`tokshard.samples.blend.document.BlendDocument.read`.
    """
    document = BlendDocument.read(path)
    return BlendSummary(
        path=document_path(path),
        id=document.id,
        cache_directory=document.cache_directory,
        sequence_length=document.sequence_length,
        seed=document.seed,
        splits=tuple(
            BlendSplitSummary(
                name=name,
                kind=split.kind,
                samples=split.samples,
                hash=None if split.order is None else split.order.hash,
                sources=tuple(
                    BlendSourceSummary(source.prefix, source.hash, source.draws) for source in split.sources
                ),
                certificate=split.certificate,
            )
            for name, split in document.splits.items()
        ),
        tokenizers=document.tokenizers,
        job_tokenizer=document.job_tokenizer,
        tokenizer_mismatches=document.tokenizer_mismatches,
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
    packed = origin is not None and origin.packed is not None
    if origin is not None and origin.packed is not None:
        # Sequences without tokens are left out, and one more entry closes the last sample.
        epochs = (len(documents) - 1) / origin.packed.documents
    rows = map_npy(entry.array_path("sample_index"))
    cut_documents = cut_tokens = None
    if origin is not None and origin.extra_token and isinstance(description, GPTDatasetDescription):
        lengths = None
        if condition == "unchanged":
            lengths = FingerprintedIndex.open(description.dataset_path).table.sequence_lengths
        cut_documents, cut_tokens = _cuts(entry, documents, rows, lengths)
    return SampleStatistics(
        sequences=sequences,
        epochs=epochs,
        sequences_per_sample=LengthSummary.of(_sequences_per_sample(rows, packed=packed)),
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
    drift = measure_weight_errors(
        map_npy(entry.array_path("dataset_index")),
        map_npy(entry.array_path("dataset_sample_index")),
        weights,
        [_ENDLESS] * len(weights),
    )
    size = int(drift.draws.sum())
    return tuple(
        SourceStatistics(
            dataset_path=dataset.dataset_path,
            weight=weight,
            draws=int(draws),
            share=int(draws) / size if size else 0.0,
            weight_error=float(max(lag, lead)),
        )
        for dataset, weight, draws, lag, lead in zip(
            description.datasets, weights, drift.draws, drift.lag, drift.lead, strict=True
        )
    )
