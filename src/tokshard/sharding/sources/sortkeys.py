"""What samples can be sorted by without loading them: numbers that the index files tell.

================  ============  ============================================================
key               kinds         what it is
================  ============  ============================================================
``length``        documents     the tokens of a document
``sequences``     documents     its sequences
``pieces``        index, blend  the pieces of documents that a sample is made of
================  ============  ============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.sources.locator import Locator
from tokshard.sharding.sources.references import DatasetReference
from tokshard.sharding.sources.samples import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def open_sort_key(source: SampleSource, name: str) -> Callable[[Integers], Integers]:
    """Return the function from the ids of samples to their sort keys.

    Files are opened at the first question about their dataset, and stay open: ``.idx`` files of documents,
    the sample index and the shuffle index of others. The tokens are never read.

    Raises:
        UsageError: The source has no such key.
    """
    if name not in source.sort_keys:
        raise UsageError(
            f"samples of kind {source.kind} have no sort key {name!r}",
            hint=f"possible: {', '.join(source.sort_keys)}",
        )
    return _SortKey(source, _READERS[name])


class _SortKey:
    """Answers for any ids, dataset by dataset."""

    def __init__(self, source: SampleSource, reader: _Reader) -> None:
        self._source = source
        self._locator = Locator(source)
        self._reader = reader
        self._open: dict[int, Callable[[Integers], Integers]] = {}

    def __call__(self, ids: Integers) -> Integers:
        datasets, samples = self._locator.locate(ids)
        keys = np.empty(ids.shape, dtype=np.int64)
        for number in np.unique(datasets).tolist():
            if number not in self._open:
                self._open[number] = self._reader(self._source.datasets[number])
            here = datasets == number
            keys[here] = self._open[number](samples[here])
        return keys


def _lengths(reference: DatasetReference) -> Callable[[Integers], Integers]:
    table = reference.open_dataset().index
    edges, itemsize = table.document_indices, table.dtype.itemsize
    pointers, total = table.sequence_pointers, table.token_count

    def first_tokens(sequences: NDArray[Any]) -> Integers:
        inside = sequences < pointers.size
        firsts = np.full(sequences.shape, total, dtype=np.int64)
        firsts[inside] = pointers[sequences[inside]] // itemsize
        return firsts

    return lambda documents: first_tokens(edges[documents + 1]) - first_tokens(edges[documents])


def _sequences(reference: DatasetReference) -> Callable[[Integers], Integers]:
    edges = reference.open_dataset().index.document_indices

    def sequences(documents: Integers) -> Integers:
        counts: Integers = edges[documents + 1] - edges[documents]
        return counts

    return sequences


def _pieces(reference: DatasetReference) -> Callable[[Integers], Integers]:
    index = reference.open_index()
    rows = np.asarray(index.sample_index)
    order = np.asarray(index.shuffle_index)

    def pieces(samples: Integers) -> Integers:
        places = order[samples].astype(np.int64)
        counts: Integers = rows[places + 1, 0].astype(np.int64) - rows[places, 0] + 1
        return counts

    return pieces


_Reader = Callable[[DatasetReference], Callable[["Integers"], "Integers"]]
_READERS: dict[str, _Reader] = {"length": _lengths, "sequences": _sequences, "pieces": _pieces}
