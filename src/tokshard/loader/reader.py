"""Reading the micro-batches of a rank: the samples of its route, from open datasets, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import UsageError
from tokshard.gpt_index.samples import GPTSamples, Sample
from tokshard.loader.assembly import MicroBatch, SampleAssembly, Texts
from tokshard.loader.collation import DocumentAssembly
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.loader.route import Route, Selected
from tokshard.loader.shards import FILES_PER_SHARD, OpenShards, Shard
from tokshard.sharding.sources.samples import SampleSource
from tokshard.sharding.topology import Coordinates, Topology, context_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MicroBatchReader:
    """Reads and puts together what one rank needs. Threads may share it.

    Args:
        source: The samples.
        route: Which of them each micro-batch has.
        assembly: What becomes of them.
        shards: The open datasets.
    """

    def __init__(
        self,
        source: SampleSource,
        route: Route,
        assembly: SampleAssembly | DocumentAssembly,
        shards: OpenShards,
    ) -> None:
        self.route = route
        self.assembly = assembly
        self._shards = shards
        self._memory = Memory()
        self._width = (source.sequence_length or 0) + int(source.extra_token)

    def read(self, selected: Selected, number: int) -> MicroBatch:
        """Return the fields of some samples as one micro-batch; nothing is opened for a rank without any.

        Args:
            selected: The samples.
            number: The micro-batch that they begin.

        Raises:
            MissingFileError, IntegrityError: A file is not there, or not the one that the plan was made for.
        """
        if not self.assembly.fields:
            return {}
        self._shards.begin(number)
        batch = self._assembled(selected, self.assembly)
        if self.assembly.options.repeated:
            first = number * self.route.assignment.micro_batch_size
            batch["repeated"] = self.route.repeated(first, len(selected.ids))
        return batch

    def _assembled(self, selected: Selected, assembly: SampleAssembly | DocumentAssembly) -> MicroBatch:
        if isinstance(assembly, DocumentAssembly):
            documents = self._documents(selected)
            return assembly.micro_batch(documents, selected.samples, selected.datasets, self._memory)
        if assembly.needs_pieces:
            pieces = self._pieces(selected)
            tokens = np.stack([one.tokens for one in pieces])
            return assembly.micro_batch(Texts(tokens, selected.datasets, pieces), self._memory)
        return assembly.micro_batch(Texts(self._tokens(selected), selected.datasets), self._memory)

    def advise(self, numbers: range) -> None:
        """Tell the kernel what micro-batches will read, and open their datasets if they may be open yet."""
        if not self.assembly.fields:
            return
        size = self.route.assignment.micro_batch_size
        selected = self.route.samples(numbers.start * size, len(numbers) * size)
        for dataset, places in selected.by_dataset().items():
            shard = self._shards.ahead(dataset, numbers[places[0] // size])
            if shard is not None:
                shard.read_ahead(selected.samples[places])

    def close(self) -> None:
        """Close all datasets; what is read next opens them again."""
        self._shards.close()

    def _tokens(self, selected: Selected) -> NDArray[np.int64]:
        groups = selected.by_dataset()
        if len(groups) == 1:
            return self._samples(next(iter(groups)), selected.samples).read_batch(selected.samples)
        tokens = np.empty((len(selected.ids), self._width), np.int64)
        for dataset, places in groups.items():
            numbers = selected.samples[places]
            tokens[places] = self._samples(dataset, numbers).read_batch(numbers)
        return tokens

    def _pieces(self, selected: Selected) -> list[Sample]:
        found: dict[int, Sample] = {}
        for dataset, places in selected.by_dataset().items():
            samples = self._samples(dataset, selected.samples[places])
            found |= {place: samples.read(int(selected.samples[place])) for place in places}
        return [found[place] for place in range(len(found))]

    def _documents(self, selected: Selected) -> list[NDArray[np.generic]]:
        found: dict[int, NDArray[np.generic]] = {}
        for dataset, places in selected.by_dataset().items():
            shard = self._shards.use(dataset)
            shard.expect(selected.samples[places])
            found |= {place: shard.dataset.document_tokens(int(selected.samples[place])) for place in places}
        return [found[place] for place in range(len(found))]

    def _samples(self, dataset: int, numbers: NDArray[np.int64]) -> GPTSamples:
        """Return the samples of a dataset, of which some will be read now."""
        shard = self._shards.use(dataset)
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
) -> SampleAssembly | DocumentAssembly:
    """Return what makes the micro-batches of a rank.

    Raises:
        UsageError: The options do not fit the samples, or the sequence length the context parallelism.
    """
    if "cu_seqlens" in fields and options.create_attention_mask:
        raise UsageError(
            "this stream comes with cu_seqlens, and create_attention_mask is another way of masking",
            hint="leave create_attention_mask out, or plan without boundaries",
        )
    length = source.sequence_length
    if length is None:
        return DocumentAssembly(fields, options, topology.context, place.cp)
    if options.pad_to_multiple != 1 or options.max_length is not None:
        raise UsageError("pad_to_multiple and max_length are for documents: samples are of one length")
    slices = context_slices(length, topology.context, place.cp)
    return SampleAssembly(length, source.extra_token, fields, options, slices)


def open_shards(
    source: SampleSource, options: BatchOptions, *, max_open_files: int, mmap: bool
) -> OpenShards:
    """Return the datasets of a source, none of them open yet."""
    return OpenShards(_opener(source, options.pad_id, mmap=mmap), max_open_files // FILES_PER_SHARD)


def _opener(source: SampleSource, pad_id: int, *, mmap: bool) -> Callable[[int], Shard]:
    def opened(number: int) -> Shard:
        reference = source.datasets[number]
        dataset = reference.open_dataset(mmap=mmap)
        if reference.index is None:
            return Shard(dataset, None)
        return Shard(dataset, GPTSamples(dataset, reference.open_index(), pad_id=pad_id))

    return opened
