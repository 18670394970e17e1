"""Charts of a stream of a plan: its datasets, the part of each rank, its batch sizes and its steps."""

from __future__ import annotations

import numpy as np

from tokshard.checks.inspect.axes import linear_axis
from tokshard.checks.inspect.planned import count_by_rank, count_planned
from tokshard.core.formatting import count, counted, listed, number_ranges, percent, shown_path
from tokshard.core.presentation import (
    Aside,
    Block,
    CurveChart,
    Lane,
    LaneChart,
    Span,
    Table,
)
from tokshard.errors import StorageError, TokshardError, raise_exhaustion
from tokshard.ranks.continuation import owner_of
from tokshard.ranks.plan import Stream
from tokshard.ranks.shuffles import DatasetShuffle

_SHOWN_BARS = 16
_SHOWN_DATASETS = 100
_SHOWN_SHARES = 16
"""The most ranks in the table of shares."""
_SPREAD = "spread over all sample ids"
_SHOWN_RANKS = 32
_SHOWN_BATCH_SIZES = 500
_SHOWN_IDS = 5


def add_charts(stream: Stream, blocks: list[Block], page_only: list[Block]) -> None:
    """Add the charts of a stream to the blocks of its section, or to those that only a page shows.

    Data that cannot be read is named on the page, and on the terminal as well if the disk fails.
    """
    parts = (
        ("Planned samples per dataset", _share_blocks, blocks),
        ("Sample ids", _ids_charts, blocks),
        ("Batch sizes", _batch_size_charts, page_only),
    )
    for subject, blocks_of, target in parts:
        try:
            target.extend(blocks_of(stream))
        except TokshardError as error:
            raise_exhaustion(error)
            where = blocks if isinstance(error, StorageError) else page_only
            where.append(Aside(f"{subject} are unknown: {error.message}"))


def rank_chart(stream: Stream, rank: int) -> list[Block]:
    """Return the chart of the samples of a data-parallel rank, if they are neighbors."""
    if _datasets_in_runs(stream) is None:
        return []
    axis = linear_axis("sample id", max(stream.source.total, 1))
    return [LaneChart("Sample ids it reads", [_rank_lane(stream, rank)], axis)]


def _share_blocks(stream: Stream) -> list[Block]:
    """Return the table of the shares of each dataset over the run and by data-parallel rank."""
    planned = count_planned(stream)
    order = stream.order
    ranks = [*range(min(order.ranks, _SHOWN_SHARES) - 1), order.ranks - 1]
    counts, is_exact = count_by_rank(stream, ranks)
    by_rank = counts[:, :_SHOWN_DATASETS] / max(order.samples_per_rank, 1)
    names = [f"dp {rank}" for rank in ranks]
    header = ("dataset", "in data", "planned", "run", *names)
    rows = []
    shares = []
    for number, dataset in enumerate(stream.source.datasets[:_SHOWN_DATASETS]):
        of_run = planned.counts[number] / max(planned.total, 1)
        dataset_shares = [of_run, *by_rank[:, number].tolist()]
        amounts = (count(dataset.samples), count(planned.counts[number]))
        rows.append((shown_path(dataset.path_prefix), *amounts, *map(percent, dataset_shares)))
        shares.append([None, None, *dataset_shares])
    estimated = "" if planned.exact and is_exact else ", estimated from a random sample of the reads"
    caption = f"Share of each dataset in what the run and each data-parallel rank (dp) reads{estimated}"
    hidden = [*names[::-1], "in data"]
    blocks: list[Block] = [Table(header, rows, caption=caption, hide=hidden, shares=shares)]
    if len(stream.source.datasets) > len(rows):
        blocks.append(Aside(f"{count(len(stream.source.datasets) - len(rows))} more datasets are not shown."))
    if order.ranks > len(ranks):
        blocks.append(Aside(f"{count(order.ranks - len(ranks))} more ranks are not shown."))
    return blocks


