"""Descriptions of packed samples: an epoch of them, compared with concatenated documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokshard.checks.inspect.axes import SHARES
from tokshard.core.formatting import count, percent
from tokshard.core.presentation import Bar, BarChart, FactList, Section, Table

if TYPE_CHECKING:
    from tokshard.samples.index.epoch_plan import EpochPlan

_SHOWN_BARS = 100
_HEADER = ("dataset", "split", "sequence", "packing", "samples", "fill", "documents cut", "tokens in these")
_JOB_OPTIONS = (
    ("--eod-mask-loss", "required, or a --reset option: else padding masks other samples"),
    ("--dataloader-inter-document-masking", "attention within documents, from Megatron 0.19 on"),
    ("--reset-position-ids", "positions from 0 in each document, for learned embeddings"),
    ("--reset-attention-mask", "attention within documents; Transformer Engine ignores it"),
    ("--dataloader-defer-npy-index-mmap", "excluded: the job would expect concatenated samples"),
)


def describe_packed(indexes: Iterable[tuple[str, str, EpochPlan]]) -> list[Section]:
    """Return the description of the packed samples of indexes; empty if no index is packed.

    Args:
        indexes: Dataset, split and numbers of each index.
    """
    epochs = {(name, split, plan.sequence_length): plan for name, split, plan in indexes}
    rows = []
    bars = []
    for name, split, length in sorted(epochs):
        plan = epochs[name, split, length]
        packed = plan.packed
        tokens = plan.tokens_per_epoch
        if packed is None or not tokens:
            continue
        fill = tokens / (packed.samples * length)
        share = packed.cut_tokens / tokens
        concat_share = packed.concat_cut_tokens / tokens
        documents = count(packed.documents)
        rows += [
            (
                *(name, split, count(length), "best-fit", count(packed.samples), percent(fill)),
                *(f"{count(packed.cut_documents)} of {documents}", percent(share)),
            ),
            (
                *("", "", "", "concat (expected)"),
                *(count((tokens - plan.extra_token) // length), percent(1)),
                *(f"{count(packed.concat_cut_documents)} of {documents}", percent(concat_share)),
            ),
        ]
        bars.append(Bar(f"{name}, {split}, {count(length)}", share, percent(share), mark=concat_share))
    if not rows:
        return []
    chart = BarChart(
        "Tokens in documents that are cut",
        bars[:_SHOWN_BARS],
        ("dataset, split, sequence", "tokens"),
        full=1.0,
        ticks=SHARES,
        mark="concatenated documents (expected)",
    )
    caption = "One epoch of packed samples, compared with concatenated documents"
    table = Table(_HEADER, rows, (0, 1, 3), caption, ("tokens in these", "sequence", "fill"))
    return [
        Section("Packed samples", [table], [chart]),
        Section("Options of the job", [FactList(_JOB_OPTIONS)]),
    ]
