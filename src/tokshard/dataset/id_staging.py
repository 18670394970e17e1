"""Staging of the files of document ids, for :mod:`tokshard.dataset.document_ids`.

The table of hashes is sorted in bounded memory: the 64-bit hashes are divided into ranges with at most some
million documents, and the source is read once for each range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tokshard.dataset.document_ids import DocumentIds
from tokshard.dataset.manifest import IDS_INDEX_NAME, IDS_NAME
from tokshard.dataset.workdir import DigestingWriter, file_chunks, stage_chunks, stage_file
from tokshard.storage.syscalls import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.storage.digest import FileRecord

    Pairs = NDArray[np.uint64]
    """Hashes and their documents, shape ``[documents, 2]``."""

_RANGE_DOCUMENTS = 1 << 21
_MOST_RANGES = 64  # of more than 128 million documents, the ranges grow instead
_CHUNK_DOCUMENTS = 1 << 19
_BUCKET_BITS = 16


class StagedIds(NamedTuple):
    """The records of the staged files."""

    ids: FileRecord
    ids_index: FileRecord


class HashSource(Protocol):
    """Hashes of ids with their documents, which can be read several times."""

    @property
    def documents(self) -> int:
        """The number of documents."""

    def chunks(self, first: int, last: int) -> Iterator[Pairs]:
        """Yield the pairs whose hash is from ``first`` to ``last``; of one hash, documents ascend."""


def stage_ids(
    directory: str,
    k: int,
    ids: Iterable[Buffer],
    lengths: Iterable[NDArray[np.integer]],
    hashes: HashSource,
) -> StagedIds:
    """Write the staged files of the ids of output ``k``; return their records for the manifest.

    Args:
        directory: The work directory.
        k: The output.
        ids: All ids as UTF-8, in the order of the documents, in pieces.
        lengths: The bytes of each id, in pieces.
        hashes: The hash of each id (:func:`~tokshard.dataset.document_ids.id_hash`) and its document.
    """

    def write(file: DigestingWriter) -> None:
        before = 0
        for piece in lengths:
            ends = np.cumsum(piece, dtype=np.uint64) + np.uint64(before)
            if ends.size:
                before = int(ends[-1])
                file.write(ends.astype("<u8", copy=False).data)
        for pairs in sorted_pairs(hashes):
            if pairs.size:
                file.write(pairs.astype("<u8", copy=False).ravel().data)

    return StagedIds(
        stage_chunks(directory, k, IDS_NAME, ids), stage_file(directory, k, IDS_INDEX_NAME, write)
    )


def copy_staged_ids(directory: str, source: int, k: int) -> StagedIds:
    """Stage the ids of output ``k``, which are those of another staged output."""
    records = [
        stage_chunks(directory, k, name, file_chunks(f"{directory}/{source}.{name}"))
        for name in (IDS_NAME, IDS_INDEX_NAME)
    ]
    return StagedIds(*records)


@dataclass(frozen=True, slots=True)
class HashFile:
    """The hashes of the documents in order, as ``u64`` in a file."""

    path: str
    documents: int

    def chunks(self, first: int, last: int) -> Iterator[Pairs]:
        """Yield the pairs of a range; see :class:`HashSource`."""
        begin = 0
        for content in file_chunks(self.path):
            hashes = np.frombuffer(content, "<u8")
            found = np.flatnonzero(hashes - np.uint64(first) <= np.uint64(last - first))
            yield np.stack([hashes[found], (found + begin).astype(np.uint64)], axis=1)
            begin += hashes.size


@dataclass(frozen=True, slots=True)
class ConcatenatedIds:
    """The hashes of recorded ids of several datasets, whose documents follow each other in the output."""

    ids: Sequence[DocumentIds]

    @property
    def documents(self) -> int:
        """The number of documents."""
        return sum(map(len, self.ids))

    def chunks(self, first: int, last: int) -> Iterator[Pairs]:
        """Yield the pairs of a range; see :class:`HashSource`."""
        before = 0
        for ids in self.ids:
            begin, end = ids.places_of_hashes(first, last)
            for at in range(begin, end, _CHUNK_DOCUMENTS):
                yield ids.table[at : min(at + _CHUNK_DOCUMENTS, end)] + np.array([0, before], np.uint64)
            before += len(ids)


def sorted_pairs(source: HashSource) -> Iterator[Pairs]:
    """Yield all hashes with their documents in ascending order, in pieces."""
    limit = max(_RANGE_DOCUMENTS, -(-source.documents // _MOST_RANGES))
    for first, last in _ranges(source, 0, 64, limit):
        if first == last:  # any number of documents with one id
            yield from source.chunks(first, last)
        else:
            yield _sorted(list(source.chunks(first, last)))


def _sorted(chunks: list[Pairs]) -> Pairs:
    pairs = np.concatenate([np.empty((0, 2), np.uint64), *chunks])
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _ranges(source: HashSource, base: int, bits: int, limit: int) -> Iterator[tuple[int, int]]:
    # Consecutive ranges, first and last hash, that together are [base, base + 2**bits). Each has at most so
    # many documents, or consists of one hash.
    if source.documents <= limit:
        yield base, base + 2**bits - 1
        return
    shift = max(0, bits - _BUCKET_BITS)
    first, gathered = base, 0
    for bucket, count in enumerate(_histogram(source, base, bits, shift).tolist()):
        begin = base + (bucket << shift)
        if gathered + count > limit:
            if begin > first:
                yield first, begin - 1
            first, gathered = begin, 0
            if count > limit:
                if shift:
                    yield from _ranges(source, begin, shift, limit)
                else:
                    yield begin, begin
                first = begin + (1 << shift)
                continue
        gathered += count
    if first < base + 2**bits:
        yield first, base + 2**bits - 1


def _histogram(source: HashSource, base: int, bits: int, shift: int) -> NDArray[np.int64]:
    counts = np.zeros(2 ** (bits - shift), np.int64)
    for pairs in source.chunks(base, base + 2**bits - 1):
        buckets = (pairs[:, 0] - np.uint64(base)) >> np.uint64(shift)
        counts += np.bincount(buckets.astype(np.int64), minlength=counts.size)
    return counts
