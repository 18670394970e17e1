"""Reader of micro-batches: open datasets, the samples of the schedule, and reading ahead."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.open_cache import OpenCache, affordable
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import open_data
from tokshard.errors import TokshardError, UsageError
from tokshard.loader.assembly import BatchOptions, DocumentAssembly, MicroBatch, RawSamples, SampleAssembly
from tokshard.loader.memory import Memory
from tokshard.loader.padding import PaddedSampleAssembly
from tokshard.loader.ranges import ChunkRanges
from tokshard.loader.schedule import MicroBatchSchedule, SampleRefs
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.topology import Coordinates, Topology, context_slices
from tokshard.samples.index.packing import pack_words
from tokshard.samples.index.samples import GPTSamples, Sample
from tokshard.samples.index.spans import document_extents
from tokshard.storage.paths import bin_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

Assembly = SampleAssembly | PaddedSampleAssembly | DocumentAssembly

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
        """Prefetch the tokens of samples: into the page cache, or from the object store."""
        firsts, sizes = self.extents(samples)
        for first_byte, size_bytes in zip(firsts.tolist(), sizes.tolist(), strict=True):
            self._file.prefetch(first_byte, size_bytes)

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the tokens of samples concurrently if the dataset is remote."""
        if self._is_remote:
            self.read_ahead(samples)

    def extents(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the byte ranges of the ``.bin`` file that hold the tokens of samples.

        Args:
            samples: Numbers of samples, or of documents.

        Returns:
            The first byte and the bytes of each piece, sample by sample: int64 of shape (pieces,).

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        table = self.dataset.index
        if self.samples is None:
            return document_extents(table, samples)
        return self.samples.spans.of_samples(samples).extents(table)


class OpenShards(OpenCache[int, Shard]):
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
        super().__init__(opener, max(1, capacity))
        self._round = 0
        self._micro_batch = -1
        # The round of the last read, by dataset; an open one without it was opened ahead and not read yet.
        self._last_read: dict[int, int] = {}

    def begin(self, micro_batch: int) -> None:
        """Begin to read a micro-batch: what earlier ones have read may be closed for opening ahead."""
        with self._lock:
            self._round += 1
            self._micro_batch = micro_batch

    def ahead(self, number: int, micro_batch: int) -> Shard | None:
        """Return a dataset that a later micro-batch will read from.

        Returns:
            None where it is not open, and may not be by now: others are still needed, or the micro-batch is
            not a later one any more.
        """
        with self._lock:
            if number not in self._entries:
                if micro_batch <= self._micro_batch or not self._make_room():
                    return None
                self._last_read.pop(number, None)
            entry, is_new = self._entry(number)
        return self._opened(number, entry, is_new=is_new)

    def _make_room(self) -> bool:
        while len(self._entries) >= self._capacity:
            done = (n for n in self._entries if self._last_read.get(n, self._round) < self._round)
            if (number := next(done, None)) is None:
                return False
            del self._entries[number]
        return True

    def _touch(self, key: int) -> None:
        self._entries.move_to_end(key)
        self._last_read[key] = self._round

    def _next_dropped(self) -> int:
        others = list(self._entries)[:-1]  # the last one is being read
        return next((number for number in others if number in self._last_read), others[0])


class Readahead:
    """Thread that prefetches micro-batches ahead of the reader. It starts when it is first needed.

    It is woken for several micro-batches at once, when half of those ahead are left: waking it costs more
    than its work. Whatever goes wrong ahead is left to happen again, and to be reported, when it is read.

    Args:
        advise: Called in the thread with a range of micro-batches.
        count: How many to keep ahead; 0 for no thread.
        end: The number of micro-batches that there are.
    """

    def __init__(self, advise: Callable[[range], None], count: int, end: int) -> None:
        self._advise = advise
        self._count = count
        self._end = end
        self._next = 0
        self._started = False
        self._ranges: SimpleQueue[range | None] = SimpleQueue()

    def follow(self, number: int) -> None:
        """Note that a micro-batch is about to be read; return at once."""
        if not self._count:
            return
        if not self._started:
            self._start()
        left = self._next - number - 1
        if self._count // 2 < left <= self._count:
            return
        first = self._next if 0 <= left <= self._count else number + 1
        last = min(number + 1 + self._count, self._end)
        if first < last:
            self._ranges.put(range(first, last))
        self._next = number + 1 + self._count

    def _start(self) -> None:
        self._started = True
        thread = threading.Thread(
            target=_work, args=(self._ranges, self._advise), name="tokshard-readahead", daemon=True
        )
        thread.start()
        # The thread knows the queue and not this object, whose end is its end.
        weakref.finalize(self, self._ranges.put, None)


def _work(ranges: SimpleQueue[range | None], advise: Callable[[range], None]) -> None:
    while (numbers := ranges.get()) is not None:
        with suppress(TokshardError, OSError, IndexError, ValueError):
            advise(numbers)


class MicroBatchReader:
    """Reader and assembler of the micro-batches of one rank. Threads may share it.

    Args:
        source: The samples.
        schedule: The samples of each micro-batch.
        assembly: What becomes of them.
        shards: The open datasets.
    """

    def __init__(
        self,
        source: SampleSource,
        schedule: MicroBatchSchedule,
        assembly: Assembly,
        shards: OpenShards,
    ) -> None:
        self.schedule = schedule
        self.assembly = assembly
        self._shards = shards
        self._memory = Memory()
        self._width = (source.sequence_length or 0) + int(source.extra_token)
        self._size = schedule.order.micro_batch_size
        # Two, as the schedule has chunks.
        self._chunks: tuple[ChunkRanges, ...] = ()
        # The dataset of a source of one, which is open as long as it is read.
        self._has_one = len(source.datasets) == 1
        self._only: Shard | None = None

    def micro_batch(self, number: int) -> MicroBatch:
        """Return a micro-batch by its number, see :meth:`read`; fastest for one after the other.

        Raises:
            IndexError: The micro-batch does not exist.
            MissingFileError, IntegrityError: A file is not there, or not the one that the plan was made for.
        """
        first = number * self._size
        for chunk in self._chunks:
            if chunk.first <= first and first + self._size <= chunk.end:
                break
        else:
            self.schedule.check(number)
            chunk = ChunkRanges(*self.schedule.chunk(first, self._size))
            if chunk.end - chunk.first > self._size:  # else it is a jump, and is not needed again
                self._chunks = (chunk, *self._chunks[:1])
        first -= chunk.first
        return self._read(chunk, first, first + self._size, number)

    def read(self, selected: SampleRefs, number: int) -> MicroBatch:
        """Return the fields of some samples as one micro-batch; nothing is opened for a rank without any.

        Args:
            selected: The samples.
            number: The micro-batch that they begin.

        Raises:
            MissingFileError, IntegrityError: A file is not there, or not the one that the plan was made for.
        """
        return self._read(ChunkRanges(number * self._size, selected), 0, len(selected.ids), number)

    def _read(self, chunk: ChunkRanges, first: int, last: int, number: int) -> MicroBatch:
        assembly = self.assembly
        if not assembly.fields:
            return {}
        if not self._has_one:
            self._shards.begin(number)
        if isinstance(assembly, SampleAssembly) and assembly.extra_token and not assembly.needs_pieces:
            batch = self._copied(chunk, first, last, assembly)
        else:
            batch = self._assembled(chunk.refs.part(first, last), assembly)
        if assembly.options.repeated:
            batch["repeated"] = self.schedule.repeated(number * self._size, last - first)
        return batch

    def _copied(self, chunk: ChunkRanges, first: int, last: int, assembly: SampleAssembly) -> MicroBatch:
        # Copies tokens from the maps of the datasets straight to the labels of the micro-batch.
        arrays = assembly.arrays(last - first, self._memory)
        tokens, labels, *_ = arrays
        datasets = chunk.datasets[first:last]
        if datasets.count(datasets[0]) == len(datasets):
            samples = self._samples(datasets[0], chunk.refs.samples[first:last])
            tokens[:, 0], padded = chunk.copy(range(first, last), samples, labels.reshape(-1))
        else:
            padded = False
            for dataset, rows in chunk.refs.part(first, last).by_dataset().items():
                samples = self._samples(dataset, chunk.refs.samples[first:last][rows])
                for row in rows:
                    (tokens[row, 0],), may = chunk.copy((first + row,), samples, labels[row])
                    padded = padded or may
        tokens[:, 1:] = labels[:, :-1]
        return assembly.complete(arrays, chunk.refs.datasets[first:last], padded=padded)

    def _assembled(self, selected: SampleRefs, assembly: Assembly) -> MicroBatch:
        if isinstance(assembly, DocumentAssembly):
            documents = self._documents(selected)
            return assembly.micro_batch(documents, selected.samples, selected.datasets, self._memory)
        if assembly.needs_pieces:
            pieces = self._pieces(selected)
            tokens = np.stack([sample.tokens for sample in pieces])
            return assembly.micro_batch(RawSamples(tokens, selected.datasets, pieces), self._memory)
        tokens = np.empty((len(selected.ids), self._width), np.int64)
        for dataset, places in selected.by_dataset().items():
            numbers = selected.samples[places]
            tokens[places] = self._samples(dataset, numbers).read_batch(numbers)
        return assembly.micro_batch(RawSamples(tokens, selected.datasets), self._memory)

    def advise(self, numbers: range) -> None:
        """Prefetch micro-batches, and open their datasets if the limit of open datasets allows it."""
        if not self.assembly.fields:
            return
        size = self.schedule.order.micro_batch_size
        selected = self.schedule.samples(numbers.start * size, len(numbers) * size)
        for dataset, places in selected.by_dataset().items():
            shard = self._shards.ahead(dataset, numbers[places[0] // size])
            if shard is not None:
                shard.read_ahead(selected.samples[places])

    def close(self) -> None:
        """Close all datasets; what is read next opens them again."""
        self._only = None
        self._shards.clear()

    def _pieces(self, selected: SampleRefs) -> list[Sample]:
        found: dict[int, Sample] = {}
        for dataset, places in selected.by_dataset().items():
            samples = self._samples(dataset, selected.samples[places])
            found |= {place: samples.read(int(selected.samples[place])) for place in places}
        return [found[place] for place in range(len(found))]

    def _documents(self, selected: SampleRefs) -> list[NDArray[np.generic]]:
        found: dict[int, NDArray[np.generic]] = {}
        for dataset, places in selected.by_dataset().items():
            shard = self._shards.get(dataset)
            shard.expect(selected.samples[places])
            found |= {place: shard.dataset.document_tokens(int(selected.samples[place])) for place in places}
        return [found[place] for place in range(len(found))]

    def _samples(self, dataset: int, numbers: NDArray[np.int64]) -> GPTSamples:
        shard = self._only or self._shards.get(dataset)
        if self._has_one:
            self._only = shard
        if shard.samples is None:
            raise UsageError("the samples of this stream are documents")
        shard.expect(numbers)
        return shard.samples


def make_assembly(
    source: SampleSource,
    fields: tuple[str, ...],
    options: BatchOptions,
    topology: Topology,
    place: Coordinates,
) -> Assembly:
    """Return what makes the micro-batches of a rank.

    Raises:
        UsageError: The options do not fit the samples, or the sequence length the context parallelism.
    """
    if "cu_seqlens" in fields and options.create_attention_mask:
        raise UsageError(
            "this stream uses cu_seqlens, which excludes create_attention_mask",
            hint="omit create_attention_mask, or plan without boundaries",
        )
    length = source.sequence_length
    if length is None:
        return DocumentAssembly(fields, options, topology.context_parallel, place.cp)
    if options.max_length is not None:
        raise UsageError("max_length requires a plan of documents: these samples have a fixed length")
    if options.pad_to_multiple > 1 and fields:
        _check_room(source, fields, options.pad_to_multiple)
        return PaddedSampleAssembly(
            length, source.extra_token, fields, options, topology.context_parallel, place.cp
        )
    slices = context_slices(length, topology.context_parallel, place.cp)
    return SampleAssembly(length, source.extra_token, fields, options, slices)


def _check_room(source: SampleSource, fields: tuple[str, ...], multiple: int) -> None:
    for dataset in source.datasets:
        packing = dataset.packing
        if packing is None or (packing.pad_multiple or 1) % multiple:
            raise UsageError(
                f"pad_to_multiple={multiple} requires room in each sample: the index of "
                f"{dataset.path_prefix} was built with --pack {pack_words([packing])}",
                hint=f"build it again with --pack best-fit --pad-multiple {multiple}, and plan again",
            )
    if "cu_seqlens" not in fields:
        raise UsageError(
            "pad_to_multiple requires cu_seqlens: without them, tokens attend to the padding",
            hint="set cu_seqlens=True, or plan with --document-boundaries",
        )


def open_shards(
    source: SampleSource, options: BatchOptions, *, max_open_files: int, mmap: bool
) -> OpenShards:
    """Return the datasets of a source, none of them open yet."""

    def opened(number: int) -> Shard:
        reference = source.datasets[number]
        dataset = reference.open_dataset(mmap=mmap)
        if reference.index is None:
            return Shard(dataset, None)
        return Shard(dataset, GPTSamples(dataset, reference.open_index(), pad_id=options.pad_id))

    return OpenShards(opened, affordable(max_open_files // FILES_PER_SHARD, FILES_PER_SHARD))
