"""Looking at an indexed dataset: its counts, its manifest, and how long its documents are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.dataset.manifest import Manifest, check_sizes, read_manifest
from tokshard.dataset.read_consistency import unchanged
from tokshard.dataset.reader import IndexedDataset
from tokshard.inspection.lengths import LengthSummary, summarise
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = "tokshard.inspect-dataset/1"

# Whether a document ends with EOD takes one read each; beyond this many a regular sample is taken.
_EOD_SAMPLE = 1_000_000
_REMOTE_EOD_SAMPLE = 100
_CHUNK_DOCUMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What an indexed dataset is.

    Attributes:
        path_prefix: Where it lies.
        dtype: Token dtype.
        multimodal: Whether it has modes.
        documents: Documents.
        sequences: Sequences.
        tokens: Tokens.
        empty_documents: Documents without a sequence.
        bin_bytes: Size of ``.bin``.
        idx_bytes: Size of ``.idx``.
        document_lengths: Tokens of documents.
        eod_id: The EOD token's id, if it is known.
        ends_with_eod: Share of the documents with tokens whose last token is the EOD token.
        eod_documents_checked: On how many documents that share was counted.
        manifest: The manifest, or None for a dataset that another program wrote.
    """

    path_prefix: str
    dtype: str
    multimodal: bool
    documents: int
    sequences: int
    tokens: int
    empty_documents: int
    bin_bytes: int
    idx_bytes: int
    document_lengths: LengthSummary
    eod_id: int | None
    ends_with_eod: float | None
    eod_documents_checked: int
    manifest: Manifest | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in self.__slots__},
            "document_lengths": self.document_lengths.to_json(),
            "manifest": self.manifest.to_json() if self.manifest else None,
        }


def inspect_dataset(path_prefix: str, *, multimodal: bool = False) -> DatasetSummary:
    """Summarise an indexed dataset; its whole index is checked on the way.

    Raises:
        InputError: One of its files is missing, or it was changed while it was read.
        IntegrityError: It is damaged, or not what its manifest says.
    """
    with unchanged([path_prefix]):
        return _summary(path_prefix, multimodal=multimodal)


def _summary(path_prefix: str, *, multimodal: bool) -> DatasetSummary:
    dataset = IndexedDataset(path_prefix, multimodal=multimodal)
    manifest = read_manifest(path_prefix)
    if manifest is not None:
        check_sizes(path_prefix, manifest)
    eod_id = manifest.options.eod_id if manifest else None
    ends, checked = _share_with_eod(dataset, eod_id) if eod_id is not None else (None, 0)
    return DatasetSummary(
        path_prefix=path_prefix,
        dtype=dataset.dtype.name,
        multimodal=multimodal,
        documents=dataset.document_count,
        sequences=len(dataset),
        tokens=int(dataset.sequence_lengths.sum(dtype="int64")),
        empty_documents=sum(int((pieces == 0).sum()) for pieces in _sequences_per_document(dataset)),
        bin_bytes=fs.getsize(paths.bin_path(path_prefix)),
        idx_bytes=fs.getsize(paths.idx_path(path_prefix)),
        document_lengths=summarise(_document_lengths(dataset)),
        eod_id=eod_id,
        ends_with_eod=ends,
        eod_documents_checked=checked,
        manifest=manifest,
    )


def _sequences_per_document(dataset: IndexedDataset) -> Iterator[NDArray[np.int64]]:
    import numpy as np

    for first in range(0, dataset.document_count, _CHUNK_DOCUMENTS):
        yield np.diff(dataset.document_indices[first : first + _CHUNK_DOCUMENTS + 1])


def _document_lengths(dataset: IndexedDataset) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each document, in pieces."""
    import numpy as np

    for first in range(0, dataset.document_count, _CHUNK_DOCUMENTS):
        edges = dataset.document_indices[first : first + _CHUNK_DOCUMENTS + 1]
        lengths = dataset.sequence_lengths[edges[0] : edges[-1]].astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(lengths)))
        yield np.diff(sums[edges - edges[0]])


def _share_with_eod(dataset: IndexedDataset, eod_id: int) -> tuple[float | None, int]:
    """Return the share of documents that end with EOD, and of how many."""
    limit = _REMOTE_EOD_SAMPLE if is_remote(dataset.path_prefix) else _EOD_SAMPLE
    step = max(1, -(-dataset.document_count // limit))
    edges = dataset.document_indices
    with_eod = checked = 0
    for document in range(0, dataset.document_count, step):
        first, stop = int(edges[document]), int(edges[document + 1])
        if stop > first:
            length = int(dataset.sequence_lengths[stop - 1])
            last = dataset.document_tokens(document)[-1:]
            with_eod += length > 0 and int(last[0]) == eod_id
            checked += 1
    return (with_eod / checked if checked else None), checked
