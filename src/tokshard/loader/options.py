"""What a micro-batch holds beyond the plan: masks, boundaries, padding."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.gpt_index.samples import NO_PAD_ID


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
            a multiple of this.
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
                raise UsageError(f"{name} needs eod_id, the token that ends a document")
        if self.reset_attention_mask and not self.create_attention_mask:
            raise UsageError(
                "reset_attention_mask changes nothing without create_attention_mask",
                hint="attention kernels that make their own mask take cu_seqlens",
            )
        if self.cu_seqlens and self.create_attention_mask:
            raise UsageError("cu_seqlens and create_attention_mask are two ways of masking: choose one")
        if self.pad_to_multiple < 1 or (self.max_length is not None and self.max_length < 1):
            raise UsageError(
                f"pad_to_multiple {self.pad_to_multiple} and max_length {self.max_length} are 1 or more"
            )
