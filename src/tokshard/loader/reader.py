"""Reader of micro-batches: open datasets, the samples of the schedule, and reading ahead."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.open_cache import OpenCache, affordable
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import open_data
from tokshard.errors import TokshardError, UsageError
from tokshard.loader.assembly import DocumentAssembly, MicroBatch, SampleAssembly, SampleShape
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.loader.schedule import Chunk, MicroBatchSchedule
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.topology import Coordinates, Topology
from tokshard.samples.index.samples import GPTSamples, Sample
from tokshard.samples.index.spans import document_extents
from tokshard.storage.paths import bin_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.loader.padding import PaddedSampleAssembly

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
        self.is_remote = is_remote(dataset.path_prefix)
        self._file = open_data(bin_path(dataset.path_prefix))

    def read(self, number: int) -> Sample:
        """Return a sample, or a document, whose tokens have the dtype of the dataset then."""
        if self.samples is not None:
            return self.samples.read(number)
        tokens = self.dataset.document_tokens(number)
        return Sample(tokens, np.array([number]), np.array([len(tokens)]))

    def copy(
        self, chunk: Chunk, rows: Sequence[int], target: NDArray[np.int64], skipped: int
    ) -> tuple[list[int], bool]:
        """Copy the tokens of samples, one after the other.

        Args:
            chunk: Samples, among them some of this dataset.
            rows: Which of them.
            target: int64 of shape (tokens of the samples,).
            skipped: 1 to leave out the first token of each sample.

        Returns:
            The first token of each sample, and whether tokens may equal the padding token.

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        samples = self.samples
        if samples is None:
            raise UsageError("the samples of this stream are documents")
        source = samples.mapped
        padded = samples.may_hold_padding
        heads: list[int] = []
        pieces: list[NDArray[Any]] = []
        for row in rows:
            ranges = () if source is None else chunk.ranges(row, samples)
            if source is not None and ranges:
                begin = ranges[0]
                heads.append(source[begin])
                pieces.append(source[begin + skipped : ranges[1]])
                edges = iter(ranges[2:])
                pieces += [source[begin:end] for begin, end in zip(edges, edges, strict=True)]
            else:
                (text,) = samples.read_batch(chunk.samples[row : row + 1])
                heads.append(text[0])
                pieces.append(text[skipped:])
                padded = True
        np.concatenate(pieces, out=target, casting="unsafe")  # tokens may be floating-point numbers
        return heads, padded

    def read_ahead(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Prefetch the tokens of samples: into the page cache, or from the object store."""
        samples = self.samples
        item_bytes = self.dataset.dtype.itemsize
        unknown = []
        for row in rows:
            ranges = () if samples is None or samples.mapped is None else chunk.ranges(row, samples)
            edges = iter(ranges)
            for begin, end in zip(edges, edges, strict=True):
                self._file.prefetch(begin * item_bytes, (end - begin) * item_bytes)
            if not ranges:
                unknown.append(row)
        if unknown:
            self.prefetch(chunk.samples[unknown])

    def prefetch(self, samples: NDArray[np.int64]) -> None:
        """Prefetch the tokens of samples, by their numbers."""
        firsts, sizes = self.extents(samples)
        for first_byte, size_bytes in zip(firsts.tolist(), sizes.tolist(), strict=True):
            self._file.prefetch(first_byte, size_bytes)

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


OpenShards = OpenCache[int, Shard]
"""The open datasets, by their numbers. Opening costs a pass over the ``.idx`` file."""


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
        first = number + 1
        if not first <= self._next <= first + self._count:  # a jump, or the beginning
            self._next = first
        if not self._count or self._next - first > self._count // 2:
            return
        if not self._started:
            self._start()
        last = min(first + self._count, self._end)
        if self._next < last:
            self._ranges.put(range(self._next, last))
        self._next = first + self._count

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
        self, source: SampleSource, schedule: MicroBatchSchedule, assembly: Assembly, shards: OpenShards
    ) -> None:
        self.schedule = schedule
        self.assembly = assembly
        self._source = source
        self._shards = shards
        self._memory = Memory()
        self._width = (source.sequence_length or 0) + int(source.extra_token)
        self._size = schedule.order.micro_batch_size

    def micro_batch(self, number: int) -> MicroBatch:
        """Return a micro-batch by its number; fastest for one after the other.

        Raises:
            IndexError: The micro-batch does not exist.
            MissingFileError, IntegrityError: A file is not there, or not the one that the plan was made for.
        """
        self.schedule.check(number)
        return self.micro_batches(number, 1)

    def micro_batches(self, number: int, count: int) -> MicroBatch:
        """Return ``count`` micro-batches (trusted) as one; nothing is opened for a rank without fields.

        Raises:
            MissingFileError, IntegrityError: See :meth:`micro_batch`.
        """
        return self._read(*self._rows(number, count)) if self.assembly.fields else {}

    def sample_ids(self, number: int) -> list[int]:
        """Return the ids of the samples of a micro-batch.

        Raises:
            IndexError: The micro-batch does not exist.
        """
        self.schedule.check(number)
        chunk, rows = self._rows(number, 1)
        ids: list[int] = chunk.ids[rows.start : rows.stop].tolist()
        return ids

    def _rows(self, number: int, count: int) -> tuple[Chunk, range]:
        """Return where the samples of some micro-batches are."""
        first = number * self._size
        chunk = self.schedule.chunk(first, count * self._size)
        first -= chunk.first
        return chunk, range(first, first + count * self._size)

    def padding(self) -> MicroBatch:
        """Return a micro-batch of one sample that fills up a batch and has no loss.

        As Megatron's ``GPTDataset[None]``, it is the first sample of the data with a loss mask of zeros.

        Raises:
            UsageError: Micro-batches have no loss mask.
            MissingFileError, IntegrityError: A file is not there, or not the one that the plan was made for.
        """
        if self.assembly.options.tokens_only:
            raise UsageError(
                "a padding sample requires a loss mask, and tokens_only omits it", hint="omit tokens_only"
            )
        if not self.assembly.fields:
            return {}
        ids = np.zeros(1, np.int64)
        batch = self._read(Chunk(0, ids, *Locator(self._source).locate(ids)), range(1))
        for name in {"loss_mask", "num_tokens", "repeated"} & batch.keys():
            batch[name][:] = 0
        return batch

    def _read(self, chunk: Chunk, rows: range) -> MicroBatch:
        assembly = self.assembly
        if isinstance(assembly, SampleAssembly) and not assembly.needs_documents:
            batch = self._copied(chunk, rows, assembly)
        else:
            datasets = chunk.datasets[rows.start : rows.stop]
            batch = assembly.micro_batch(self._samples(chunk, rows), datasets, self._memory)
        if assembly.options.repeated:
            batch["repeated"] = self.schedule.repeated(chunk.first + rows.start, len(rows))
        return batch

    def _copied(self, chunk: Chunk, rows: range, assembly: SampleAssembly) -> MicroBatch:
        """Copy tokens from the maps of the datasets straight to a micro-batch."""
        if assembly.options.tokens_only:
            (texts,) = self._memory.arrays((((len(rows), self._width), np.int64),))
            self._copy(chunk, rows, texts, 0)
            return {"tokens": texts}
        batch = assembly.empty(len(rows), self._memory)
        tokens = batch["tokens"]
        labels = batch["labels"]
        if assembly.shape.extra_token:
            tokens[:, 0], padded = self._copy(chunk, rows, labels, 1)
            tokens[:, 1:] = labels[:, :-1]
        else:
            self._copy(chunk, rows, tokens, 0)
            labels[:, :-1] = tokens[:, 1:]
            labels[:, -1] = assembly.options.pad_id
            padded = True
        datasets = chunk.datasets[rows.start : rows.stop]
        return assembly.complete(batch, datasets, self._memory, padded=padded)

    def _copy(
        self, chunk: Chunk, rows: range, target: NDArray[np.int64], skipped: int
    ) -> tuple[list[int], bool]:
        """Copy the tokens of samples to the rows of ``target``, without the ``skipped`` first ones of each.

        Returns:
            The first token of each sample, and whether tokens may equal the padding token.
        """
        owners = chunk.by_dataset(rows)
        if len(owners) == 1:
            (shard,) = self._opened(chunk, owners)
            return shard.copy(chunk, rows, target.reshape(-1), skipped)
        heads = [0] * len(rows)
        padded = False
        for shard, own in zip(self._opened(chunk, owners), owners.values(), strict=True):
            for row in own:
                place = row - rows.start
                (heads[place],), may_be_padded = shard.copy(chunk, (row,), target[place], skipped)
                padded = padded or may_be_padded
        return heads, padded

    def _opened(self, chunk: Chunk, owners: dict[int, Sequence[int]]) -> Iterator[Shard]:
        """Yield open datasets, which fetch the tokens of their rows if they are remote."""
        for dataset, rows in owners.items():
            shard = self._shards.get(dataset)
            if shard.is_remote:
                shard.prefetch(chunk.samples[rows])
            yield shard

    def _samples(self, chunk: Chunk, rows: range) -> list[Sample]:
        found: dict[int, Sample] = {}
        owners = chunk.by_dataset(rows)
        for shard, own in zip(self._opened(chunk, owners), owners.values(), strict=True):
            found |= {row: shard.read(int(chunk.samples[row])) for row in own}
        return [found[row] for row in rows]

    def advise(self, numbers: range) -> None:
        """Prefetch micro-batches from the datasets that are open, or may be without closing others."""
        if not self.assembly.fields:
            return
        chunk, rows = self._rows(numbers.start, len(numbers))
        for dataset, own in chunk.by_dataset(rows).items():
            shard = self._shards.get_ahead(dataset)
            if shard is not None:
                shard.read_ahead(chunk, own)

    def close(self) -> None:
        """Close all datasets; what is read next opens them again."""
        self._shards.clear()


def open_reader(
    plan: Plan,
    rank: int,
    name: str,
    order: ConsumptionOrder,
    options: BatchOptions,
    *,
    max_open_files: int,
    mmap: bool,
) -> MicroBatchReader:
    """Return the reader of what a rank reads of a stream; no dataset is open yet.

    Raises:
        UsageError: See :func:`make_assembly`.
    """
    topology = plan.topology
    stream = plan.streams[name]
    source = stream.source
    place = topology.coordinates(rank)
    schedule = MicroBatchSchedule(order, place.dp, Locator(source), stream.open_sort_key())
    fields = topology.needs(rank, boundaries=stream.document_boundaries or options.cu_seqlens)
    assembly = make_assembly(source, fields, options, topology, place)

    def opened(number: int) -> Shard:
        reference = source.datasets[number]
        dataset = reference.open_dataset(mmap=mmap)
        if reference.index is None:
            return Shard(dataset, None)
        return Shard(dataset, GPTSamples(dataset, reference.open_index(), pad_id=options.pad_id))

    capacity = affordable(max(1, max_open_files // FILES_PER_SHARD), FILES_PER_SHARD)
    return MicroBatchReader(source, schedule, assembly, OpenShards(opened, capacity))


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
    for name in ("create_attention_mask", "tokens_only") if "cu_seqlens" in fields else ():
        if getattr(options, name):
            raise UsageError(
                f"this stream uses cu_seqlens, which excludes {name}",
                hint=f"omit {name}, or plan without boundaries",
            )
    length = source.sequence_length
    if options.tokens_only and fields:
        fields = ("tokens",)
    shape = SampleShape(length or 0, source.extra_token, fields, topology.context_parallel, place.cp)
    if options.tokens_only and (length is None or shape.context > 1):
        problem = "context parallelism would divide them" if length else "this is a plan of documents"
        raise UsageError(
            f"tokens_only gives whole samples of a fixed length: {problem}", hint="omit tokens_only"
        )
    if length is None:
        return DocumentAssembly(shape, options)
    if options.max_length is not None:
        raise UsageError("max_length requires a plan of documents: these samples have a fixed length")
    if options.pad_to_multiple > 1 and fields:
        from tokshard.loader.padding import PaddedSampleAssembly, check_room

        check_room(source, shape, options.pad_to_multiple)
        return PaddedSampleAssembly(shape, options)
    return SampleAssembly(shape, options)
