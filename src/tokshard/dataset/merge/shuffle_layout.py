"""Division of a shuffle into runs and ranges, so that its memory is bounded.

Documents are sorted by a hash of their number. If they do not fit into memory, the first pass over the tokens
sorts *runs*: consecutive documents of the inputs. Its result is written to scratch files. The second pass
reads, for one *range* of hashes after the other, the documents of the range from all runs. Both are as large
as the memory allows. They determine how the output is made, never what it contains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.keyed_orders import hashes
from tokshard.dataset.merge.merged_documents import InputRange, MergedDocuments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

DOCUMENT_BYTES = 128
"""Memory of the columns of a document, and of copies of them while they are sorted."""

SEQUENCE_BYTES = 24
"""The same for a sequence."""

MAX_GROUPS = 16
"""Scratch files: one is removed when all its ranges are written."""

_CELL_BITS = 16
_APART = 8
_SCANNED_DOCUMENTS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleLayout:
    """The runs and ranges of a shuffle.

    Attributes:
        block_bytes: The memory of a run or range.
        runs: The first document of each run, and the number of documents: int64 of shape (runs + 1,).
        cells: The first cell of hashes of each range, and the number of cells: int64 of shape (ranges + 1,).
        documents: The documents before each range, and all: int64 of shape (ranges + 1,).
        apart: The numbers of the documents that are too large for a run: their tokens are copied from the
            input to the output.
        scratch_bytes: The bytes of tokens in scratch files.
    """

    block_bytes: int
    runs: Integers
    cells: Integers
    documents: Integers
    apart: frozenset[int]
    scratch_bytes: int

    @property
    def run_count(self) -> int:
        """The number of runs."""
        return len(self.runs) - 1

    @property
    def range_count(self) -> int:
        """The number of ranges."""
        return len(self.cells) - 1

    @property
    def is_single_pass(self) -> bool:
        """True if all documents fit into memory, so that there are no scratch files."""
        return self.run_count <= 1

    @property
    def group_count(self) -> int:
        """The number of scratch files with documents."""
        return min(MAX_GROUPS, self.range_count)

    def ranges_of(self, group: int) -> range:
        """Return the ranges whose documents are in a scratch file."""
        edges = [self.range_count * part // self.group_count for part in (group, group + 1)]
        return range(*edges)

    def edges(self, keys: NDArray[np.uint64]) -> Integers:
        """Return where each range begins in sorted hashes, and their number: int64 of shape (ranges + 1,)."""
        inner = self.cells[1:-1].astype(np.uint64) << np.uint64(64 - _CELL_BITS)
        return np.concatenate(([0], np.searchsorted(keys, inner), [len(keys)])).astype(np.int64)


def needed_bytes(documents: int, sequences: int, token_bytes: int) -> int:
    """Return the memory in which documents can be sorted."""
    return token_bytes + DOCUMENT_BYTES * documents + SEQUENCE_BYTES * sequences


def column_bytes(documents: int, sequences: int, *, multimodal: bool) -> int:
    """Return the size of the columns of documents in scratch files."""
    return 25 * documents + (4 + multimodal) * sequences


def lay_out(merged: MergedDocuments, key: int, block_bytes: int) -> ShuffleLayout:
    """Divide a shuffle into runs and ranges that fit ``block_bytes`` of memory; reads all indexes once.

    Args:
        merged: The documents.
        key: The key of the hashes.
        block_bytes: The memory of a run or range. A document that needs more than an eighth is apart.
    """
    scan = _Scan(key, block_bytes)
    for number, base in enumerate(merged.firsts[:-1]):
        count = merged.firsts[number + 1] - base
        for first in range(0, count, _SCANNED_DOCUMENTS):
            part = InputRange(number, first, min(first + _SCANNED_DOCUMENTS, count))
            scan.add(base + first, *merged.sizes(part))
    runs = np.array([*scan.runs, merged.count], np.int64)
    costs = scan.cell_costs.astype(np.int64)
    cells = [0] if len(runs) <= 2 else _grouped(costs, block_bytes)
    bounds = np.array([*cells, len(costs)], np.int64)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(scan.cell_documents)))
    return ShuffleLayout(
        block_bytes=block_bytes,
        runs=runs,
        cells=bounds,
        documents=before[bounds],
        apart=frozenset(scan.apart),
        scratch_bytes=0 if len(runs) <= 2 else scan.token_bytes,
    )


class _Scan:
    def __init__(self, key: int, block_bytes: int) -> None:
        self._key = np.full(1, key, np.uint64)
        self._block_bytes = block_bytes
        self._used = 0
        self.runs = [0]
        self.apart: list[int] = []
        self.token_bytes = 0
        self.cell_costs = np.zeros(1 << _CELL_BITS)  # float64 is exact up to 2**53
        self.cell_documents = np.zeros(1 << _CELL_BITS, np.int64)

    def add(self, first: int, counts: Integers, sizes: Integers) -> None:
        """Add documents, of which ``first`` is the number of the first."""
        apart = np.flatnonzero(sizes > self._block_bytes // _APART)
        self.apart += (first + apart).tolist()
        sizes[apart] = 0
        self.token_bytes += int(sizes.sum())
        costs = sizes + counts * SEQUENCE_BYTES + DOCUMENT_BYTES
        numbers = np.arange(first, first + len(sizes), dtype=np.int64)
        cells = (hashes(self._key, numbers) >> np.uint64(64 - _CELL_BITS)).astype(np.int64)
        self.cell_costs += np.bincount(cells, costs, minlength=len(self.cell_costs))
        self.cell_documents += np.bincount(cells, minlength=len(self.cell_documents))
        ends = np.cumsum(costs)
        begin, before = 0, 0
        while begin < len(ends):
            fitting = int(np.searchsorted(ends, before + self._block_bytes - self._used, side="right"))
            if fitting == begin and not self._used:
                fitting += 1  # a run has at least one document
            if fitting < len(ends):
                self.runs.append(first + fitting)
                begin, before, self._used = fitting, int(ends[fitting - 1]) if fitting else 0, 0
            else:
                self._used += int(ends[-1]) - before
                begin = len(ends)


def _grouped(costs: Integers, limit: int) -> list[int]:
    # The first cell of each range.
    ends = np.cumsum(costs)
    firsts, before = [0], 0
    while (fitting := int(np.searchsorted(ends, before + limit, side="right"))) < len(costs):
        firsts.append(max(fitting, firsts[-1] + 1))
        if firsts[-1] == len(costs):
            return firsts[:-1]
        before = int(ends[firsts[-1] - 1])
    return firsts
