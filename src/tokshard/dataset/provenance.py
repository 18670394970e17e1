"""Provenance of a dataset, from ``PREFIX.tokshard/provenance.bin``: where the record of each document is.

The documents are in the order of the inputs, those of a shuffled dataset as well: :mod:`document_order
<tokshard.dataset.document_order>` has the order of the dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokshard.dataset.manifest import PROVENANCE_NAME, Manifest, file_of
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.fs import isfile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.storage.syscalls import Buffer

ORIGIN = np.dtype([("offset", "<i8"), ("line", "<i8")])
"""The record of a document: its byte offset in the decompressed input, or the number of its row from 0; and
the number of its line or row from 1."""


def open_origins(path_prefix: str, manifest: Manifest) -> NDArray[np.void] | None:
    """Return the origins of the documents of a dataset, mapped, :data:`ORIGIN`; None if it has none.

    Raises:
        IntegrityError: The file is missing, or its size does not fit the documents.
        StorageError: It cannot be read.
    """
    if manifest.files.provenance is None:
        return None
    path = file_of(path_prefix, PROVENANCE_NAME)
    if not isfile(path):
        raise IntegrityError(f"file not found: {path} (listed in the manifest)", path=path)
    file = InputFile(path)
    expected = ORIGIN.itemsize * manifest.counts.documents
    if file.size_bytes != expected:
        raise IntegrityError(
            f"{path} must have {expected} bytes for the documents of the dataset, got {file.size_bytes}",
            path=path,
            hint="copy it again from its source, or rebuild the dataset",
        )
    return np.frombuffer(file.map(), ORIGIN)


def with_lines_before(content: Buffer, lines: int) -> bytes:
    """Return origins with so many more lines before them; a negative number takes lines away."""
    origins = np.frombuffer(content, ORIGIN).copy()
    origins["line"] += lines
    return origins.tobytes()