def _batch_size_charts(stream: Stream) -> list[Block]:
    steps = stream.order.steps
    pieces = [piece for piece in stream.order.timeline.pieces if piece[0] < steps][:_SHOWN_BATCH_SIZES]
    if len(pieces) < 2:
        return []
    most = max(batch for _, _, batch in pieces)
    points = [(first / steps, batch / most) for first, _, batch in pieces]
    chart = CurveChart(
        "Global batch size at each step",
        points,
        across=linear_axis("step", steps),
        up=linear_axis("samples in a global batch", most),
        steps=True,
    )
    return [chart]


def _ids_charts(stream: Stream) -> list[Block]:
    source = stream.source
    if source.order is not None:
        return []
    ranks = stream.order.ranks
    shown = source.datasets[:_SHOWN_BARS]
    bounds = source.bounds.tolist()
    lanes = [
        Lane(
            f"dataset {number}",
            [_ids_span(stream, number, bounds[number], bounds[number + 1])],
            f"{counted(dataset.samples, 'sample')} of {shown_path(dataset.path_prefix)}",
        )
        for number, dataset in enumerate(shown)
    ]
    if len(source.datasets) > len(shown):
        lanes.append(Lane("...", [], f"{count(len(source.datasets))} datasets in all"))
    if _datasets_in_runs(stream) is None:
        lanes.append(_spread_lane(stream))
    else:
        shown_ranks = [*range(min(ranks, _SHOWN_RANKS) - 1), ranks - 1]
        lanes += [_rank_lane(stream, rank) for rank in shown_ranks]
    chart = LaneChart(
        "Sample ids of each dataset, and the ids that each data-parallel rank (dp rank) reads",
        lanes,
        linear_axis("sample id", max(source.total, 1)),
        [shown_path(dataset.path_prefix) for dataset in shown],
        spread=_SPREAD,
    )
    return [chart]


def _spread_lane(stream: Stream) -> Lane:
    """Return one lane for all ranks, of which each reads samples from everywhere."""
    order = stream.order
    label = "dp rank 0" if order.ranks == 1 else f"dp ranks {number_ranges(range(order.ranks))}"
    note = f"{counted(order.samples_per_rank, 'sample')}{' each' if order.ranks > 1 else ''}"
    return Lane(label, [Span(0.0, 1.0, _SPREAD, shade=0.0)], note)


def _datasets_in_runs(stream: Stream) -> list[int] | None:
    """Return the datasets in reading order if each rank reads a run of neighboring samples, or else None."""
    epochs = stream.order.epoch_ranges[0]
    owner = owner_of(epochs, stream.order)
    if stream.source.order is not None or epochs.epochs != 1 or len(stream.order.epoch_ranges) > 1:
        return None
    if owner is None or not owner.run:
        return None
    match epochs.links[1:]:
        case ():
            return list(range(len(stream.source.datasets)))
        case (DatasetShuffle() as shuffle,):
            numbers: list[int] = shuffle.order(epochs.first_epoch).tolist()
            return numbers
    return None


def _rank_lane(stream: Stream, rank: int) -> Lane:
    order = stream.order
    epochs = order.epoch_ranges[0]
    bounds = stream.source.bounds.tolist()
    owner = epochs.links[0]
    numbers = np.append(order.numbers(rank, 0, 1), order.numbers(rank, order.samples_per_rank - 1, 1))
    first, last = owner.forward(numbers + order.skipped, epochs.first_epoch).tolist()
    spans = []
    begin = 0
    for number in _datasets_in_runs(stream) or ():
        samples = stream.source.datasets[number].samples
        low = max(first - begin, 0)
        high = min(last + 1 - begin, samples)
        if low < high:
            spans.append(_ids_span(stream, number, bounds[number] + low, bounds[number] + high))
        begin += samples
    read = listed([span.color for span in spans], _SHOWN_IDS)
    return Lane(f"dp rank {rank}", spans, f"{counted(order.samples_per_rank, 'sample')} of dataset {read}")


def _ids_span(stream: Stream, dataset: int, first: int, stop: int) -> Span:
    samples = f"samples {count(first)} to {count(stop - 1)}" if first < stop else "no samples"
    title = f"{samples} of {stream.source.datasets[dataset].path_prefix}"
    total = max(stream.source.total, 1)
    return Span(first / total, stop / total, title, dataset)
