"""Assembly of micro-batches from documents as samples, which differ in length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokshard.loader.assembly import MicroBatch, SampleAssembly, SampleShape
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.samples.index.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DocumentAssembly:
    """Assembler of micro-batches from documents; a pure function of its arguments.

    A document of n tokens takes n positions: the label of each is the next token, and the last has none. A
    micro-batch is as long as its longest document, rounded up to the multiple that the options and context
    parallelism require. All ranks that read the same documents get the same length.

    Raises:
        UsageError: ``pad_to_multiple`` is not divisible by 2 x context-parallel size.

    Example:
        >>> shape = SampleShape(0, False, ("tokens", "labels"))
        >>> assembly = DocumentAssembly(shape, BatchOptions(pad_to_multiple=4))
        >>> documents = [Sample(np.array(text), np.array([0]), np.array([1])) for text in ([5, 6, 7], [8])]
        >>> batch = assembly.micro_batch(documents, np.zeros(2, np.int16), Memory())
        >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["lengths"].tolist()
        ([[5, 6, 7, 0], [8, 0, 0, 0]], [[6, 7, 0, 0], [0, 0, 0, 0]], [3, 1])
    """

    def __init__(self, shape: SampleShape, options: BatchOptions) -> None:
        shape.check_multiple(options.pad_to_multiple)
        self.fields = shape.fields
        self.options = options
        self._shape = replace(shape, extra_token=False)
        self._multiple = options.pad_to_multiple
        if shape.context > 1:
            self._multiple = math.lcm(self._multiple, 2 * shape.context)

    def micro_batch(
        self, samples: Sequence[Sample], datasets: NDArray[np.int16], memory: Memory
    ) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            samples: The documents, of any length.
            datasets: The dataset of each: int16 of shape (documents,).
            memory: Where the arrays lie.

        Returns:
            As :meth:`tokshard.loader.assembly.SampleAssembly.micro_batch`, and ``lengths``, int64 of shape
            (documents,): the tokens of each, which come before its padding.
        """
        texts = [sample.tokens[: self.options.max_length] for sample in samples]
        lengths = np.array([len(text) for text in texts], np.int64)
        length = max(-(-int(lengths.max(initial=0)) // self._multiple), 1) * self._multiple
        padded = np.full((len(texts), length), self.options.pad_id, np.int64)
        documents = []
        for row, text, sample in zip(padded, texts, samples, strict=True):
            row[: len(text)] = text
            documents.append(Sample(row, sample.document_ids, np.array([len(text)])))
        assembly = SampleAssembly(replace(self._shape, sequence_length=length), self.options)
        batch = assembly.micro_batch(documents, datasets, memory)
        batch["lengths"] = lengths
        return batch
