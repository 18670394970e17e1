"""Checks of the pieces of a dataset that have digests, and of the order of shuffled documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.verify.context import VerifyContext
from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset.layout import CHUNK_ENTRIES
from tokshard.dataset.manifest import ORDER_NAME, Manifest, file_of
from tokshard.dataset.pieces import pieces_path, read_pieces
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.storage.digest import piecewise_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNTS = ("documents", "sequences", "tokens")


@dataclass(frozen=True, slots=True)
class PieceTable:
    """The pieces of a ``.bin`` file, in order.

    Attributes:
        path: The file that lists them.
        counts: int64 of shape (pieces, 3): documents, sequences, tokens.
        digests: The digest of each piece.
    """

    path: str
    counts: NDArray[np.int64]
    digests: tuple[str, ...]

    def before(self, name: str) -> NDArray[np.int64]:
        """Return the running sum of a column, from 0: int64 of shape (pieces + 1,)."""
        return np.concatenate(([0], np.cumsum(self.counts[:, _COUNTS.index(name)])))

    def off_boundaries(self, boundaries: list[tuple[int, int]]) -> list[int]:
        """Return the pieces that do not end at these sequences and tokens, the ends of documents."""
        ends = zip(self.before("sequences")[1:].tolist(), self.before("tokens")[1:].tolist(), strict=True)
        pairs = enumerate(zip(ends, boundaries, strict=True))
        return [number for number, (end, boundary) in pairs if end != boundary]


def examine_pieces(path_prefix: str, manifest: Manifest, findings: ProductFindings) -> PieceTable | None:
    """Compare the pieces of a dataset with its manifest; None, with a finding, if they are damaged.

    Raises:
        StorageError: The file cannot be read.
    """
    path = pieces_path(path_prefix, manifest)
    if not fs.isfile(path):
        return None  # a finding of the manifest
    try:
        pieces = list(read_pieces(path_prefix, manifest))
    except IntegrityError as error:
        findings.find("units-damaged", error.message, path=path)
        return None
    counts = np.array([[getattr(piece, name) for name in _COUNTS] for piece in pieces], np.int64)
    table = PieceTable(path, counts.reshape(-1, 3), tuple(piece.tokens_xxh3_128 for piece in pieces))
    for text in _count_problems(table, manifest):
        findings.find("units-count", f"{path}: {text}", path=path)
    if piecewise_digest(table.digests) != manifest.files.bin.pieces_xxh3_128:
        text = f"{path}: the digests of its pieces of the .bin contradict the manifest"
        findings.find("units-digest", text, path=path)
    return table


def _count_problems(table: PieceTable, manifest: Manifest) -> Iterator[str]:
    if manifest.files.pieces is None:
        return  # the units are checked as units
    for name in _COUNTS:
        found, wanted = int(table.before(name)[-1]), getattr(manifest.counts, name)
        if found != wanted:
            yield f"its {name} must sum to {wanted} by the manifest, got {found}"


def examine_order(
    path_prefix: str, manifest: Manifest, findings: ProductFindings, context: VerifyContext
) -> None:
    """Check that the order of shuffled documents has the number of each once; needs a byte for each document.

    Raises:
        StorageError: The file cannot be read.
    """
    path, count = file_of(path_prefix, ORDER_NAME), manifest.counts.documents
    if manifest.files.order is None or not fs.isfile(path):
        return
    file = InputFile(path)
    if file.size_bytes != 8 * count:
        return
    found = np.zeros(count, np.bool_)
    for first in range(0, count, CHUNK_ENTRIES):
        numbers = np.empty(min(CHUNK_ENTRIES, count - first), "<i8")
        file.read_into(numbers.data.cast("B"), 8 * first)
        context.runner.count_bytes(numbers.nbytes)
        inside = (numbers >= 0) & (numbers < count)
        found[numbers[inside]] = True
    if not found.all():
        missing = int(found.argmin())
        text = f"{path} must have the number of each of {count} documents once, but {missing} is missing"
        findings.find("order-incomplete", text, path=path)
