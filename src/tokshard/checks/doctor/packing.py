"""Findings about packed indexes in the cache of a job and the arguments that they require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.core.findings import Finding
from tokshard.core.formatting import listed
from tokshard.samples.blend.plan import SplitPlan
from tokshard.samples.index.packing import Packing


def common_packing(packings: Iterable[Packing | None]) -> Packing | None:
    """Return the packing of all indexes, or None if they differ or are not packed.

    Example:
        >>> common_packing([Packing(), Packing()]), common_packing([Packing(), None])
        (Packing(max_documents=None, pad_multiple=None), None)
    """
    distinct = set(packings)
    return distinct.pop() if len(distinct) == 1 else None


def findings_of_packing(launch: LaunchArguments, splits: Sequence[SplitPlan]) -> Iterator[Finding]:
    """Yield the findings about a job that reads packed indexes.

    Args:
        launch: The arguments of the job.
        splits: The indexes that it reads, with their packing.
    """
    packing_of: dict[str, Packing] = {}
    for request in (request for split in splits for request in split.requests):
        if request.packing is not None:
            packing_of.setdefault(request.prefix, request.packing)
    if not packing_of:
        return
    names = listed(list(packing_of))
    if launch.dataloader_defer_npy_index_mmap:
        yield Finding(
            "packed-deferred",
            "error",
            f"the indexes of {names} are packed, but deferred index loading computes their number of samples "
            "from token counts",
            "remove --dataloader-defer-npy-index-mmap, or build the indexes with --pack concat in another "
            "cache directory",
        )
    if not launch.reset_attention_mask and not launch.dataloader_inter_document_masking:
        yield Finding(
            "packed-attention",
            "note",
            f"samples of {names} are packed documents, and attention crosses their borders",
            "add --dataloader-inter-document-masking (Megatron 0.19 or later) or, without Transformer "
            "Engine, --reset-attention-mask, unless this is intended",
        )
    if not (launch.reset_position_ids or launch.reset_attention_mask or launch.eod_mask_loss):
        # GPTDataset masks the padding of the first sample that it reads in the loss mask that it then keeps.
        yield Finding(
            "packed-loss-mask",
            "warning",
            f"samples of {names} are padded, and Megatron masks the padding of the first sample that a "
            "data loader worker reads in all samples that the worker reads later",
            "add --eod-mask-loss, --reset-position-ids or --reset-attention-mask: with any of them, Megatron "
            "computes the loss mask of every sample",
        )
    multiples = [packing.pad_multiple for packing in packing_of.values() if packing.pad_multiple is not None]
    if multiples:
        yield Finding(
            "packed-padding",
            "note",
            f"samples of {names} have room to pad each document to a multiple of "
            f"{multiples[0]} tokens, but Megatron does not pad documents",
            "build the indexes without --pad-multiple, unless another trainer reads them too",
        )
