"""Views of datasets, written from pieces that a test chooses."""

from __future__ import annotations

import numpy as np

from tokshard.dataset.fingerprint import FingerprintedIndex
from tokshard.dataset.view import ViewedDataset, write_view
from tokshard.storage.digest import FileRecord


def view_of(dataset, view, pieces):
    """Write a view of pieces of a dataset: (first token in the .bin, tokens); return its prefix."""
    opened = FingerprintedIndex.open(str(dataset))
    known = opened.fingerprint
    viewed = ViewedDataset(
        path_prefix=str(dataset),
        bin_bytes=known.bin_bytes,
        idx=FileRecord(known.idx_bytes, known.idx_xxh3_128),
        manifest_fingerprint=known.manifest_fingerprint,
        bin_pieces_xxh3_128=known.bin_pieces_xxh3_128,
    )
    table = np.array(pieces, np.int64).reshape(-1, 2)
    dtype = opened.table.dtype
    pointers, lengths = table[:, 0] * dtype.itemsize, table[:, 1].astype(np.int32)
    write_view(str(view), viewed, dtype, pointers, lengths, opened.tokenizer)
    return str(view)
