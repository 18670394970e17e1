"""The datasets of a plan while they are open: not too many at once, and each opened as seldom as can be."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import open_data
from tokshard.gpt_index.samples import GPTSamples
from tokshard.storage.paths import bin_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES_PER_SHARD = 6
"""The open files of a dataset: both of its own, the three arrays of its index, and one for readahead."""


class Shard:
    """An open dataset.

    Args:
        dataset: Its tokens.
        samples: Its samples; None where they are its documents.
    """

    def __init__(self, dataset: IndexedDataset, samples: GPTSamples | None) -> None:
        self.dataset = dataset
        self.samples = samples
        self._file = open_data(bin_path(dataset.path_prefix))
        self._is_remote = is_remote(dataset.path_prefix)

    def read_ahead(self, samples: NDArray[np.int64]) -> None:
        """Say that the tokens of some samples will be read soon: to the kernel, or to a remote file."""
        firsts, sizes = self.extents(samples)
        for first_byte, size_bytes in zip(firsts.tolist(), sizes.tolist(), strict=True):
            self._file.prefetch(first_byte, size_bytes)

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Have the tokens of samples that are read now fetched side by side, if they are remote."""
        if self._is_remote:
            self.read_ahead(samples)

    def extents(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the tokens of samples lie in the ``.bin`` file, without checking anything.

        Args:
            samples: Numbers of samples, or of documents.

        Returns:
            The first byte and the bytes of each piece, sample by sample: int64 of shape (pieces,).
        """
        index, size = self.dataset.index, self.dataset.dtype.itemsize
        if self.samples is None:
            edges = np.stack((samples, samples + 1), axis=1)
            sequences = self.dataset.document_indices[edges].ravel().tolist()
            bounds = np.array(list(map(index.first_token, sequences)), np.int64).reshape(-1, 2) * size
            return bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        arrays = self.samples.index
        places = np.asarray(arrays.shuffle_index)[samples].astype(np.int64)
        rows = np.asarray(arrays.sample_index)
        begins, ends = rows[places].astype(np.int64), rows[places + 1].astype(np.int64)
        counts = ends[:, 0] - begins[:, 0] + 1
        stops = np.cumsum(counts)
        entries = np.arange(stops[-1]) + np.repeat(begins[:, 0] - stops + counts, counts)
        documents = np.asarray(arrays.document_index)[entries]
        firsts = index.sequence_pointers[documents]
        lengths = index.sequence_lengths[documents].astype(np.int64)
        lengths[stops - 1] = ends[:, 1] + int(arrays.plan.extra_token)
        firsts[stops - counts] += begins[:, 1] * size
        lengths[stops - counts] -= begins[:, 1]
        return firsts, lengths * size


@dataclass(slots=True)
class _Entry:
    """A dataset that is open or being opened; ``round`` is None until it has been read from."""

    opening: Future[Shard]
    round: int | None


class OpenShards:
    """The open datasets, by their numbers; threads may share it.

    Opening costs a pass over the ``.idx`` file. Where there are more datasets than may be open, the one
    that was read least recently is closed. One that was opened ahead and not read yet goes last, and
    opening ahead never closes what the micro-batch under way reads: so where shards are read one after the
    other, each is opened once, however few may be open.

    Args:
        opener: Opens a dataset by its number.
        capacity: How many may be open at once, 1 or more.
    """

    def __init__(self, opener: Callable[[int], Shard], capacity: int) -> None:
        self._opener = opener
        self._capacity = max(1, capacity)
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._round = 0
        self._micro_batch = -1

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, micro_batch: int) -> None:
        """Begin to read a micro-batch: what earlier ones have read may be closed for opening ahead."""
        with self._lock:
            self._round += 1
            self._micro_batch = micro_batch

    def use(self, number: int) -> Shard:
        """Return a dataset to read from, opened if need be."""
        with self._lock:
            entry, is_new = self._entry(number)
            if is_new:
                self._close_for(number, reading=True)
            entry.round = self._round
            self._entries.move_to_end(number)
        return self._opened(number, entry, is_new=is_new)

    def ahead(self, number: int, micro_batch: int) -> Shard | None:
        """Return a dataset that a later micro-batch will read from.

        Returns:
            None where it is not open, and may not be by now: others are still needed, or the micro-batch is
            not a later one any more.
        """
        with self._lock:
            if number not in self._entries:
                late = micro_batch <= self._micro_batch
                if late or not self._close_for(number, reading=False):
                    return None
            entry, is_new = self._entry(number)
        return self._opened(number, entry, is_new=is_new)

    def close(self) -> None:
        """Let go of all datasets."""
        with self._lock:
            self._entries.clear()

    def _entry(self, number: int) -> tuple[_Entry, bool]:
        entry = self._entries.get(number)
        if entry is not None:
            return entry, False
        self._entries[number] = entry = _Entry(Future(), None)
        return entry, True

    def _close_for(self, number: int, *, reading: bool) -> bool:
        """Close datasets until there is room for one; tell whether there is."""
        while len(self._entries) - (number in self._entries) >= self._capacity:
            others = [other for other in self._entries if other != number]
            done = [other for other in others if self._is_done(other, reading=reading)]
            if not done and not reading:
                return False
            del self._entries[(done or others)[0]]
        return True

    def _is_done(self, number: int, *, reading: bool) -> bool:
        last = self._entries[number].round
        return last is not None and (reading or last < self._round)

    def _opened(self, number: int, entry: _Entry, *, is_new: bool) -> Shard:
        if is_new:
            try:
                entry.opening.set_result(self._opener(number))
            except BaseException as error:
                with self._lock:
                    if self._entries.get(number) is entry:
                        del self._entries[number]
                entry.opening.set_exception(error)
                raise
        return entry.opening.result()
