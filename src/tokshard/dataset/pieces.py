"""Pieces of a ``.bin`` file that have digests: the units of work, or those of ``pieces.jsonl``.

The documents of a unit are consecutive in the file unless documents were shuffled. Then ``pieces.jsonl``
lists pieces, and ``order.bin`` the number of each document in the order of the units.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokshard.dataset.manifest import PIECES_NAME, UNITS_NAME, Manifest, file_of
from tokshard.dataset.parameters import MergeParameters
from tokshard.dataset.records import PieceRecord, UnitRecord, read_records


def pieces_path(path_prefix: str, manifest: Manifest) -> str:
    """Return the path of the file that lists the pieces of a dataset."""
    return file_of(path_prefix, UNITS_NAME if manifest.files.pieces is None else PIECES_NAME)


def read_pieces(path_prefix: str, manifest: Manifest) -> Iterator[PieceRecord]:
    """Yield the pieces of the ``.bin`` file of a dataset, in order.

    Raises:
        IntegrityError: The file that lists them is missing or damaged.
        StorageError: It cannot be read.
    """
    path = pieces_path(path_prefix, manifest)
    if manifest.files.pieces is not None:
        yield from read_records(PieceRecord, path)
        return
    for unit in read_records(UnitRecord, path):
        counts = unit.counts
        yield PieceRecord(counts.documents, counts.sequences, counts.tokens, unit.tokens_xxh3_128)


def shuffle_text(manifest: Manifest) -> str | None:
    """Return the order of shuffled documents for people; None if they are in the order of the units."""
    if manifest.files.order is None:
        return None
    options = manifest.options
    shuffle = options.shuffle if isinstance(options, MergeParameters) else None
    if shuffle is None:
        return "documents of merged datasets were shuffled"
    return f"documents are shuffled with seed {shuffle.seed} ({shuffle.ALGORITHM})"
