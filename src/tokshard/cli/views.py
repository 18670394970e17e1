"""The screens of ``tokshard inspect``; those of plans are in :mod:`tokshard.cli.plans`."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from tokshard.cli import rendering, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard.blending.document import BlendSplit
    from tokshard.core.formatting import Table
    from tokshard.inspection.blends import BlendSummary
    from tokshard.inspection.caches import CacheSummary
    from tokshard.inspection.datasets import DatasetSummary
    from tokshard.inspection.documents import DocumentView
    from tokshard.inspection.indexes import IndexSummary
    from tokshard.inspection.job import Summary
    from tokshard.inspection.lengths import LengthSummary
    from tokshard.inspection.tokenizers import TokenizerSummary
    from tokshard.sharding.plan import Stream

_SHOWN_LENGTHS = 10
_SHOWN_TOKENS = 64
_SHOWN_RANKS = 16
_GRID_CELLS = 64
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def show(summary: Summary) -> None:
    """Print what a thing is, on one screen."""
    screens = {
        "DatasetSummary": show_dataset,
        "TokenizerSummary": show_tokenizer,
        "CacheSummary": show_cache,
        "IndexSummary": show_index,
        "BlendSummary": show_blend,
    }
    screens[type(summary).__name__](summary)  # type: ignore[operator]


def show_dataset(summary: DatasetSummary) -> None:
    """Print what a dataset is, and how long its documents are."""
    from tokshard.inspection.facts import dataset_facts

    rendering.facts(dataset_facts(summary))
    _show_lengths("tokens of a document", summary.document_lengths)


def show_tokenizer(summary: TokenizerSummary) -> None:
    """Print what a tokenizer is."""
    from tokshard.inspection.facts import tokenizer_facts

    rendering.facts(tokenizer_facts(summary))


def show_cache(summary: CacheSummary) -> None:
    """Print what a cache holds."""
    from tokshard.inspection.facts import cache_facts, cache_table

    rendering.facts(cache_facts(summary))
    _show_table(cache_table(summary))


def show_index(summary: IndexSummary) -> None:
    """Print what an index is, and what its arrays hold."""
    from tokshard.inspection.facts import array_table, index_facts, order_table

    rendering.facts(index_facts(summary))
    if summary.files.arrays:
        _show_table(array_table(summary.files))
    if summary.samples is not None:
        _show_lengths("sequences that a sample reads from", summary.samples.pieces)
    if summary.order is not None:
        _show_table(order_table(summary.order))
        _show_drift(summary.order.drift, max(summary.order.drift, default=0.0))


def show_blend(summary: BlendSummary) -> None:
    """Print what a blend is, and what each of its splits holds."""
    from tokshard.inspection.facts import blend_facts

    rendering.facts(blend_facts(summary))
    for split in summary.document.splits.values():
        terminal.say("")
        show_split(split)


def show_split(split: BlendSplit) -> None:
    """Print the certificate of a split, and how far it is from its weights over the run."""
    from tokshard.inspection.facts import certificate_table, split_title

    rendering.heading(split_title(split))
    if split.certificate.samples:
        rendering.table(*certificate_table(split))
        if split.kind != "single":
            _show_drift(split.certificate.weight_error_curve, split.certificate.weight_error)


def show_document(view: DocumentView) -> None:
    """Print a document: its tokens, and its text."""
    lengths = ", ".join(map(terminal.count, view.sequence_lengths[:_SHOWN_LENGTHS]))
    more = ", ..." if len(view.sequence_lengths) > _SHOWN_LENGTHS else ""
    shown = " ".join(map(str, view.tokens[:_SHOWN_TOKENS]))
    rest = f" ... and {len(view.tokens) - _SHOWN_TOKENS} more" if len(view.tokens) > _SHOWN_TOKENS else ""
    sequences = terminal.count(len(view.sequence_lengths))
    rendering.facts(
        [
            ("document", f"{terminal.count(view.document)} of {view.path_prefix}"),
            ("sequences", f"{sequences} of {lengths or 'no'}{more} tokens"),
            ("tokens", f"{shown}{rest}" if shown else "none"),
            ("text", "pass --tokenizer to see it" if view.text is None else ""),
        ]
    )
    for line in (view.text or "").split("\n"):
        terminal.say(f"  {terminal.safe(line)}".rstrip())


def show_grid(stream: Stream) -> None:
    """Print which dataset each rank begins with at each step, where ranks read of many in turn.

    Nothing is printed where there is one dataset, or where the data cannot be opened from here.
    """
    from tokshard.errors import TokshardError
    from tokshard.inspection.readgrid import read_grid

    datasets = stream.source.datasets
    try:
        grid = read_grid(stream, ranks=_SHOWN_RANKS, steps=min(_GRID_CELLS, rendering.width() - 20))
    except TokshardError:
        return
    if grid is None or grid.datasets is None or len(datasets) == 1:
        return
    steps = f"steps {terminal.count(grid.steps[0])} to {terminal.count(grid.steps[-1])}"
    terminal.say(f"{'begin with':>14}  {steps}: the dataset of the first sample")
    for rank, row in zip(grid.ranks, grid.datasets, strict=True):
        terminal.say(f"{f'dp rank {rank}':>14} │{''.join(map(_letter, row))}│")
    for number, one in enumerate(datasets[:_SHOWN_RANKS]):
        terminal.say(f"{_letter(number):>14}  {terminal.path(one.prefix)}")


def _letter(number: int) -> str:
    """Return the letter of a dataset; those after the last letter share a mark."""
    return _LETTERS[number] if number < len(_LETTERS) else "?"


def _show_table(table: Table) -> None:
    terminal.say("")
    rendering.table(*table)


def _show_lengths(what: str, lengths: LengthSummary) -> None:
    from tokshard.inspection.facts import bin_labels, range_of

    if lengths.count:
        terminal.say("")
        rendering.heading(what, range_of(lengths))
        labels = bin_labels(lengths)
        rendering.bars(
            [
                (label, one.count, terminal.count(one.count))
                for label, one in zip(labels, lengths.bins, strict=True)
            ]
        )


def _show_drift(curve: Sequence[float], most: float) -> None:
    from tokshard.inspection.facts import drift_note

    rendering.curve("off by", curve, max(1.0, most), drift_note(most))
