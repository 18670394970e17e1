"""Samples of a blend, an index or a plan as records, in the order in which training reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.open_cache import OpenCache, affordable
from tokshard.dataset.index_file import read_header
from tokshard.dataset.source import InputFile
from tokshard.errors import UsageError
from tokshard.exchange.records import BLOCK_BYTES, fill_from_blocks
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan, Stream, read_plan
from tokshard.ranks.sources import SampleSource
from tokshard.samples.index.samples import NO_PAD_ID, GPTSamples
from tokshard.storage.paths import idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_OPEN_DATASETS = 64
# The maps of both files and of the three arrays of its index.
_FILES_OF_A_DATASET = 5


class SampleRecords:
    """Samples of one length.

    Args:
        name: The product, for messages.
        source: The datasets and indexes.
        count: The number of samples.
        ids_of: Returns the ids of the samples at consecutive places.
        last_label: Whether a sample has its last label, one token more than the sequence length.
        pad_id: The token that fills samples that are shorter than the others; None to refuse them.

    Raises:
        UsageError: The samples do not have a fixed length, or lack what the options require.
    """

    noun = "sample"
    dtype: np.dtype[Any] = np.dtype(np.int64)

    def __init__(
        self,
        name: str,
        source: SampleSource,
        count: int,
        ids_of: Callable[[int, int], Integers],
        *,
        last_label: bool,
        pad_id: int | None,
    ) -> None:
        length = source.sequence_length
        if length is None:
            raise UsageError(
                f"--samples requires samples of a fixed length: those of {name} are documents",
                hint="export its datasets without --samples",
            )
        if last_label and not source.extra_token:
            raise UsageError(
                f"the samples of {name} have no last label", hint="pass --no-last-label to export them"
            )
        padded = [
            d.path_prefix for d in source.datasets if d.index is not None and d.index.epochs.has_padding
        ]
        if pad_id is None and padded:
            raise UsageError(
                f"--pad-id is required: samples of {padded[0]} can be shorter than the others",
                hint="pass the padding token id of the trainer with --pad-id",
            )
        self.name = name
        self.listener: Callable[[int], None] = lambda _: None
        self.count = count
        self.width = length + last_label
        self.tokens = count * self.width
        headers = (read_header(InputFile(idx_path(dataset.path_prefix))) for dataset in source.datasets)
        self.token_dtype = max((header.dtype for header in headers), key=lambda dtype: dtype.itemsize)
        self._source = source
        self._ids_of = ids_of
        self._locator = Locator(source)
        self._pad_id = NO_PAD_ID if pad_id is None else pad_id
        self._open = OpenCache(self._opened, affordable(_OPEN_DATASETS, _FILES_OF_A_DATASET))

    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each sample: int64 of shape (stop - first,)."""
        return np.arange(first + 1, stop + 1, dtype=np.int64) * self.width

    def blocks(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the tokens of whole samples in pieces of about 1 MiB, as int64."""
        rows = max(1, BLOCK_BYTES // self.dtype.itemsize // self.width)
        last = end // self.width
        for first in range(begin // self.width, last, rows):
            yield self._read(first, min(first + rows, last)).reshape(-1)

    def fill(self, target: NDArray[Any], begin: int) -> None:
        """Read the tokens from ``begin`` on into an int64 array."""
        fill_from_blocks(target, self.blocks(begin, begin + len(target)))

    def _read(self, first: int, stop: int) -> NDArray[np.int64]:
        datasets, samples = self._locator.locate(self._ids_of(first, stop))
        batch = np.empty((stop - first, self.width), np.int64)
        for number in np.unique(datasets).tolist():
            here = datasets == number
            batch[here] = self._open.get(number).read_batch(samples[here])[:, : self.width]
        return batch

    def _opened(self, number: int) -> GPTSamples:
        reference = self._source.datasets[number]
        return GPTSamples(reference.open_dataset(), reference.open_index(), pad_id=self._pad_id)


def open_stream(path: str, split: str) -> tuple[Plan, Stream]:
    """Return a plan and one of its streams.

    Raises:
        UsageError: The plan has no such stream.
    """
    plan = read_plan(path)
    if split not in plan.streams:
        raise UsageError(f"--split must be one of {', '.join(plan.streams)} for {path}, got {split!r}")
    return plan, plan.streams[split]


def planned_ids(stream: Stream) -> tuple[int, Callable[[int, int], Integers]]:
    """Return the number of samples that the steps of a plan read, and the function to their ids.

    The order is that of the global batches: micro-batch by micro-batch, within these rank by rank, and
    within a rank's micro-batch row by row.
    """
    assignment, key_of = stream.assignment, stream.open_sort_key()
    size, ranks = assignment.micro_batch_size, assignment.ranks

    def ids_of(first: int, stop: int) -> Integers:
        group, place = np.divmod(np.arange(first, stop, dtype=np.int64), size * ranks)
        rank, row = np.divmod(place, size)
        return assignment.at(rank, group * size + row, key_of)

    return assignment.samples_per_rank * ranks, ids_of


def consecutive_ids(first: int, stop: int) -> Integers:
    """Return the ids of an index or a blend, which training reads in their order."""
    return np.arange(first, stop, dtype=np.int64)
