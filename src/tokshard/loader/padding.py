"""Padding of each document within packed samples, for trainers that require lengths of some multiple.

Transformer Engine's kernels for packed sequences, for example, divide each document among context-parallel
ranks, so that its length must be a multiple of 2 x the context-parallel size. An index built with
``--pad-multiple`` has room for the padding, and sample boundaries stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.loader.assembly import NO_DOCUMENT, MicroBatch, SampleAssembly, SampleShape, packed_bounds
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.ranks.sources import SampleSource
from tokshard.samples.index.packing import pack_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.samples.index.samples import Sample

    Integers = NDArray[np.int64]

# The fields with a value for each token, and their value for padding.
_PADDING = {"tokens": 0, "labels": 0, "loss_mask": 0, "position_ids": 0, "document_ids": NO_DOCUMENT}


class PaddedSampleAssembly:
    """Assembler of micro-batches from packed samples, with each document padded to a multiple.

    Each token keeps the label, loss mask and position that it has without padding. What a sample has beyond
    its last document becomes padding of that document. A context-parallel rank gets two of ``2 * context``
    chunks of each document, as from ``thd_get_partitioned_indices`` of Transformer Engine.

    Args:
        shape: The samples, whose length is a multiple of ``options.pad_to_multiple``.
        options: Masks and padding.

    Raises:
        UsageError: ``pad_to_multiple`` is not divisible by 2 x context-parallel size.

    Example:
        >>> from tokshard.samples.index.samples import Sample
        >>> shape = SampleShape(8, True, ("tokens", "labels", "cu_seqlens"))
        >>> assembly = PaddedSampleAssembly(shape, BatchOptions(cu_seqlens=True, pad_to_multiple=4))
        >>> sample = Sample(np.array([1, 2, 3, 4, 5, 6, -1, -1, -1]), np.array([7, 9]), np.array([3, 2]))
        >>> batch = assembly.micro_batch([sample], np.zeros(1, np.int16), Memory())
        >>> batch["tokens"].tolist(), batch["labels"].tolist()
        ([[1, 2, 3, 0, 4, 5, 0, 0]], [[2, 3, 4, 0, 5, 6, 0, 0]])
        >>> batch["cu_seqlens"][0, :4].tolist(), batch["cu_seqlens_padded"][0, :4].tolist()
        ([0, 3, 5, 5], [0, 4, 8, 8])
    """

    def __init__(self, shape: SampleShape, options: BatchOptions) -> None:
        shape.check_multiple(options.pad_to_multiple)
        self.shape = shape
        self.fields = shape.fields
        self.options = options
        self._unpadded = SampleAssembly(replace(shape, context=1, context_rank=0), options)
        self._memory = Memory()

    def micro_batch(
        self, samples: Sequence[Sample], datasets: NDArray[np.int16], memory: Memory
    ) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            samples: The samples.
            datasets: The dataset of each: int16 of shape (samples,).
            memory: Where the arrays lie.

        Returns:
            As :meth:`tokshard.loader.assembly.SampleAssembly.micro_batch`, but ``cu_seqlens`` counts no
            padding, and ``cu_seqlens_padded``, int32 of the same shape, all of it, up to the sequence
            length; the last value of each is repeated. ``max_seqlen`` is that of padded documents.

        Raises:
            IntegrityError: A sample has no room for the padding.
        """
        batch = self._unpadded.micro_batch(samples, datasets, self._memory)
        sizes = [self._sizes(sample) for sample in samples]
        rooms = [self._rooms(documents) for documents in sizes]
        sources, is_padding = self._sources(sizes, rooms)
        shape = len(sizes), self.shape.sequence_length // self.shape.context
        moved = [name for name in batch if name in _PADDING]
        arrays = memory.arrays(tuple((shape, batch[name].dtype) for name in moved))
        for name, array in zip(moved, arrays, strict=True):
            np.take(batch[name].reshape(-1), sources, out=array.reshape(-1), mode="clip")
            array.reshape(-1)[is_padding] = _PADDING[name]
            batch[name] = array
        if "cu_seqlens" in batch:
            for name, lengths in (("cu_seqlens", sizes), ("cu_seqlens_padded", rooms)):
                bounds = [[0, *accumulate(documents)] for documents in lengths]
                batch[name] = packed_bounds(bounds, self.shape.sequence_length)
            batch["max_seqlen"] = np.array([max(documents) for documents in rooms], np.int32)
        return batch

    def _sizes(self, sample: Sample) -> list[int]:
        """Return the tokens of each document in a sample, without the extra one."""
        sizes = [size for size in sample.lengths.tolist() if size] or [0]
        sizes[-1] -= max(0, sum(sizes) - self.shape.sequence_length)
        return sizes

    def _rooms(self, sizes: list[int]) -> list[int]:
        multiple = self.options.pad_to_multiple
        rooms = [-(-size // multiple) * multiple for size in sizes]
        rooms[-1] += self.shape.sequence_length - sum(rooms)
        if rooms[-1] < sizes[-1]:
            raise IntegrityError(
                f"documents of {', '.join(map(str, sizes))} tokens, padded to multiples of {multiple}, "
                f"do not fit into a sample of {self.shape.sequence_length}",
                field="sample_index",
                hint="the index was built from other data, or is damaged: build it again",
            )
        return rooms

    def _sources(self, sizes: list[list[int]], rooms: list[list[int]]) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the position of each token of the rank without padding, and whether it is padding."""
        length = self.shape.sequence_length
        context = self.shape.context
        rank = self.shape.context_rank
        count = np.array([size for documents in sizes for size in documents], np.int64)
        local = np.array([room for documents in rooms for room in documents], np.int64) // context
        firsts = np.array(
            [first for documents in sizes for first in accumulate([0, *documents[:-1]])], np.int64
        )
        firsts += np.repeat(np.arange(len(sizes)) * length, list(map(len, sizes)))
        starts = np.cumsum(local) - local
        within = np.arange(len(sizes) * length // context) - np.repeat(starts, local)
        if context > 1:
            half = np.repeat(local // 2, local)
            within += half * np.where(within < half, rank, 2 * (context - 1) - rank)
        is_padding = within >= np.repeat(count, local)
        within += np.repeat(firsts, local)
        return within, is_padding


def check_room(source: SampleSource, shape: SampleShape, multiple: int) -> None:
    """Check that the samples of a source have room for documents padded to a multiple.

    Raises:
        UsageError: They have not, or micro-batches do not tell the padding.
    """
    for dataset in source.datasets:
        packing = dataset.packing
        if packing is None or (packing.pad_multiple or 1) % multiple:
            raise UsageError(
                f"pad_to_multiple={multiple} requires room in each sample: the index of "
                f"{dataset.path_prefix} was built with --pack {pack_words([packing])}",
                hint=f"build it again with --pack best-fit --pad-multiple {multiple}, and plan again",
            )
    if "cu_seqlens" not in shape.fields:
        raise UsageError(
            "pad_to_multiple requires cu_seqlens: without them, tokens attend to the padding",
            hint="set cu_seqlens=True, or plan with --document-boundaries",
        )
