"""The documents' own ids, recorded by ``tokenize --id-field``: read by document, and searched by id.

``PREFIX.tokshard/ids.bin`` holds the ids as UTF-8, one after the other in the order of the units, and
``PREFIX.tokshard/ids-index.bin`` (little endian, ``N`` documents):

=====================  =====================================================
``u64[N]``             where the id of each document ends in ``ids.bin``
``(u64, i64)[N]``      the XXH3-64 of each id and its document, in ascending order
=====================  =====================================================

Documents are numbered there in the order of the units, from which a shuffle differs
(:mod:`tokshard.dataset.document_order`). Both are mapped: a search reads one page of them for each step of a
bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import numpy as np
import xxhash

from tokshard.dataset.document_order import DocumentOrder
from tokshard.dataset.manifest import IDS_INDEX_NAME, IDS_NAME, Manifest, file_of, read_manifest
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.fs import isfile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.dataset.layout import Buffer

INDEX_BYTES_OF_DOCUMENT = 24
"""Bytes of ``ids-index.bin`` for each document: the end of its id, and an entry of the sorted table."""

_PIECE_DOCUMENTS = 1 << 16
_HINT = "copy it again from its source, or rebuild the dataset"


def id_hash(encoded: bytes) -> int:
    """Return the hash by which ids are sorted: the XXH3-64 of the id as UTF-8.

    Example:
        >>> hex(id_hash(b"a"))
        '0xe6c632b61e964e1f'
    """
    return xxhash.xxh3_64_intdigest(encoded)


class DocumentIds:
    """The ids of the documents of a dataset. Different documents may have the same id.

    Memory: none but the pages of the files that are read.

    Args:
        path_prefix: The dataset.
        documents: The number of its documents.
        order: The order of its documents, if they were shuffled.

    Raises:
        IntegrityError: A file is missing, or its size does not fit the documents.
        StorageError: A file cannot be read.
    """

    def __init__(self, path_prefix: str, documents: int, order: DocumentOrder | None = None) -> None:
        index = _map(path_prefix, IDS_INDEX_NAME)
        self._order = order
        self._path = file_of(path_prefix, IDS_NAME)
        self._data = memoryview(_map(path_prefix, IDS_NAME))
        if len(index) != INDEX_BYTES_OF_DOCUMENT * documents:
            path = file_of(path_prefix, IDS_INDEX_NAME)
            raise IntegrityError(
                f"{path} must have {INDEX_BYTES_OF_DOCUMENT * documents} bytes for the documents of the "
                f"dataset, got {len(index)}",
                path=path,
                hint=_HINT,
            )
        self.ends: NDArray[np.uint64] = np.frombuffer(index, "<u8", documents)
        """Where the id of each document ends in ``ids.bin``, in the order of the units."""
        self.table: NDArray[np.uint64] = np.frombuffer(index, "<u8", offset=8 * documents).reshape(-1, 2)
        """The hash of each id and its document in the order of the units, ascending; ``[documents, 2]``."""

    @classmethod
    def open(cls, path_prefix: str, manifest: Manifest | None = None) -> Self | None:
        """Return the ids of a dataset; None if it has no recorded ids.

        ``manifest``: the manifest of the dataset; read if it is not passed.
        """
        manifest = manifest or read_manifest(path_prefix)
        if manifest is None or not manifest.has_ids:
            return None
        order = DocumentOrder.open(path_prefix, manifest)
        return cls(path_prefix, manifest.dataset.documents, order)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, document: int) -> str:
        if self._order is not None and 0 <= document < len(self):
            document = int(self._order.numbers(np.array([document]))[0])
        return self._decode(self.encoded(document), document)

    def slice(self, begin: int, end: int) -> list[str]:
        """Return the ids of the documents from ``begin`` to ``end - 1``."""
        if self._order is not None:
            return [self[document] for document in range(begin, end)]
        return [
            self._decode(encoded, document)
            for document, encoded in enumerate(self.encoded_slice(begin, end), begin)
        ]

    def find(self, identifier: str) -> NDArray[np.int64]:
        """Return the documents with an id, ascending; usually one or none."""
        try:
            wanted = identifier.encode("utf-8")
        except UnicodeEncodeError:  # half of a surrogate pair: not in a file
            return np.empty(0, np.int64)
        hashed = id_hash(wanted)
        found = []
        for place in range(*self.places_of_hashes(hashed, hashed)):
            document = int(self.table[place, 1])
            if document >= len(self):
                raise self._damaged(f"entry {place} of its index is of document {document}")
            if self.encoded(document) == wanted:
                found.append(document)
        if self._order is not None:
            found = sorted(map(self._order.document, found))
        return np.array(found, np.int64)

    def places_of_hashes(self, first: int, last: int) -> tuple[int, int]:
        """Return the begin and the end, in the table, of the hashes from ``first`` to ``last``."""
        places = range(len(self))
        return (
            bisect_left(places, first, key=lambda place: int(self.table[place, 0])),
            bisect_right(places, last, key=lambda place: int(self.table[place, 0])),
        )

    def encoded(self, document: int) -> bytes:
        """Return the id of a document, numbered in the order of the units, as UTF-8."""
        if not 0 <= document < len(self):
            raise IndexError(f"document must be from 0 to {len(self) - 1}, got {document}")
        begin = int(self.ends[document - 1]) if document else 0
        end = int(self.ends[document])
        if not begin <= end <= len(self._data):
            raise self._damaged(f"the id of document {document} is at bytes {begin} to {end}")
        return bytes(self._data[begin:end])

    def encoded_slice(self, begin: int, end: int) -> list[bytes]:
        """Return the ids of documents, numbered in the order of the units, as UTF-8."""
        first, lengths = self._places(begin, end)
        stops = (np.cumsum(lengths) + first).tolist()
        return [
            bytes(self._data[stop - length : stop])
            for stop, length in zip(stops, lengths.tolist(), strict=True)
        ]

    def pieces(self) -> Iterator[tuple[memoryview, NDArray[np.int64]]]:
        """Yield all ids in the order of the units, concatenated, and the bytes of each of them."""
        for begin in range(0, len(self), _PIECE_DOCUMENTS):
            first, lengths = self._places(begin, min(begin + _PIECE_DOCUMENTS, len(self)))
            yield self._data[first : first + int(lengths.sum())], lengths

    def check_ends(self) -> None:
        """Raise IntegrityError unless the ids follow each other and fill ``ids.bin``."""
        end = 0
        for data, _ in self.pieces():
            end += len(data)
        if end != len(self._data):
            raise self._damaged(f"the ids of all documents end at byte {end} of {len(self._data)}")

    def _places(self, begin: int, end: int) -> tuple[int, NDArray[np.int64]]:
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"documents must be from 0 to {len(self)}, got {begin} to {end}")
        first = int(self.ends[begin - 1]) if begin else 0
        edges = self.ends[begin:end].astype(np.int64)
        lengths = np.diff(edges, prepend=first)
        if (lengths < 0).any() or (end > begin and not 0 <= first <= int(edges[-1]) <= len(self._data)):
            raise self._damaged(f"the ids of documents {begin} to {end - 1} are not one after the other")
        return first, lengths

    def _decode(self, encoded: bytes, document: int) -> str:
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"the id of document {document} is not UTF-8: {error.reason}") from None

    def _damaged(self, problem: str) -> IntegrityError:
        return IntegrityError(f"{self._path} is damaged: {problem}", path=self._path, hint=_HINT)


def _map(path_prefix: str, name: str) -> Buffer:
    path = file_of(path_prefix, name)
    if not isfile(path):
        raise IntegrityError(f"file not found: {path} (listed in the manifest)", path=path, hint=_HINT)
    return InputFile(path).map()
