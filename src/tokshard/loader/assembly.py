"""From the tokens of samples to what a rank trains on: the fields of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.gpt_index.samples import Sample
from tokshard.loader.masks import (
    document_bounds,
    masked_attention,
    packed_bounds,
    starts_after,
    starts_of,
)
from tokshard.loader.memory import Memory
from tokshard.loader.options import BatchOptions

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

MicroBatch = dict[str, "NDArray[Any]"]
Allocator = Callable[[tuple[int, ...], "DTypeLike"], "NDArray[Any]"]

NO_DOCUMENT = -1
"""Stands in ``document_ids`` for padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The samples of a micro-batch as they are read.

    Attributes:
        tokens: int64 of shape (samples, sequence_length + extra). It is changed on the way.
        datasets: The dataset of each sample: int16 of shape (samples,).
        pieces: The documents of each sample; empty where they are not asked for.
    """

    tokens: NDArray[np.int64]
    datasets: NDArray[np.int16]
    pieces: Sequence[Sample] = ()


class SampleAssembly:
    """Makes micro-batches of samples of one length; what it makes depends on its arguments alone.

    Args:
        sequence_length: The tokens of a sample.
        extra_token: Whether samples are read with one token more, which is the last label.
        fields: What the rank reads, of :data:`tokshard.sharding.topology.FIELDS`. A rank that reads
            nothing gets nothing, whatever the options.
        options: Masks and boundaries.
        slices: What a context-parallel rank takes of a sequence, see
            :func:`tokshard.sharding.topology.context_slices`.

    Example:
        >>> whole = SampleAssembly(3, True, ("tokens", "labels"), BatchOptions(), (slice(0, 3),))
        >>> texts = Texts(np.array([[5, 6, 7, 8]]), np.zeros(1, np.int16))
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
        self._length: int = sum(one.stop - one.start for one in slices)
        self._row = np.arange(sequence_length, dtype=np.int64)[None]

    @property
    def needs_pieces(self) -> bool:
        """Whether the documents of samples are needed, and not their tokens alone."""
        return "cu_seqlens" in self.fields or (self.options.document_ids and bool(self.fields))

    def micro_batch(self, texts: Texts, memory: Memory) -> MicroBatch:
        """Return the fields of a micro-batch.

        Args:
            texts: The samples; their tokens are changed.
            memory: Where the arrays lie.

        Returns:
            ``tokens``, ``labels``, ``position_ids`` and ``document_ids`` (int64) and ``loss_mask``
            (float32), all of shape (samples, length of the slices); ``num_tokens``, int64 of shape
            (samples,), counts the labels of whole samples; ``cu_seqlens``, ``max_seqlen`` and
            ``attention_mask`` as in :mod:`tokshard.loader.masks`.
        """
        options = self.options
        new = memory.arena(self._size_bytes(len(texts.tokens))).new
        tokens, labels = self._shifted(texts.tokens)
        starts = None
        if options.eod_id is not None and (options.reset_position_ids or options.reset_attention_mask):
            starts = starts_after(tokens, options.eod_id)
        bounds = [document_bounds(one.lengths, self.sequence_length) for one in texts.pieces]
        loss_mask = new(tokens.shape, np.float32)
        self._weigh(tokens, labels, loss_mask)
        makers: dict[str, Callable[[], NDArray[Any]]] = {
            "tokens": lambda: self._cut(tokens, new),
            "position_ids": lambda: self._position_ids(len(tokens), starts, bounds, new),
            "labels": lambda: self._cut(labels, new),
            "loss_mask": lambda: loss_mask if len(self.slices) == 1 else self._cut(loss_mask, new),
            "attention_mask": lambda: self._attention_mask(len(tokens), starts),
            "cu_seqlens": lambda: packed_bounds(bounds, self.sequence_length)[0],
            "max_seqlen": lambda: packed_bounds(bounds, self.sequence_length)[1],
            "document_ids": lambda: self._cut(self._document_ids(texts), new),
            "dataset_ids": lambda: texts.datasets,
            "num_tokens": lambda: np.count_nonzero(loss_mask, axis=1),
        }
        return {name: makers[name]() for name in self.names}

    def _size_bytes(self, samples: int) -> int:
        """Return the size of the arrays of all tokens: five fields at most, and the whole loss mask."""
        wide = len({"tokens", "position_ids", "labels", "document_ids"}.intersection(self.names))
        return samples * (self._length * (8 * wide + 4) + self.sequence_length * 4) + 512

    def _shifted(self, text: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens and labels, padding included: views of the text where that is possible."""
        if self.extra_token:
            return text[:, :-1], text[:, 1:]
        labels = np.full_like(text, self.options.pad_id)
        labels[:, :-1] = text[:, 1:]
        return text, labels

    def _weigh(
        self, tokens: NDArray[np.int64], labels: NDArray[np.int64], loss_mask: NDArray[np.float32]
    ) -> None:
        """Fill in which labels count, and put 0 in the place of padding."""
        loss_mask.fill(1)
        if self.options.eod_mask_loss:
            loss_mask[tokens == self.options.eod_id] = 0
        # Labels first: where they are views of the text, their padding is that of the tokens, too.
        padding = labels == self.options.pad_id
        if padding.any():
            loss_mask[padding] = 0
            labels[padding] = 0
        rest = tokens[:, :1] if self.extra_token else tokens
        padding = rest == self.options.pad_id
        if padding.any():
            rest[padding] = 0

    def _position_ids(
        self, samples: int, starts: NDArray[np.int64] | None, bounds: list[list[int]], new: Allocator
    ) -> NDArray[np.int64]:
        if "cu_seqlens" in self.fields:
            return self._cut(self._row - starts_of(bounds, self.sequence_length), new)
        if starts is not None and self.options.reset_position_ids:
            return self._cut(self._row - starts, new)
        return self._cut(self._row, new, samples)

    def _attention_mask(self, samples: int, starts: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        queries = self._cut(self._row, np.empty)[0]
        if starts is None or not self.options.reset_attention_mask:
            return masked_attention(self.sequence_length, queries, None, samples)
        return masked_attention(self.sequence_length, queries, self._cut(starts, np.empty), samples)

    def _document_ids(self, texts: Texts) -> NDArray[np.int64]:
        ids = np.full(texts.tokens.shape, NO_DOCUMENT, np.int64)
        for row, one in zip(ids, texts.pieces, strict=True):
            row[: int(one.lengths.sum())] = np.repeat(one.document_ids, one.lengths)
        return ids[:, : self.sequence_length]

    def _cut(self, values: NDArray[Any], new: Allocator, samples: int | None = None) -> NDArray[Any]:
        """Return a copy of the slices of each row; of the only row, once for each sample."""
        result = new((samples or len(values), self._length), values.dtype)
        filled = 0
        for one in self.slices:
            size = one.stop - one.start
            result[:, filled : filled + size] = values[:, one]
            filled += size
        return result


def _names(fields: tuple[str, ...], options: BatchOptions) -> tuple[str, ...]:
    """Return the names of the arrays of a micro-batch."""
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
