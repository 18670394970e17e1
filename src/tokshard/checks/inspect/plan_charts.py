"""Charts of a stream of a plan: its datasets, the part of each rank, its batch sizes and its steps."""

from __future__ import annotations

import numpy as np

from tokshard.checks.inspect.axes import SHARES, linear_axis
from tokshard.checks.inspect.planned import count_planned
from tokshard.core.formatting import count, counted, listed, number_ranges, percent, shown_path
from tokshard.core.presentation import (
    Aside,
    Axis,
    Bar,
    BarChart,
    Block,
    CurveChart,
    Lane,
    LaneChart,
    Span,
    Table,
    Tick,
)
from tokshard.errors import StorageError, TokshardError, raise_exhaustion
from tokshard.ranks.continuation import owner_of
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Stream
from tokshard.ranks.shuffles import DatasetShuffle

_SHOWN_BARS = 16
_SHOWN_DATASETS = 100
_FEW_STEPS = 8
_SPREAD = "spread over all sample ids"
_SHOWN_RANKS = 32
_SHOWN_STEPS = 80
_SHOWN_BATCH_SIZES = 500
_SHOWN_IDS = 5

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly however many there are."""


def add_charts(stream: Stream, blocks: list[Block], page_only: list[Block]) -> None:
    """Add the charts of a stream to the blocks of its section, or to those that only a page shows.

    Data that cannot be read is named on the page, and on the terminal as well if the disk fails.
    """
    parts = (
        ("Planned samples per dataset", _planned_blocks, blocks),
        ("Sample ids", _ids_charts, blocks),
        ("Batch sizes", _batch_size_charts, page_only),
        ("Datasets by step", _step_charts, blocks if _datasets_in_runs(stream) is None else page_only),
    )
    for subject, blocks_of, target in parts:
        try:
            found = blocks_of(stream)
        except TokshardError as error:
            raise_exhaustion(error)
            where = blocks if isinstance(error, StorageError) else page_only
            where.append(Aside(f"{subject} are unknown: {error.message}"))
        else:
            target.extend(found[:1])
            page_only += found[1:]


def rank_chart(stream: Stream, rank: int) -> list[Block]:
    """Return the chart of the samples of a data-parallel rank, if they are neighbors."""
    if _datasets_in_runs(stream) is None:
        return []
    axis = linear_axis("sample id", max(stream.source.total, 1))
    return [LaneChart("Sample ids it reads", [_rank_lane(stream, rank)], axis)]


def _planned_blocks(stream: Stream) -> list[Block]:
    """Return the chart of planned samples, and for the page the table of all numbers."""
    planned = count_planned(stream)
    rows = []
    bars = []
    for number, (dataset, samples) in enumerate(zip(stream.source.datasets, planned.counts, strict=True)):
        share = samples / max(planned.total, 1)
        prefix = shown_path(dataset.path_prefix)
        rows.append((str(number), prefix, count(samples), percent(share), count(dataset.samples)))
        bars.append(Bar(prefix, share, f"{count(samples)} ({percent(share)})", color=number))
    caption = f"Planned samples per dataset{'' if planned.exact else ' (estimated)'}"
    chart = BarChart(caption, bars[:_SHOWN_BARS], ("dataset", "samples"), full=1.0, ticks=SHARES)
    kind = "documents in dataset" if stream.source.kind == "documents" else "samples in index"
    header = ("number", "dataset", "planned samples", "share of plan", kind)
    table = Table(header, rows[:_SHOWN_DATASETS], left=(1,), caption="Datasets of the plan")
    blocks: list[Block] = [chart, table]
    if len(rows) > _SHOWN_DATASETS:
        blocks.append(Aside(f"{count(len(rows) - _SHOWN_DATASETS)} more datasets are not shown."))
    if not planned.exact:
        blocks.append(Aside("The counts are estimated from a random sample of the reads."))
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
    # All ranks alike: each reads samples from everywhere.
    order = stream.order
    samples = counted(order.samples_per_rank, "sample")
    if order.ranks == 1:
        return Lane("dp rank 0", [Span(0.0, 1.0, _SPREAD, shade=0.0)], samples)
    owner = owner_of(order.epoch_ranges[0], order)
    how = "in runs of the order" if owner is not None and owner.run else "in turn"
    label = f"dp ranks {number_ranges(range(order.ranks))}"
    return Lane(label, [Span(0.0, 1.0, _SPREAD, shade=0.0)], f"{samples} each, {how}")


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


def _step_charts(stream: Stream) -> list[Block]:
    order = stream.order
    if len(stream.source.datasets) == 1 or not order.steps:
        return []
    ranks = _spread(order.ranks, _SHOWN_RANKS)
    steps = _spread(order.steps, _SHOWN_STEPS)
    wide = len(steps)
    firsts = np.array([order.first_number(step) for step in steps], dtype=np.int64)
    numbers = order.micro_batch_size * np.array(ranks, dtype=np.int64)[:, np.newaxis] + firsts
    ids = order.ids(numbers.ravel(), stream.open_sort_key())
    datasets, _ = Locator(stream.source).locate(ids)
    cells = zip(ids.tolist(), datasets.tolist(), strict=True)
    prefixes = [shown_path(dataset.path_prefix) for dataset in stream.source.datasets]
    lanes = []
    for rank in ranks:
        spans = []
        for column, step in enumerate(steps):
            sample, dataset = next(cells)
            title = f"dp rank {rank}, step {step}: sample {count(sample)} of {prefixes[dataset]}"
            spans.append(Span(column / wide, (column + 1) / wide, title, dataset))
        lanes.append(Lane(f"dp rank {rank}", spans))
    some = [
        f"{shown} of {count(total)} {name}"
        for shown, total, name in (
            (len(ranks), order.ranks, "ranks"),
            (wide, order.steps, "steps"),
        )
        if shown < total
    ]
    part = f" ({', '.join(some)})" if some else ""
    places = sorted({0, wide // 4, wide // 2, 3 * wide // 4, wide - 1}) if wide > _FEW_STEPS else range(wide)
    chart = LaneChart(
        f"Dataset of the first sample that each data-parallel rank (dp rank) reads in each step{part}",
        lanes,
        Axis("step", [Tick((place + 0.5) / wide, count(steps[place])) for place in places]),
        prefixes[:_SHOWN_BARS],
        by_color=True,
    )
    return [chart]


def _spread(total: int, shown: int) -> tuple[int, ...]:
    """Return at most ``shown`` of the numbers below ``total``, with the first and the last.

    They are one of each of equal parts, and not equally far apart: of an order that repeats itself, as that
    of a blend, numbers at equal distances can show one source alone.

    Example:
        >>> _spread(3, 5), _spread(100, 4)
        ((0, 1, 2), (0, 40, 55, 99))
    """
    if total <= shown:
        return tuple(range(total))
    edges = [part * total // shown for part in range(shown + 1)]
    inner = [
        edges[part] + int(part * _GOLDEN % 1 * (edges[part + 1] - edges[part]))
        for part in range(1, shown - 1)
    ]
    return (0, *inner, total - 1)
