"""Order of the documents of a shuffled dataset, from ``PREFIX.tokshard/order.bin``.

The file has, for each document, its number in the order of the units (``i64``). Everything that is recorded
for documents, such as their positions in the inputs, is in the order of the units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.dataset.manifest import ORDER_NAME, Manifest, file_of
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.fs import isfile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_SEARCHED_ENTRIES = 1 << 22
_HINT = "copy it again from its source, or rebuild the dataset"


class DocumentOrder:
    """The order of the documents of a dataset. The file is mapped.

    Args:
        path_prefix: The dataset.
        documents: The number of its documents.

    Raises:
        IntegrityError: The file is missing, or its size does not fit the documents.
        StorageError: It cannot be read.
    """

    def __init__(self, path_prefix: str, documents: int) -> None:
        self._path = file_of(path_prefix, ORDER_NAME)
        if not isfile(self._path):
            raise IntegrityError(f"file not found: {self._path} (listed in the manifest)", path=self._path)
        file = InputFile(self._path)
        if file.size_bytes != 8 * documents:
            text = f"must have {8 * documents} bytes for the documents of the dataset, got {file.size_bytes}"
            raise IntegrityError(f"{self._path} {text}", path=self._path, hint=_HINT)
        self._numbers = np.frombuffer(file.map(), "<i8")

    @classmethod
    def open(cls, path_prefix: str, manifest: Manifest) -> Self | None:
        """Return the order of a dataset; None if its documents are in the order of the units."""
        if manifest.files.order is None:
            return None
        return cls(path_prefix, manifest.counts.documents)

    def numbers(self, documents: Integers) -> Integers:
        """Return the number of each document in the order of the units.

        Raises:
            IntegrityError: A number is not that of a document.
        """
        numbers: Integers = self._numbers[documents]
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self._numbers):
            raise self._damaged("a number is beyond the documents of the dataset")
        return numbers

    def document(self, number: int) -> int:
        """Return the document with a number in the order of the units; reads the file up to there.

        Raises:
            IntegrityError: There is none.
        """
        for first in range(0, len(self._numbers), _SEARCHED_ENTRIES):
            found = np.flatnonzero(self._numbers[first : first + _SEARCHED_ENTRIES] == number)
            if found.size:
                return first + int(found[0])
        raise self._damaged(f"the number {number} is missing")

    def _damaged(self, problem: str) -> IntegrityError:
        return IntegrityError(f"{self._path} is damaged: {problem}", path=self._path, hint=_HINT)
