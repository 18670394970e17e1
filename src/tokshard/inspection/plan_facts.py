"""Descriptions of plans, of their ranks and of the places of samples."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.core.formatting import Table, count, counted, shown_path
from tokshard.core.presentation import (
    Bar,
    BarChart,
    Block,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    Paragraph,
    Section,
    Span,
)
from tokshard.errors import TokshardError
from tokshard.inspection.facts import SUMMARY_TITLE, Facts
from tokshard.inspection.plans import RankSummary, ReadGrid, SamplePlace, parents_of, read_grid
from tokshard.sharding.layouts import Striped
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.ranks import SampleRange, ranges_of
from tokshard.sharding.summary import Composition, Coverage, coverage_of

_SHOWN_SHARDS = 16
_SHOWN_RANKS = 32
_SHOWN_STEPS = 80
_SHOWN_BATCH_SIZES = 500
_SHOWN_IDS = 5


def describe_plan(plan: Plan, *, charts: bool = True) -> list[Section]:
    """Return the description of a plan, a section for each stream; without charts no data is opened."""
    topology = plan.topology
    sizes = (
        f"tensor {topology.tensor} x context {topology.context} x data {topology.data_parallel} x "
        f"pipeline {topology.pipeline}, order {topology.order}"
    )
    facts: Facts = [("plan", plan.plan_id), ("ranks", f"{count(topology.world_size)}: {sizes}")]
    facts += [("" if number else "continues", parent) for number, parent in enumerate(parents_of(plan))]
    facts += [("warning", warning) for warning in plan.warnings]
    sections = [Section(SUMMARY_TITLE, [FactList(facts)])]
    return sections + [_describe_stream(name, plan.streams[name], charts=charts) for name in plan.streams]


def _describe_stream(name: str, stream: Stream, *, charts: bool) -> Section:
    assignment = stream.assignment
    sizes = [batch for first, _, batch in assignment.timeline.pieces if first < max(1, assignment.steps)]
    growing = f" to {count(sizes[-1])}" if len(sizes) > 1 else ""
    facts: Facts = [
        ("samples", count(stream.source.total)),
        ("steps", f"{count(assignment.steps)} with a global batch size of {count(sizes[0])}{growing}"),
        (
            "on each rank",
            (
                f"{counted(assignment.samples_per_rank, 'sample')} in micro-batches of "
                f"{assignment.micro_batch_size}; {count(assignment.ranks)} data-parallel ranks"
            ),
        ),
        *Composition.of(stream).lines(),
    ]
    if assignment.consumed_samples:
        facts.append(("consumed", f"{counted(assignment.consumed_samples, 'sample')} before step 0"))
    facts += _tail_facts(coverage_of(assignment))
    if not charts:
        return Section(name, [FactList(facts)])
    blocks: list[Block] = [FactList(facts), _shards_chart(stream)]
    page_only = _batch_size_chart(stream)
    grid = _grid(stream)
    if grid is not None:
        mixed = len(stream.source.datasets) > 1 and ranges_of(assignment, stream.source, 0) is None
        chart = _grid_chart(stream, grid)
        (blocks if mixed and grid.datasets is not None else page_only).append(chart)
        if grid.unknown is not None:
            page_only.append(Paragraph(f"The datasets cannot be told from here: {grid.unknown}", soft=True))
    return Section(name, blocks, page_only)


def _tail_facts(covered: Coverage) -> Facts:
    facts: Facts = []
    for epochs in covered.epoch_ranges:
        if dropped := epochs.dropped:
            pairs = [] if epochs.dropped_ids is None else epochs.dropped_ids.to_json_value()
            ids = [f"{first}" if stop == first + 1 else f"{first} to {stop - 1}" for first, stop in pairs]
            facts.append(("dropped", f"{counted(dropped, 'sample')} in each epoch{_listed(ids)}"))
        if epochs.repeated:
            ids = [
                f"{sample} ({times} times)" if times > 1 else f"{sample}"
                for sample, times in epochs.repeated_ids or ()
            ]
            facts.append(("repeated", f"{counted(epochs.repeated, 'sample')} in each epoch{_listed(ids)}"))
    if covered.left:
        facts.append(("remaining", f"{counted(covered.left, 'sample')} could be read after the last step"))
    return facts


def _listed(ids: list[str]) -> str:
    if not ids:
        return ""
    rest = len(ids) - _SHOWN_IDS
    more = f" and {count(rest)} more" if rest > 0 else ""
    return f": ids {', '.join(ids[:_SHOWN_IDS])}{more}"


def _batch_size_chart(stream: Stream) -> list[Block]:
    steps = stream.assignment.steps
    pieces = [piece for piece in stream.assignment.timeline.pieces if piece[0] < steps][:_SHOWN_BATCH_SIZES]
    if len(pieces) < 2:
        return []
    most = max(batch for _, _, batch in pieces)
    points = [(first / steps, batch / most) for first, _, batch in pieces]
    below = ("step 0", "", count(steps))
    return [CurveChart("Global batch size", points, left=(count(most), "0"), below=below, steps=True)]


def _shards_chart(stream: Stream) -> LaneChart | BarChart:
    source, assignment = stream.source, stream.assignment
    shown = source.datasets[:_SHOWN_SHARDS]
    if source.order is not None:
        bars = [
            Bar(dataset.prefix, dataset.samples, count(dataset.samples), color=number)
            for number, dataset in enumerate(shown)
        ]
        return BarChart(f"Samples of {counted(len(source.datasets), 'dataset')}, mixed", bars)
    bounds = source.bounds.tolist()
    lanes = [
        Lane(
            f"shard {number}",
            [_ids(bounds[number], bounds[number + 1], source.total, number, dataset.prefix)],
            f"{counted(dataset.samples, 'sample')} of {dataset.prefix}",
        )
        for number, dataset in enumerate(shown)
    ]
    if len(source.datasets) > len(shown):
        lanes.append(Lane("...", [], f"{count(len(source.datasets))} shards in all"))
    ranks = list(range(min(assignment.ranks, _SHOWN_RANKS)))
    if assignment.ranks > _SHOWN_RANKS:
        ranks[-1] = assignment.ranks - 1
    lanes += [_rank_lane(stream, rank, bounds) for rank in ranks]
    keys = [dataset.prefix for dataset in shown]
    caption = "Shards, and the samples of them that data-parallel ranks read, by sample ids"
    return LaneChart(caption, lanes, ("sample 0", "", count(source.total)), keys)


def _rank_lane(stream: Stream, rank: int, bounds: list[int]) -> Lane:
    assignment = stream.assignment
    samples = counted(assignment.samples_per_rank, "sample")
    ranges = ranges_of(assignment, stream.source, rank)
    if ranges is None:
        turns = isinstance(assignment.epoch_ranges[0].layout, Striped)
        how = f"1 of {assignment.ranks} {'in turn' if turns else 'runs of the order'}"
        return Lane(f"dp rank {rank}", [Span(0.0, 1.0, how, shade=0.0)], f"{samples}, {how}")
    shards = ", ".join(str(part.dataset) for part in ranges[:_SHOWN_IDS])
    more = ", ..." if len(ranges) > _SHOWN_IDS else ""
    spans = [_range_span(stream, part, bounds) for part in ranges]
    return Lane(f"dp rank {rank}", spans, f"{samples} of shard {shards}{more}" if ranges else "nothing")


def _range_span(stream: Stream, part: SampleRange, bounds: list[int]) -> Span:
    reference = stream.source.datasets[part.dataset]
    shift = bounds[part.dataset] - reference.first
    total = stream.source.total
    return _ids(part.first + shift, part.stop + shift, total, part.dataset, reference.prefix)


def _ids(first: int, stop: int, total: int, color: int, prefix: str) -> Span:
    title = f"samples {count(first)} to {count(stop - 1)} of {prefix}"
    return Span(first / max(total, 1), stop / max(total, 1), title, color)


def _grid(stream: Stream) -> ReadGrid | None:
    try:
        return read_grid(stream, ranks=_SHOWN_RANKS, steps=_SHOWN_STEPS)
    except TokshardError:
        return None  # the lengths that it sorts by are not here; all else of the plan is shown


def _grid_chart(stream: Stream, grid: ReadGrid) -> LaneChart:
    total, wide = max(stream.source.total, 1), len(grid.steps)
    lanes = []
    for row, rank in enumerate(grid.ranks):
        spans = []
        for column, step in enumerate(grid.steps):
            sample = grid.samples[row][column]
            dataset = None if grid.datasets is None else grid.datasets[row][column]
            of = "" if dataset is None else f" of {stream.source.datasets[dataset].prefix}"
            title = f"rank {rank}, step {step}: sample {count(sample)}{of}"
            spans.append(Span(column / wide, (column + 1) / wide, title, dataset or 0, sample / total))
        lanes.append(Lane(f"dp rank {rank}", spans))
    caption = (
        "First sample of data-parallel ranks at steps: each color or letter is a dataset, a stronger color "
        f"a larger id (of {count(total)})"
    )
    steps = grid.steps
    below = (f"step {count(steps[0])}", count(steps[wide // 2]), count(steps[-1]))
    keys = [dataset.prefix for dataset in stream.source.datasets[:_SHOWN_SHARDS]]
    return LaneChart(caption, lanes, below, keys, by_color=True)


def describe_rank(plan: Plan, summary: RankSummary) -> list[Section]:
    """Return the description of a rank, and of the samples that were asked for."""
    place = summary.coordinates
    facts: Facts = [
        ("rank", f"{count(summary.rank)} of {count(summary.world_size)}"),
        ("tensor", place.tp),
        ("context", place.cp),
        ("data", place.dp),
        ("pipeline", place.pp),
        ("plan", summary.plan_id),
    ]
    sections = [Section(SUMMARY_TITLE, [FactList(facts)])]
    for name, stream in plan.streams.items():
        assignment = stream.assignment
        reads = ", ".join(summary.streams[name].needs) or "nothing: other ranks send what it needs"
        numbers: Facts = [
            ("reads", reads),
            ("steps", count(assignment.steps)),
            ("samples", count(assignment.samples_per_rank)),
        ]
        blocks: list[Block] = [FactList(numbers)]
        if ranges_of(assignment, stream.source, place.dp):
            lane = _rank_lane(stream, place.dp, stream.source.bounds.tolist())
            blocks.append(LaneChart("By sample ids", [lane], ("0", "", count(stream.source.total))))
        sections.append(Section(name, blocks))
    if summary.places:
        where = "" if summary.step is None else f", step {summary.step}"
        sections.append(Section(f"{summary.stream}{where}", [_places_table(summary.places)]))
    return sections


def describe_places(stream: str, places: Sequence[SamplePlace]) -> list[Section]:
    """Return the description of the way of samples."""
    if not places:
        return [Section(stream, [Paragraph(f"no sample of {stream} stands for it")])]
    return [Section(stream, [_places_table(places)])]


def _places_table(places: Sequence[SamplePlace]) -> Table:
    header = (
        *("sample", "dp rank", "index", "step", "micro-batch", "row"),
        *("epoch", "shard", "of shard", "dataset"),
    )
    rows = [
        (
            count(place.sample),
            *(
                "-" if number is None else count(number)
                for number in (
                    place.data_parallel_rank,
                    place.index,
                    place.step,
                    place.micro_batch,
                    place.row,
                )
            ),
            count(place.epoch),
            count(place.dataset),
            count(place.dataset_sample),
            shown_path(place.prefix),
        )
        for place in places
    ]
    return Table(header, rows, left=(9,))
