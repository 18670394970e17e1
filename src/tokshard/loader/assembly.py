"""Assembly of micro-batches: the fields that a rank trains on, from the tokens of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.loader.masks import (
    document_bounds,
    masked_attention,
    packed_bounds,
    starts_after,
    starts_of,
)
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions
from tokshard.ranks.topology import context_slices
from tokshard.samples.index.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.loader.memory import Layout

MicroBatch = dict[str, "NDArray[Any]"]

# The fields with a value for each token.
_DTYPES: dict[str, type[np.generic]] = {
    "tokens": np.int64,
    "position_ids": np.int64,
    "labels": np.int64,
    "loss_mask": np.float32,
    "document_ids": np.int64,
}

NO_DOCUMENT = -1
"""The value of padding in ``document_ids``."""


@dataclass(frozen=True, slots=True)
class SampleShape:
    """The samples that a rank reads, and what it takes of each.

    Attributes:
        sequence_length: The tokens of a sample without the extra one; 0 for documents, whose lengths differ.
        extra_token: Whether samples are read with one token more, which is the last label.
        fields: What the rank reads, of :data:`tokshard.ranks.topology.FIELDS`. A rank that reads
            nothing gets nothing, whatever the options.
        context: The context-parallel size.
        context_rank: The context-parallel rank.
    """

    sequence_length: int
    extra_token: bool
    fields: tuple[str, ...]
    context: int = 1
    context_rank: int = 0

    def check_multiple(self, multiple: int) -> None:
        """Check that context parallelism can divide documents padded to a multiple; 1 is no multiple.

        Raises:
            UsageError: It cannot.
        """
        divisor = 2 * self.context
        if self.context > 1 and multiple > 1 and multiple % divisor:
            raise UsageError(
                f"pad_to_multiple must be divisible by 2 x context-parallel size = {divisor}, got {multiple}"
            )


class SampleAssembly:
    """Assembler of micro-batches from samples of one length; a pure function of its arguments.

    Example:
        >>> assembly = SampleAssembly(SampleShape(3, True, ("tokens", "labels")), BatchOptions())
        >>> sample = Sample(np.array([5, 6, 7, 8]), np.array([0]), np.array([4]))
        >>> batch = assembly.micro_batch([sample], np.zeros(1, np.int16), Memory())
        >>> batch["tokens"].tolist(), batch["labels"].tolist()
        ([[5, 6, 7]], [[6, 7, 8]])
    """

    def __init__(self, shape: SampleShape, options: BatchOptions) -> None:
        self.shape = shape
        self.fields = shape.fields
        self.options = options
        self.names = _names(shape.fields, options)
        slices = context_slices(shape.sequence_length, shape.context, shape.context_rank)
        self._columns = np.concatenate([np.arange(part.start, part.stop) for part in slices])
        self._positions = np.arange(shape.sequence_length)
        self._made = ["tokens", "labels", "loss_mask"]
        self._made += [name for name in ("position_ids", "document_ids") if name in self.names]
        self._has_bounds = "cu_seqlens" in shape.fields
        self._layout: Layout = ()

    @property
    def needs_documents(self) -> bool:
        """True if the documents of samples are needed, and not only their tokens."""
        return self._has_bounds or (self.options.document_ids and bool(self.fields))

    def micro_batch(
        self, samples: Sequence[Sample], datasets: NDArray[np.int16], memory: Memory
    ) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            samples: The samples.
            datasets: The dataset of each sample: int16 of shape (samples,).
            memory: Where the arrays lie.

        Returns:
            ``tokens``, ``labels``, ``position_ids`` and ``document_ids`` (int64) and ``loss_mask``
            (float32), all of shape (samples, length of the rank's part); ``num_tokens``, int64 of shape
            (samples,), counts the labels of whole samples; ``cu_seqlens``, ``max_seqlen`` and
            ``attention_mask`` as in :mod:`tokshard.loader.masks`.
        """
        batch = self.empty(len(samples), memory)
        texts = np.stack([sample.tokens for sample in samples])
        batch["tokens"][:] = texts[:, : self.shape.sequence_length]
        followed = texts.shape[1] - 1
        batch["labels"][:, :followed] = texts[:, 1:]
        batch["labels"][:, followed:] = self.options.pad_id
        return self.complete(batch, datasets, memory, samples)

    def empty(self, samples: int, memory: Memory) -> MicroBatch:
        """Return the arrays of a micro-batch for :meth:`complete`, of whole samples."""
        shape = (samples, self.shape.sequence_length)
        if not self._layout or self._layout[0][0] != shape:
            self._layout = tuple((shape, _DTYPES[name]) for name in self._made)
        return dict(zip(self._made, memory.arrays(self._layout), strict=True))

    def complete(
        self,
        batch: MicroBatch,
        datasets: NDArray[np.int16],
        memory: Memory,
        samples: Sequence[Sample] = (),
        *,
        padded: bool = True,
    ) -> MicroBatch:
        """Return the fields of a micro-batch from its tokens and labels.

        Args:
            batch: The arrays of :meth:`empty`; ``tokens`` and ``labels`` are filled, padding included.
            datasets: The dataset of each sample: int16 of shape (samples,).
            memory: Where other arrays lie.
            samples: The samples with their documents; empty where these are not needed.
            padded: Whether ``pad_id`` may be among the tokens and labels.
        """
        options = self.options
        length = self.shape.sequence_length
        tokens = batch["tokens"]
        starts = None
        if options.eod_id is not None and (options.reset_position_ids or options.reset_attention_mask):
            starts = starts_after(tokens, options.eod_id)
        batch["loss_mask"].fill(1)
        if options.eod_mask_loss:
            batch["loss_mask"][tokens == options.eod_id] = 0
        if padded:
            self._clear_padding(batch)
        if options.num_tokens:
            batch["num_tokens"] = np.count_nonzero(batch["loss_mask"], axis=1)
        origins = starts if options.reset_position_ids else None
        if self._has_bounds:
            bounds = [document_bounds(sample.lengths, length) for sample in samples]
            origins = starts_of(bounds, length)
            batch["cu_seqlens"], batch["max_seqlen"] = packed_bounds(bounds, length)
        if "position_ids" in batch:
            batch["position_ids"][:] = self._positions if origins is None else self._positions - origins
        if "document_ids" in batch:
            self._fill_document_ids(batch["document_ids"], samples)
            batch["dataset_ids"] = datasets
        if self.shape.context > 1:
            batch |= self._part(batch, memory)
        if "attention_mask" in self.names:
            reach = None
            if starts is not None and options.reset_attention_mask:
                reach = starts[:, self._columns]
            batch["attention_mask"] = masked_attention(length, self._columns, reach, len(tokens))
        return {name: batch[name] for name in self.names}

    def _clear_padding(self, batch: MicroBatch) -> None:
        tokens = batch["tokens"]
        labels = batch["labels"]
        padding = labels == self.options.pad_id
        if padding.any():
            batch["loss_mask"][padding] = 0
            labels[padding] = 0
        # All but the first token of a sample are labels, too.
        elif not (tokens[:, 0] == self.options.pad_id).any():
            return
        tokens[tokens == self.options.pad_id] = 0

    def _fill_document_ids(self, ids: NDArray[np.int64], samples: Sequence[Sample]) -> None:
        ids.fill(NO_DOCUMENT)
        for row, sample in zip(ids, samples, strict=True):
            owners = np.repeat(sample.document_ids, sample.lengths)[: len(row)]
            row[: len(owners)] = owners

    def _part(self, batch: MicroBatch, memory: Memory) -> MicroBatch:
        """Return the context-parallel rank's part of the fields with a value for each token."""
        shape = len(batch["tokens"]), len(self._columns)
        arrays = memory.arrays(tuple((shape, _DTYPES[name]) for name in self._made))
        for name, array in zip(self._made, arrays, strict=True):
            np.take(batch[name], self._columns, axis=1, out=array, mode="clip")
        return dict(zip(self._made, arrays, strict=True))


def _names(fields: tuple[str, ...], options: BatchOptions) -> tuple[str, ...]:
    names = list(fields)
    if "attention_mask" in names and not options.create_attention_mask:
        names.remove("attention_mask")
    if "cu_seqlens" in names:
        names.append("max_seqlen")
    if fields and options.document_ids:
        names += ["document_ids", "dataset_ids"]
    if fields and options.num_tokens:
        names.append("num_tokens")
    return tuple(names)
