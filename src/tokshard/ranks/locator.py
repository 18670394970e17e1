"""Lookup of sample ids: the dataset and sample of each, and the keys that samples can be sorted by.

================  ============  ============================================================
sort key          kinds         meaning
================  ============  ============================================================
``length``        documents     the tokens of a document
``sequences``     documents     its sequences
``pieces``        index, blend  the pieces of documents that a sample is made of
================  ============  ============================================================

The last label of a sample counts as a piece if it belongs to another document, but not in packed samples,
whose pieces are their documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.sources import DatasetReference, SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


_BLOCK = 1 << 22


class Locator:
    """Maps sample ids to datasets and to the samples in them.

    The arrays of a blend are mapped at the first question; otherwise no file is opened.

    Args:
        source: The samples.
    """

    def __init__(self, source: SampleSource) -> None:
        self.source = source
        self._samples = np.array([dataset.samples for dataset in source.datasets], dtype=np.int64)
        self._firsts = np.array([dataset.first for dataset in source.datasets], dtype=np.int64)
        self._bounds = source.bounds if source.order is None else None
        self._arrays: tuple[NDArray[Any], NDArray[Any]] | None = None

    def locate(self, ids: Integers) -> tuple[NDArray[np.int16], Integers]:
        """Return the number of the dataset of each id, and the number of the sample within it.

        Args:
            ids: int64 of shape ``(n,)``.

        Returns:
            int16 and int64 of shape ``(n,)``. Samples are those of the dataset's index; of documents they
            are the numbers of the documents.

        Raises:
            IndexError: An id is negative or not below the total.
            IntegrityError: The files of the blend have changed, or name what there is not.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= self.source.total):
            raise IndexError(f"sample ids must be from 0 to {self.source.total - 1}")
        if self._bounds is None:
            return self._locate_blended(ids)
        # Datasets without a sample begin where the next one does: the last one that begins there has it.
        dataset = np.searchsorted(self._bounds, ids, side="right") - 1
        return dataset.astype(np.int16), ids - self._bounds[dataset] + self._firsts[dataset]

    def count(self, first: int, stop: int) -> Integers:
        """Count the samples of each dataset among consecutive ids.

        Args:
            first: The first id.
            stop: The end of the ids; at most the total (trusted).

        Returns:
            int64 of shape ``(datasets,)``.

        Raises:
            IntegrityError: See :meth:`locate`.
        """
        if self._bounds is not None:
            edges: Integers = np.clip(self._bounds, first, max(first, stop))
            return np.diff(edges)
        counts = np.zeros(self._samples.size, dtype=np.int64)
        for begin in range(first, stop, _BLOCK):
            block = self._blend()[0][begin : min(begin + _BLOCK, stop)]
            if block.min() < 0 or block.max() >= counts.size:
                raise self._wrong("the blend has samples of a dataset that does not exist")
            counts += np.bincount(block, minlength=counts.size)
        return counts

    def _locate_blended(self, ids: Integers) -> tuple[NDArray[np.int16], Integers]:
        dataset, sample = (array[ids] for array in self._blend())
        unknown = (dataset < 0) | (dataset >= self._samples.size)
        unknown |= (sample < 0) | (sample >= self._samples[np.where(unknown, 0, dataset)])
        if unknown.any():
            place = int(np.argmax(unknown))
            raise self._wrong(
                f"sample {int(ids[place])} of the blend is sample {int(sample[place])} of dataset "
                f"{int(dataset[place])}, which does not exist"
            )
        return dataset, sample

    def _blend(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if self._arrays is None:
            self._arrays = self._open()
        return self._arrays

    def _open(self) -> tuple[NDArray[Any], NDArray[Any]]:
        files = self.source.order
        if files is None:
            raise IndexError("only a blend has arrays")
        arrays = files.open()
        dataset, sample = arrays["dataset_index"], arrays["dataset_sample_index"]
        expected = (self.source.total,)
        if dataset.shape != expected or sample.shape != expected or dataset.dtype != np.int16:
            raise self._wrong(
                f"the arrays of the blend must be int16 of shape {expected}, got {dataset.dtype.name} of "
                f"shape {dataset.shape} and {sample.shape}"
            )
        return dataset, sample

    def _wrong(self, problem: str) -> IntegrityError:
        path = self.source.order.array_path("dataset_index") if self.source.order else ""
        return IntegrityError(
            f"{path}: {problem}",
            path=path,
            hint="run tokshard blend again with --rebuild, then tokshard shard-plan with --force",
        )


def open_sort_key(source: SampleSource, name: str) -> Callable[[Integers], Integers]:
    """Return the function from the ids of samples to their sort keys.

    Files are opened at the first question about their dataset, and stay open: ``.idx`` files of documents,
    the sample index and the shuffle index of others. The tokens are never read.

    Raises:
        UsageError: The source has no such key.
    """
    if name not in source.sort_keys:
        raise UsageError(
            f"samples of kind {source.kind} do not support the sort key {name!r}",
            hint=f"use one of {', '.join(source.sort_keys)}",
        )
    return _SortKey(source, _READERS[name])


class _SortKey:
    def __init__(self, source: SampleSource, reader: _KeyReader) -> None:
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
    is_packed = index.plan.packed is not None

    def pieces(samples: Integers) -> Integers:
        places = order[samples].astype(np.int64)
        counts: Integers = rows[places + 1, 0].astype(np.int64) - rows[places, 0] + 1
        return counts - (rows[places + 1, 1] == 0) if is_packed else counts

    return pieces


_KeyReader = Callable[[DatasetReference], Callable[["Integers"], "Integers"]]
_READERS: dict[str, _KeyReader] = {"length": _lengths, "sequences": _sequences, "pieces": _pieces}
