"""Assembly of micro-batches: options, and the fields that a rank trains on, from the tokens of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
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
from tokshard.ranks.topology import context_slices
from tokshard.samples.index.samples import NO_PAD_ID, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.loader.memory import Layout

# What may be set with tokens_only: the others change or add fields.
_WITH_TOKENS_ONLY = {"tokens_only", "eod_id", "pad_id", "repeated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a micro-batch; the first six are Megatron's, by their names and with its meaning.

    Attributes:
        eod_id: The token that ends a document.
        pad_id: The token that stands for padding. Tokens of the data that equal it count as padding, too.
        reset_position_ids: Whether positions start again after each ``eod_id``.
        reset_attention_mask: Whether tokens do not attend across an ``eod_id``.
        eod_mask_loss: Whether the loss leaves out what follows an ``eod_id``: where it is the input.
        create_attention_mask: Whether to give ``attention_mask``, of ``sequence_length`` squared bytes for
            each sample (or once for all, where it is the same).
        cu_seqlens: Whether to give the boundaries of documents within samples, ``cu_seqlens`` and
            ``max_seqlen``, with positions that start again at each: Megatron's inter-document masking.
            It is on where the plan says so.
        document_ids: Whether to give ``document_ids`` and ``dataset_ids``.
        num_tokens: Whether to give ``num_tokens``, the labels that count of each sample.
        repeated: Whether to give ``repeated``: which samples ``--tail pad`` reads again to fill a batch.
        tokens_only: Whether to give nothing but ``tokens``, the samples as they are stored, with the extra
            token and with ``pad_id`` for padding: the fastest, for trainers that make labels and masks.
        pad_to_multiple: Of documents: each micro-batch is as long as its longest document, rounded up to
            a multiple of this. Of packed samples, with ``cu_seqlens``: each document within a sample is
            padded to a multiple of this, and ``cu_seqlens_padded`` is given, too.
        max_length: Of documents: longer ones are cut here; None for never.

    Raises:
        UsageError: An option needs ``eod_id``, options contradict each other, or a number is out of range.
    """

    eod_id: int | None = None
    pad_id: int = NO_PAD_ID
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    cu_seqlens: bool = False
    document_ids: bool = False
    num_tokens: bool = False
    repeated: bool = False
    tokens_only: bool = False
    pad_to_multiple: int = 1
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) and self.eod_id is None:
                raise UsageError(f"{name} requires eod_id")
        if self.reset_attention_mask and not self.create_attention_mask:
            raise UsageError(
                "reset_attention_mask requires create_attention_mask",
                hint="set cu_seqlens for attention kernels that build their own mask",
            )
        if self.cu_seqlens and self.create_attention_mask:
            raise UsageError("cu_seqlens cannot be used with create_attention_mask")
        for field in fields(self) if self.tokens_only else ():
            if field.name not in _WITH_TOKENS_ONLY and getattr(self, field.name) != field.default:
                raise UsageError(f"tokens_only cannot be used with {field.name}")
        if self.pad_to_multiple < 1 or (self.max_length is not None and self.max_length < 1):
            raise UsageError(
                f"pad_to_multiple and max_length must be at least 1, "
                f"got {self.pad_to_multiple} and {self.max_length}"
            )


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
        self._slices = context_slices(shape.sequence_length, shape.context, shape.context_rank)
        self._length: int = sum(part.stop - part.start for part in self._slices)
        self._is_cut = len(self._slices) > 1
        # The other fields with a value for each token; of a sequence that is cut, all of them.
        whole = () if self._is_cut else ("tokens", "labels", "loss_mask")
        self._others = tuple(name for name in self.names if name in _DTYPES and name not in whole)
        self._has_more = not _DTYPES.keys() >= set(self.names)
        self._needs_starts = options.reset_position_ids or options.reset_attention_mask
        self._has_bounds = "cu_seqlens" in shape.fields
        self._layout: Layout = ()
        self._row = np.arange(shape.sequence_length, dtype=np.int64)[None]

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
        arrays = self.arrays(len(samples), memory)
        tokens, labels, *_ = arrays
        texts = np.stack([sample.tokens for sample in samples])
        tokens[:] = texts[:, : self.shape.sequence_length]
        followed = texts.shape[1] - 1
        labels[:, :followed] = texts[:, 1:]
        labels[:, followed:] = self.options.pad_id
        return self.complete(arrays, datasets, samples)

    def arrays(self, samples: int, memory: Memory) -> list[NDArray[Any]]:
        """Return the arrays of a micro-batch for :meth:`complete`; the first two are tokens and labels."""
        shape = (samples, self.shape.sequence_length)
        if not self._layout or self._layout[0][0] != shape:
            others = (((samples, self._length), _DTYPES[name]) for name in self._others)
            self._layout = ((shape, np.int64), (shape, np.int64), (shape, np.float32), *others)
        return memory.arrays(self._layout)

    def complete(
        self,
        arrays: list[NDArray[Any]],
        datasets: NDArray[np.int16],
        samples: Sequence[Sample] = (),
        *,
        padded: bool = True,
    ) -> MicroBatch:
        """Return the fields of a micro-batch from its tokens and labels.

        Args:
            arrays: Those of :meth:`arrays`, the first two filled: int64 of shape (samples, sequence_length),
                padding included.
            datasets: The dataset of each sample: int16 of shape (samples,).
            samples: The samples with their documents; empty where these are not needed.
            padded: Whether ``pad_id`` may be among the tokens and labels.
        """
        options = self.options
        tokens, labels, loss_mask, *others = arrays
        starts = None
        if self._needs_starts and options.eod_id is not None:
            starts = starts_after(tokens, options.eod_id)
        loss_mask.fill(1)
        if options.eod_mask_loss:
            loss_mask[tokens == options.eod_id] = 0
        if padded:
            self._clear_padding(tokens, labels, loss_mask)
        whole = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask}
        bounds: list[list[int]] = []
        if self._has_bounds:
            bounds = [document_bounds(sample.lengths, self.shape.sequence_length) for sample in samples]
        made: MicroBatch = {}
        for name, array in zip(self._others, others, strict=True):
            if name == "position_ids":
                values = self._position_ids(starts, bounds)
            elif name == "document_ids":
                values = self._document_ids(samples)
            else:
                values = whole[name]
            self._cut(values, array)
            made[name] = array
        if not self._is_cut:
            made |= whole
        if self._has_more:
            if "attention_mask" in self.names:
                made["attention_mask"] = self._attention_mask(len(tokens), starts)
            if self._has_bounds:
                made["cu_seqlens"], made["max_seqlen"] = packed_bounds(bounds, self.shape.sequence_length)
            made["dataset_ids"] = datasets
            made["num_tokens"] = np.count_nonzero(loss_mask, axis=1)
        return {name: made[name] for name in self.names}

    def _clear_padding(
        self, tokens: NDArray[np.int64], labels: NDArray[np.int64], loss_mask: NDArray[np.float32]
    ) -> None:
        pad_id = self.options.pad_id
        padding = labels == pad_id
        if padding.any():
            loss_mask[padding] = 0
            labels[padding] = 0
        # All but the first token of a sample are labels, too.
        elif not (tokens[:, 0] == pad_id).any():
            return
        tokens[tokens == pad_id] = 0

    def _position_ids(self, starts: NDArray[np.int64] | None, bounds: list[list[int]]) -> NDArray[np.int64]:
        if self._has_bounds:
            return self._row - starts_of(bounds, self.shape.sequence_length)
        if starts is not None and self.options.reset_position_ids:
            return self._row - starts
        return self._row

    def _attention_mask(self, samples: int, starts: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        queries = np.empty(self._length, np.int64)
        self._cut(self._row, queries[None])
        cut = None
        if starts is not None and self.options.reset_attention_mask:
            cut = np.empty((samples, self._length), np.int64)
            self._cut(starts, cut)
        return masked_attention(self.shape.sequence_length, queries, cut, samples)

    def _document_ids(self, samples: Sequence[Sample]) -> NDArray[np.int64]:
        ids = np.full((len(samples), self.shape.sequence_length + 1), NO_DOCUMENT, np.int64)
        for row, sample in zip(ids, samples, strict=True):
            row[: int(sample.lengths.sum())] = np.repeat(sample.document_ids, sample.lengths)
        return ids[:, : self.shape.sequence_length]

    def _cut(self, values: NDArray[Any], target: NDArray[Any]) -> None:
        """Write the rank's part of ``values`` to ``target``; a single row is repeated for each sample."""
        filled = 0
        for part in self._slices:
            size = part.stop - part.start
            target[:, filled : filled + size] = values[:, part]
            filled += size


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
