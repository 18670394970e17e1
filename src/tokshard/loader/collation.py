"""Micro-batches of whole documents, which are of many lengths: padded to the longest of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.gpt_index.samples import Sample
from tokshard.loader.assembly import MicroBatch, SampleAssembly, Texts
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.sharding.topology import context_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DocumentAssembly:
    """Makes micro-batches of documents; a pure function of them.

    A document of n tokens takes n places: the label of each is the next, and the last has none. A
    micro-batch is as long as its longest document, rounded up to the multiple that the options and context
    parallelism ask for. All ranks that see the same documents come to the same length.

    Attributes:
        fields: What the rank reads, of :data:`tokshard.sharding.topology.FIELDS`.
        options: Masks and padding.
        context: The context-parallel size.
        context_rank: The context-parallel rank.

    Raises:
        UsageError: ``pad_to_multiple`` is not divisible by 2 x context-parallel size.

    Example:
        >>> assembly = DocumentAssembly(("tokens", "labels"), BatchOptions(pad_to_multiple=4))
        >>> documents = [np.array([5, 6, 7], np.uint16), np.array([8], np.uint16)]
        >>> batch = assembly.micro_batch(documents, np.array([0, 1]), np.zeros(2, np.int16), Memory())
        >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["lengths"].tolist()
        ([[5, 6, 7, 0], [8, 0, 0, 0]], [[6, 7, 0, 0], [0, 0, 0, 0]], [3, 1])
    """

    fields: tuple[str, ...]
    options: BatchOptions
    context: int = 1
    context_rank: int = 0

    def __post_init__(self) -> None:
        multiple = self.options.pad_to_multiple
        if self.context > 1 and multiple > 1 and multiple % (2 * self.context):
            raise UsageError(
                f"pad_to_multiple {multiple} is not divisible by 2 x context-parallel size = "
                f"{2 * self.context}"
            )

    def micro_batch(
        self,
        documents: Sequence[NDArray[Any]],
        numbers: NDArray[np.int64],
        datasets: NDArray[np.int16],
        memory: Memory,
    ) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            documents: The tokens of each document.
            numbers: The numbers of the documents: int64 of shape (documents,).
            datasets: The dataset of each: int16 of shape (documents,).
            memory: Where the arrays lie.

        Returns:
            As :meth:`tokshard.loader.assembly.SampleAssembly.micro_batch`, and ``lengths``, int64 of shape
            (documents,): the tokens of each, which come before its padding.
        """
        if not self.fields:
            return {}
        cut = [one[: self.options.max_length] for one in documents]
        lengths = np.array([len(one) for one in cut], np.int64)
        length = self._padded(int(lengths.max(initial=0)))
        text = np.full((len(cut), length), self.options.pad_id, np.int64)
        for row, one in zip(text, cut, strict=True):
            row[: len(one)] = one
        slices = context_slices(length, self.context, self.context_rank)
        assembly = SampleAssembly(length, False, self.fields, self.options, slices)
        pieces = []
        if assembly.needs_pieces:
            pieces = [
                Sample(row, np.array([number]), np.array([size]))
                for row, number, size in zip(text, numbers, lengths, strict=True)
            ]
        batch = assembly.micro_batch(Texts(text, datasets, pieces), memory)
        batch["lengths"] = lengths
        return batch

    def _padded(self, longest: int) -> int:
        multiple = self.options.pad_to_multiple
        if self.context > 1:
            multiple = math.lcm(multiple, 2 * self.context)
        return max(-(-longest // multiple), 1) * multiple
