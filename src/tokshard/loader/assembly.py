"""Assembly of micro-batches: options, and the fields that a rank trains on, from the tokens of samples."""

from __future__ import annotations

import math
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
from tokshard.ranks.topology import context_slices
from tokshard.samples.index.samples import NO_PAD_ID, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.loader.memory import Layout


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
        pad_to_multiple: Of documents: each micro-batch is as long as its longest document, rounded up to
            a multiple of this. Of packed samples, with ``cu_seqlens``: each document within a sample is
            padded to a multiple of this, and ``cu_seqlens_padded`` is given, too.
        max_length: Of documents: longer ones are cut here; None for never.

    Raises:
        UsageError: An option needs ``eod_id``, or a number is out of range.
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


@dataclass(frozen=True, slots=True, eq=False)
class RawSamples:
    """The samples of a micro-batch as they are read.

    Attributes:
        tokens: int64 of shape (samples, sequence_length + extra).
        datasets: The dataset of each sample: int16 of shape (samples,).
        pieces: The documents of each sample; empty where they are not asked for.
    """

    tokens: NDArray[np.int64]
    datasets: NDArray[np.int16]
    pieces: Sequence[Sample] = ()


class SampleAssembly:
    """Assembler of micro-batches from samples of one length; a pure function of its arguments.

    Args:
        sequence_length: The tokens of a sample.
        extra_token: Whether samples are read with one token more, which is the last label.
        fields: What the rank reads, of :data:`tokshard.ranks.topology.FIELDS`. A rank that reads
            nothing gets nothing, whatever the options.
        options: Masks and boundaries.
        slices: What a context-parallel rank takes of a sequence, see
            :func:`tokshard.ranks.topology.context_slices`.

    Example:
        >>> whole = SampleAssembly(3, True, ("tokens", "labels"), BatchOptions(), (slice(0, 3),))
        >>> texts = RawSamples(np.array([[5, 6, 7, 8]]), np.zeros(1, np.int16))
        >>> batch = whole.micro_batch(texts, Memory())
        >>> batch["tokens"].tolist(), batch["labels"].tolist()
        ([[5, 6, 7]], [[6, 7, 8]])
    """

    def __init__(
        self,
        sequence_length: int,
        extra_token: bool,  # noqa: FBT001 - one of five facts about the samples
        fields: tuple[str, ...],
        options: BatchOptions,
        slices: tuple[slice, ...],
    ) -> None:
        self.sequence_length = sequence_length
        self.extra_token = extra_token
        self.fields = fields
        self.options = options
        self.slices = slices
        self.names = _names(fields, options)
        self._length: int = sum(part.stop - part.start for part in slices)
        self._is_cut = len(slices) > 1
        # The other fields with a value for each token; of a sequence that is cut, all of them.
        whole = () if self._is_cut else ("tokens", "labels", "loss_mask")
        self._others = tuple(name for name in self.names if name in _DTYPES and name not in whole)
        self._has_more = not _DTYPES.keys() >= set(self.names)
        self._needs_starts = options.reset_position_ids or options.reset_attention_mask
        self._layout: Layout = ()
        self._row = np.arange(sequence_length, dtype=np.int64)[None]

    @property
    def needs_pieces(self) -> bool:
        """True if the documents of samples are needed, and not only their tokens."""
        return "cu_seqlens" in self.fields or (self.options.document_ids and bool(self.fields))

    def micro_batch(self, texts: RawSamples, memory: Memory) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            texts: The samples.
            memory: Where the arrays lie.

        Returns:
            ``tokens``, ``labels``, ``position_ids`` and ``document_ids`` (int64) and ``loss_mask``
            (float32), all of shape (samples, length of the slices); ``num_tokens``, int64 of shape
            (samples,), counts the labels of whole samples; ``cu_seqlens``, ``max_seqlen`` and
            ``attention_mask`` as in :mod:`tokshard.loader.masks`.
        """
        arrays = self.arrays(len(texts.tokens), memory)
        tokens, labels, *_ = arrays
        if self.extra_token:
            tokens[:], labels[:] = texts.tokens[:, :-1], texts.tokens[:, 1:]
        else:
            tokens[:], labels[:, :-1], labels[:, -1] = texts.tokens, texts.tokens[:, 1:], self.options.pad_id
        return self.complete(arrays, texts.datasets, texts.pieces)

    def arrays(self, samples: int, memory: Memory) -> list[NDArray[Any]]:
        """Return the arrays of a micro-batch for :meth:`complete`; the first two are tokens and labels."""
        layout, shape = self._layout, (samples, self.sequence_length)
        if not layout or layout[0][0] != shape:
            rest = (((samples, self._length), _DTYPES[name]) for name in self._others)
            layout = ((shape, np.int64), (shape, np.int64), (shape, np.float32), *rest)
            self._layout = layout
        return memory.arrays(layout)

    def complete(
        self,
        arrays: list[NDArray[Any]],
        datasets: NDArray[np.int16],
        pieces: Sequence[Sample] = (),
        *,
        padded: bool = True,
    ) -> MicroBatch:
        """Return the fields of a micro-batch from its tokens and labels.

        Args:
            arrays: Those of :meth:`arrays`, the first two filled: int64 of shape (samples, sequence_length),
                padding included.
            datasets: The dataset of each sample: int16 of shape (samples,).
            pieces: The documents of each sample; empty where they are not asked for.
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
        bounds = [document_bounds(sample.lengths, self.sequence_length) for sample in pieces]
        made: MicroBatch = {}
        for name, array in zip(self._others, others, strict=True):
            if name == "position_ids":
                values = self._position_ids(starts, bounds)
            else:
                values = self._document_ids(len(tokens), pieces) if name == "document_ids" else whole[name]
            self._cut(values, array)
            made[name] = array
        if not self._is_cut:
            made |= whole
        if self._has_more:
            if "attention_mask" in self.names:
                made["attention_mask"] = self._attention_mask(len(tokens), starts)
            if "cu_seqlens" in self.names:
                made["cu_seqlens"], made["max_seqlen"] = packed_bounds(bounds, self.sequence_length)
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
        if "cu_seqlens" in self.fields:
            return self._row - starts_of(bounds, self.sequence_length)
        if starts is not None and self.options.reset_position_ids:
            return self._row - starts
        return self._row

    def _attention_mask(self, samples: int, starts: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        queries = np.empty(self._length, np.int64)
        self._cut(self._row, queries[None])
        if starts is None or not self.options.reset_attention_mask:
            return masked_attention(self.sequence_length, queries, None, samples)
        cut = np.empty((samples, self._length), np.int64)
        self._cut(starts, cut)
        return masked_attention(self.sequence_length, queries, cut, samples)

    def _document_ids(self, samples: int, pieces: Sequence[Sample]) -> NDArray[np.int64]:
        ids = np.full((samples, self.sequence_length + 1), NO_DOCUMENT, np.int64)
        for row, sample in zip(ids, pieces, strict=True):
            row[: int(sample.lengths.sum())] = np.repeat(sample.document_ids, sample.lengths)
        return ids[:, : self.sequence_length]

    def _cut(self, values: NDArray[Any], target: NDArray[Any]) -> None:
        # A single row is repeated for each sample.
        if not self._is_cut:
            target[...] = values
            return
        filled = 0
        for part in self.slices:
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


def check_multiple(multiple: int, context: int) -> None:
    """Check that context parallelism can divide documents that are padded to a multiple; 1 is no multiple.

    Raises:
        UsageError: It cannot.
    """
    if context > 1 and multiple > 1 and multiple % (2 * context):
        raise UsageError(
            f"pad_to_multiple must be divisible by 2 x context-parallel size = {2 * context}, got {multiple}"
        )


@dataclass(frozen=True, slots=True)
class DocumentAssembly:
    """Assembler of micro-batches from documents; a pure function of its arguments.

    A document of n tokens takes n positions: the label of each is the next token, and the last has none. A
    micro-batch is as long as its longest document, rounded up to the multiple that the options and context
    parallelism require. All ranks that read the same documents get the same length.

    Attributes:
        fields: What the rank reads, of :data:`tokshard.ranks.topology.FIELDS`.
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
        check_multiple(self.options.pad_to_multiple, self.context)

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
        cut = [document[: self.options.max_length] for document in documents]
        lengths = np.array([len(document) for document in cut], np.int64)
        length = self._padded(int(lengths.max(initial=0)))
        text = np.full((len(cut), length), self.options.pad_id, np.int64)
        for row, document in zip(text, cut, strict=True):
            row[: len(document)] = document
        slices = context_slices(length, self.context, self.context_rank)
        assembly = SampleAssembly(length, False, self.fields, self.options, slices)
        pieces = []
        if assembly.needs_pieces:
            pieces = [
                Sample(row, np.array([number]), np.array([size]))
                for row, number, size in zip(text, numbers, lengths, strict=True)
            ]
        batch = assembly.micro_batch(RawSamples(text, datasets, pieces), memory)
        batch["lengths"] = lengths
        return batch

    def _padded(self, longest: int) -> int:
        multiple = self.options.pad_to_multiple
        if self.context > 1:
            multiple = math.lcm(multiple, 2 * self.context)
        return max(-(-longest // multiple), 1) * multiple
