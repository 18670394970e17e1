"""Summaries of a dataset, of one of its documents, and of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokshard.core.codec import Count, Document, Share
from tokshard.core.lengths import LengthSummary
from tokshard.dataset.fingerprint import unchanged
from tokshard.dataset.layout import choose_dtype
from tokshard.dataset.manifest import Manifest, check_sizes, read_manifest
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare_definitions
from tokshard.errors import TokenizerMismatchError, UsageError
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.text.tokenizer.encoders import decode
from tokshard.text.tokenizer.fast import fast_encoder_refusal
from tokshard.text.tokenizer.recorded import recorded_tokenizer
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Whether a document ends with EOD takes one read each; of more documents a regular sample is taken.
_EOD_SAMPLE = 1_000_000
_REMOTE_EOD_SAMPLE = 100
_CHUNK_DOCUMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class DatasetSummary(Document):
    """Summary of an indexed dataset."""

    SCHEMA = "tokshard.inspect-dataset/2"

    path_prefix: str
    dtype: str
    multimodal: bool
    documents: Count
    sequences: Count
    tokens: Count
    empty_documents: Count
    bin_bytes: Count
    idx_bytes: Count
    document_lengths: LengthSummary
    eod_id: int | None
    ends_with_eod: Share | None
    eod_documents_checked: Count
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class DocumentSummary(Document):
    """One document of a dataset: its tokens and, where a tokenizer is known, its text."""

    SCHEMA = "tokshard.inspect-document/2"

    path_prefix: str
    document: Count
    sequence_lengths: tuple[Count, ...]
    tokens: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True)
class TokenizerSummary(Document):
    """Summary of a tokenizer."""

    SCHEMA = "tokshard.inspect-tokenizer/2"

    argument: str
    identity: TokenizerIdentity
    dtype: str
    eod_token: str | None
    eod_id: int | None
    max_token_id: Count
    encoder: str
    encoder_detail: str | None
    setting: str | None


def inspect_dataset(path_prefix: str, *, multimodal: bool = False) -> DatasetSummary:
    """Summarize an indexed dataset; its whole index is checked.

    Raises:
        InputError: One of its files is missing, or it was changed while it was read.
        IntegrityError: It is damaged, or does not match its manifest.
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
        document_lengths=LengthSummary.of(_document_lengths(dataset)),
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
    import numpy as np

    for first in range(0, dataset.document_count, _CHUNK_DOCUMENTS):
        edges = dataset.document_indices[first : first + _CHUNK_DOCUMENTS + 1]
        lengths = dataset.sequence_lengths[edges[0] : edges[-1]].astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(lengths)))
        yield np.diff(sums[edges - edges[0]])


def _share_with_eod(dataset: IndexedDataset, eod_id: int) -> tuple[float | None, int]:
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


def inspect_document(
    path_prefix: str, document: int, *, tokenizer: str | None = None, multimodal: bool = False
) -> DocumentSummary:
    """Return one document; see :class:`~tokshard.checks.inspect.options.InspectOptions`.

    Raises:
        UsageError: The document does not exist.
        TokenizerMismatchError: The dataset was encoded with another tokenizer.
    """
    dataset = IndexedDataset(path_prefix, multimodal=multimodal)
    count = dataset.document_count
    if not -count <= document < count:
        raise UsageError(
            f"{path_prefix} has no document {document}: it has {count} documents, numbered from 0"
        )
    number = document % count
    tokens = tuple(int(token) for token in dataset.document_tokens(number))
    first, stop = (int(edge) for edge in dataset.document_indices[number : number + 2])
    decoder = tokenizer_of(path_prefix, tokenizer)
    return DocumentSummary(
        path_prefix=path_prefix,
        document=number,
        sequence_lengths=tuple(int(length) for length in dataset.sequence_lengths[first:stop]),
        tokens=tokens,
        text=decode(decoder, tokens) if decoder is not None else None,
    )


def inspect_tokenizer(argument: str) -> TokenizerSummary:
    """Summarize a tokenizer.

    Raises:
        TokenizerError: It cannot be read.
    """
    tokenizer = load_tokenizer(argument, need_eod=False)
    reason = fast_encoder_refusal(tokenizer, special_tokens=False)
    return TokenizerSummary(
        argument=argument,
        identity=tokenizer.identity,
        dtype=choose_dtype(tokenizer.identity.vocab_size, tokenizer.identity.max_token_id),
        eod_token=tokenizer.identity.eod_token,
        eod_id=tokenizer.identity.eod_id,
        max_token_id=tokenizer.identity.max_token_id,
        encoder="reference" if reason else "fast",
        encoder_detail=reason,
        setting=tokenizer.setting,
    )


def tokenizer_of(path_prefix: str, argument: str | None) -> Tokenizer | None:
    """Return the tokenizer to decode the tokens of a dataset with; None if none is known.

    Args:
        path_prefix: The dataset.
        argument: The tokenizer that the user names; by default the one that the manifest records, if its
            file is still there.

    Raises:
        TokenizerMismatchError: The dataset was made with another one.
        TokenizerError: It cannot be read.
    """
    manifest = read_manifest(path_prefix)
    recorded = manifest.tokenizer if manifest is not None else None
    if argument is None:
        return recorded_tokenizer(manifest)
    settings = TikTokenizerSettings.of_encoding(recorded.name) if recorded is not None else None
    tokenizer = load_tokenizer(argument, need_eod=False, tiktoken=settings)
    comparison = compare_definitions(recorded, tokenizer.identity)
    if comparison.verdict == "different":
        raise TokenizerMismatchError(
            f"{path_prefix} was encoded with another tokenizer than {argument}: "
            f"{', '.join(comparison.details)}",
            hint="pass the tokenizer that the dataset was encoded with",
        )
    return tokenizer
