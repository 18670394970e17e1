"""Options of the micro-batches of a loader."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokshard.errors import UsageError

# What may be set with tokens_only: the others change or add fields.
_WITH_TOKENS_ONLY = {"tokens_only", "eod_id", "pad_id", "repeated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a micro-batch; the first six are Megatron's, by their names and with its meaning.

    Attributes:
        eod_id: The token that ends a document.
        pad_id: The token that stands for padding. Tokens of the data, which are never negative, count as
            padding, too, if they equal it.
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
    pad_id: int = -1
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
