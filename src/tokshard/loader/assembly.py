"""Assembly of micro-batches: the fields that a rank trains on, from the tokens of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
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
            ``attention_mask`` as from :func:`packed_bounds` and :func:`masked_attention`.
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
            batch["cu_seqlens"] = packed_bounds(bounds, length)
            batch["max_seqlen"] = np.diff(batch["cu_seqlens"], axis=1).max(axis=1)
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
            As :meth:`SampleAssembly.micro_batch`, and ``lengths``, int64 of shape
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


def starts_after(tokens: NDArray[np.int64], eod_id: int) -> NDArray[np.int64]:
    """Return where the document of each token starts, if documents end with a token.

    Args:
        tokens: int64 of shape (samples, length).
        eod_id: The token that ends a document.

    Returns:
        int64 of the same shape: the first position after the last such token before this one, or 0.

    Example:
        >>> starts_after(np.array([[7, 0, 7, 7, 0, 7]]), 0).tolist()
        [[0, 0, 2, 2, 2, 5]]
    """
    samples, length = tokens.shape
    starts = np.zeros((samples, length), np.int64)
    after = np.arange(1, length, dtype=np.int64)
    starts[:, 1:] = np.where(tokens[:, :-1] == eod_id, after, 0)
    return np.maximum.accumulate(starts, axis=1, out=starts)


def masked_attention(
    length: int, queries: NDArray[np.int64], starts: NDArray[np.int64] | None, samples: int
) -> NDArray[np.bool_]:
    """Return which keys each query does not attend to: those after it, and those of other documents.

    Args:
        length: The number of keys.
        queries: The positions of the queries: int64 of shape (queries,).
        starts: Where the document of each query starts: int64 of shape (samples, queries); None where
            queries attend to everything before them.
        samples: The number of samples.

    Returns:
        bool of shape (samples, 1, queries, length). Without ``starts`` all samples share one mask, which
        is read-only then.
    """
    keys = np.arange(length, dtype=np.int64)
    later = keys > queries[:, None]
    if starts is None:
        shape = (samples, 1, len(queries), length)
        return np.broadcast_to(later, shape)
    masked: NDArray[np.bool_] = (keys < starts[:, :, None]) | later
    return masked[:, None]


def document_bounds(lengths: NDArray[np.int64], sequence_length: int) -> list[int]:
    """Return the bounds of the documents within a sample, from 0 to its length.

    The extra token, which is a label only, is left out, and padding belongs to the last document. Megatron
    differs in one case: of a padded sample whose last document has one token, it gives that token to the
    document before.

    Args:
        lengths: The tokens of each piece, the extra token among them.
        sequence_length: The length of the sample without the extra token.

    Example:
        >>> document_bounds(np.array([3, 4, 1]), 7), document_bounds(np.array([3, 2]), 7)
        ([0, 3, 7], [0, 3, 7])
    """
    pieces: list[int] = lengths.tolist()
    if pieces:
        pieces[-1] += sequence_length - sum(pieces)
        if pieces[-1] == 0:
            pieces.pop()
    return [0, *accumulate(pieces)]


def packed_bounds(bounds: list[list[int]], sequence_length: int) -> NDArray[np.int32]:
    """Return the bounds of several samples as an array.

    Returns:
        int32 of shape (samples, sequence_length + 1), or wider where samples hold more pieces than tokens,
        empty ones among them. The last bound of each sample is repeated.
    """
    width = max([sequence_length + 1, *map(len, bounds)])
    return np.array([edges + edges[-1:] * (width - len(edges)) for edges in bounds], np.int32)


def starts_of(bounds: list[list[int]], sequence_length: int) -> NDArray[np.int64]:
    """Return where the document of each token starts: int64 of shape (samples, sequence_length)."""
    starts = np.empty((len(bounds), sequence_length), np.int64)
    for row, edges in zip(starts, bounds, strict=True):
        row[:] = np.repeat(edges[:-1], np.diff(edges))
    return starts
