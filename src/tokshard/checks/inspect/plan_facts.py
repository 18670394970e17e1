"""Descriptions of plans, of their ranks and of the places of samples."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.checks.inspect.axes import SHARES, linear_axis
from tokshard.checks.inspect.facts import Facts
from tokshard.checks.inspect.planned import PlannedSamples, count_planned
from tokshard.checks.inspect.plans import RankSummary, ReadGrid, SamplePlace, parents_of, read_grid
from tokshard.core.formatting import count, counted, listed, number_ranges, percent, shown_path
from tokshard.core.presentation import (
    Aside,
    Axis,
    Bar,
    BarChart,
    Block,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    Section,
    Span,
    Table,
    Tick,
)
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.errors import StorageError, TokshardError, raise_exhaustion
from tokshard.ranks.layouts import Striped
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.ranks import SampleRange, ranges_of
from tokshard.ranks.summary import Composition, Coverage, coverage_of

_SHOWN_BARS = 16
_SHOWN_DATASETS = 100
_SHOWN_TABLE_RANKS = 64
_FEW_STEPS = 8
_SPREAD = "spread over all sample ids"
_SHOWN_RANKS = 32
_SHOWN_STEPS = 80
_SHOWN_BATCH_SIZES = 500
_SHOWN_IDS = 5
_SHOWN_RANGES = 3


def describe_plan(plan: Plan, *, charts: bool = True) -> list[Section]:
    """Return the description of a plan, a section for each stream; without charts no data is opened."""
    topology = plan.topology
    sizes = (
        f"tensor {topology.tensor_parallel} x context {topology.context_parallel} x "
        f"data {topology.data_parallel} x pipeline {topology.pipeline_parallel}, order {topology.rank_order}"
    )
    facts: Facts = [("plan", plan.plan_id), ("ranks", f"{count(topology.world_size)}: {sizes}")]
    facts += [("" if number else "continues", parent) for number, parent in enumerate(parents_of(plan))]
    if plan.tokenizer is not None and plan.tokenizer.identity is not None:
        identity = plan.tokenizer.identity
        facts.append(("tokenizer", f"{tokenizer_name(identity)}, {counted(identity.vocab_size, 'token')}"))
    facts += [("warning", warning) for warning in plan.messages]
    sections = [Section("", [FactList(facts)])]
    sections += [_describe_stream(name, plan.streams[name], charts=charts) for name in plan.streams]
    return [*sections, _ranks_section(plan)]


def _describe_stream(name: str, stream: Stream, *, charts: bool) -> Section:
    assignment = stream.assignment
    sizes = [batch for first, _, batch in assignment.timeline.pieces if first < max(1, assignment.steps)]
    reads = assignment.samples_per_rank * assignment.ranks
    title = f"{name}: {counted(reads, 'sample')} in {counted(assignment.steps, 'step')}"
    growing = f" to {count(sizes[-1])}" if len(sizes) > 1 else ""
    facts: Facts = [
        ("samples", f"{count(reads)} planned, {count(stream.source.total)} in the data"),
        ("steps", f"{count(assignment.steps)} with a global batch size of {count(sizes[0])}{growing}"),
        (
            "each rank",
            (
                f"{counted(assignment.samples_per_rank, 'sample')} in micro-batches of "
                f"{assignment.micro_batch_size}"
            ),
        ),
        *Composition.of(stream).lines(),
    ]
    if assignment.consumed_samples:
        facts.append(("consumed", f"{counted(assignment.consumed_samples, 'sample')} before step 0"))
    facts += _tail_facts(coverage_of(assignment))
    if not charts:
        return Section(title, [FactList(facts)])
    blocks: list[Block] = [FactList(facts)]
    page_only: list[Block] = []
    try:
        planned = count_planned(stream)
    except TokshardError as error:
        raise_exhaustion(error)
        unknown = Aside(f"Planned samples per dataset are unknown: {error.message}")
        _blocks_for(error, blocks, page_only).append(unknown)
    else:
        chart, *details = _planned_blocks(stream, planned)
        blocks.append(chart)
        page_only += details
    if stream.source.order is None:
        blocks.append(_ranges_chart(stream))
    page_only += _batch_size_chart(stream)
    grid = _grid(stream)
    if grid is not None and grid.unknown is not None:
        unknown = Aside(f"Datasets by step are unknown: {grid.unknown.message}")
        _blocks_for(grid.unknown, blocks, page_only).append(unknown)
    elif grid is not None and grid.datasets is not None and len(stream.source.datasets) > 1:
        mixed = ranges_of(assignment, stream.source, 0) is None
        (blocks if mixed else page_only).append(_grid_chart(stream, grid, grid.datasets))
    return Section(title, blocks, page_only)


def _blocks_for(error: TokshardError, blocks: list[Block], page_only: list[Block]) -> list[Block]:
    # Data that is elsewhere is no news on the terminal; a disk that fails is.
    return blocks if isinstance(error, StorageError) else page_only


def _planned_blocks(stream: Stream, planned: PlannedSamples) -> Sequence[Block]:
    """Return the chart of planned samples, and for the page the table of all numbers."""
    total, datasets = max(planned.total, 1), stream.source.datasets
    about = "" if planned.exact else " (estimated)"
    shares = [(number, samples / total) for number, samples in enumerate(planned.counts)]
    caption = f"Planned samples per dataset{about}"
    bars = [
        Bar(
            shown_path(datasets[number].path_prefix),
            share,
            f"{count(planned.counts[number])} ({percent(share)})",
            color=number,
        )
        for number, share in shares[:_SHOWN_BARS]
    ]
    chart = BarChart(caption, bars, ("dataset", "samples"), full=1.0, ticks=SHARES)
    rows = [
        (
            str(number),
            shown_path(datasets[number].path_prefix),
            count(planned.counts[number]),
            percent(share),
            count(datasets[number].samples),
        )
        for number, share in shares[:_SHOWN_DATASETS]
    ]
    kind = "documents in dataset" if stream.source.kind == "documents" else "samples in index"
    header = ("number", "dataset", "planned samples", "share of plan", kind)
    blocks: list[Block] = [chart, Table(header, rows, left=(1,), caption="Datasets of the plan")]
    if len(datasets) > len(rows):
        blocks.append(Aside(f"{count(len(datasets) - len(rows))} more datasets are not shown."))
    if not planned.exact:
        blocks.append(Aside("The counts are estimated from a random sample of the reads."))
    return blocks


def _tail_facts(covered: Coverage) -> Facts:
    facts: Facts = []
    for epochs in covered.epoch_ranges:
        if dropped := epochs.dropped:
            ids = [
                f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
                for first, stop in epochs.dropped_ids or ()
            ]
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
    return f": ids {listed(ids, _SHOWN_IDS)}" if ids else ""


def _batch_size_chart(stream: Stream) -> list[Block]:
    steps = stream.assignment.steps
    pieces = [piece for piece in stream.assignment.timeline.pieces if piece[0] < steps][:_SHOWN_BATCH_SIZES]
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


def _ranges_chart(stream: Stream) -> LaneChart:
    source, assignment = stream.source, stream.assignment
    shown, bounds = source.datasets[:_SHOWN_BARS], source.bounds.tolist()
    lanes = [
        Lane(
            f"dataset {number}",
            [_ids(bounds[number], bounds[number + 1], source.total, number, dataset.path_prefix)],
            f"{counted(dataset.samples, 'sample')} of {shown_path(dataset.path_prefix)}",
        )
        for number, dataset in enumerate(shown)
    ]
    if len(source.datasets) > len(shown):
        lanes.append(Lane("...", [], f"{count(len(source.datasets))} datasets in all"))
    ranks = list(range(min(assignment.ranks, _SHOWN_RANKS)))
    if assignment.ranks > _SHOWN_RANKS:
        ranks[-1] = assignment.ranks - 1
    if ranges_of(assignment, source, 0) is None:
        lanes.append(_spread_lane(stream))
    else:
        lanes += [_rank_lane(stream, rank, bounds) for rank in ranks]
    return LaneChart(
        "Sample ids of each dataset, and the ids that each data-parallel rank (dp rank) reads",
        lanes,
        linear_axis("sample id", max(source.total, 1)),
        [shown_path(dataset.path_prefix) for dataset in shown],
        spread=_SPREAD,
    )


def _spread_lane(stream: Stream) -> Lane:
    # All ranks alike: each reads samples from everywhere.
    assignment = stream.assignment
    samples = counted(assignment.samples_per_rank, "sample")
    if assignment.ranks == 1:
        return Lane("dp rank 0", [Span(0.0, 1.0, _SPREAD, shade=0.0)], samples)
    how = "in turn" if isinstance(assignment.epoch_ranges[0].layout, Striped) else "in runs of the order"
    label = f"dp ranks {number_ranges(range(assignment.ranks))}"
    return Lane(label, [Span(0.0, 1.0, _SPREAD, shade=0.0)], f"{samples} each, {how}")


def _rank_lane(stream: Stream, rank: int, bounds: list[int]) -> Lane:
    assignment = stream.assignment
    samples = counted(assignment.samples_per_rank, "sample")
    ranges = ranges_of(assignment, stream.source, rank) or ()
    numbers = listed([part.dataset for part in ranges], _SHOWN_IDS)
    spans = [_range_span(stream, part, bounds) for part in ranges]
    return Lane(f"dp rank {rank}", spans, f"{samples} of dataset {numbers}" if ranges else "nothing")


def _range_span(stream: Stream, part: SampleRange, bounds: list[int]) -> Span:
    reference = stream.source.datasets[part.dataset]
    shift = bounds[part.dataset] - reference.first
    total = stream.source.total
    return _ids(part.first + shift, part.stop + shift, total, part.dataset, reference.path_prefix)


def _ids(first: int, stop: int, total: int, color: int, prefix: str) -> Span:
    samples = f"samples {count(first)} to {count(stop - 1)}" if first < stop else "no samples"
    title = f"{samples} of {prefix}"
    return Span(first / max(total, 1), stop / max(total, 1), title, color)


def _grid(stream: Stream) -> ReadGrid | None:
    try:
        return read_grid(stream, ranks=_SHOWN_RANKS, steps=_SHOWN_STEPS)
    except TokshardError as error:
        raise_exhaustion(error)
        return None  # the lengths that it sorts by are not here; all else of the plan is shown


def _grid_chart(stream: Stream, grid: ReadGrid, datasets: Sequence[Sequence[int]]) -> LaneChart:
    wide, assignment = len(grid.steps), stream.assignment
    prefixes = [shown_path(dataset.path_prefix) for dataset in stream.source.datasets]
    lanes = []
    for row, rank in enumerate(grid.ranks):
        spans = []
        for column, step in enumerate(grid.steps):
            dataset, sample = datasets[row][column], count(grid.samples[row][column])
            title = f"dp rank {rank}, step {step}: sample {sample} of {prefixes[dataset]}"
            spans.append(Span(column / wide, (column + 1) / wide, title, dataset))
        lanes.append(Lane(f"dp rank {rank}", spans))
    some = [
        f"{shown} of {count(total)} {name}"
        for shown, total, name in (
            (len(grid.ranks), assignment.ranks, "ranks"),
            (wide, assignment.steps, "steps"),
        )
        if shown < total
    ]
    part = f" ({', '.join(some)})" if some else ""
    steps = grid.steps
    places = sorted({0, wide // 4, wide // 2, 3 * wide // 4, wide - 1}) if wide > _FEW_STEPS else range(wide)
    return LaneChart(
        f"Dataset of the first sample that each data-parallel rank (dp rank) reads in each step{part}",
        lanes,
        Axis("step", [Tick((place + 0.5) / wide, count(steps[place])) for place in places]),
        prefixes[:_SHOWN_BARS],
        by_color=True,
    )


def _ranks_section(plan: Plan) -> Section:
    topology, streams = plan.topology, plan.streams.values()
    boundaries = any(stream.document_boundaries for stream in streams)
    rows = []
    for rank in range(min(topology.world_size, _SHOWN_TABLE_RANKS)):
        place, needs = topology.coordinates(rank), topology.needs(rank, boundaries=boundaries)
        reads = ", ".join(needs) or "nothing: other ranks send what it needs"
        samples = [count(stream.assignment.samples_per_rank) if needs else "0" for stream in streams]
        rows.append((str(rank), *map(str, (place.tp, place.cp, place.dp, place.pp)), *samples, reads))
    header = (
        *("rank", "tensor", "context", "data", "pipeline"),
        *(f"{name} samples" for name in plan.streams),
        "fields read",
    )
    caption = "Every rank: its place in each parallel dimension, and what it reads from disk"
    blocks: list[Block] = [Table(header, rows, left=(len(header) - 1,), caption=caption)]
    if topology.world_size > len(rows):
        blocks.append(Aside(f"{count(topology.world_size - len(rows))} more ranks are not shown."))
    return Section("Ranks", [_rank_groups(plan, boundaries=boundaries)], blocks)


def _rank_groups(plan: Plan, *, boundaries: bool) -> Table:
    """Return a table with one line for all ranks that read the same fields."""
    topology, groups = plan.topology, dict[tuple[str, ...], list[int]]()
    for rank in range(topology.world_size):
        groups.setdefault(tuple(topology.needs(rank, boundaries=boundaries)), []).append(rank)
    sizes = {
        "tp": ("tensor", topology.tensor_parallel),
        "cp": ("context", topology.context_parallel),
        "dp": ("data", topology.data_parallel),
        "pp": ("pipeline", topology.pipeline_parallel),
    }
    axes = {axis: name for axis, (name, size) in sizes.items() if size > 1}
    rows = []
    for needs, ranks in groups.items():
        places = [topology.coordinates(rank) for rank in ranks]
        where = [number_ranges(sorted({getattr(place, axis) for place in places})) for axis in axes]
        reads = ", ".join(needs) or "nothing: other ranks send it"
        rows.append((number_ranges(ranks, _SHOWN_RANGES), *where, reads))
    names = list(axes.values())
    return Table(("ranks", *names, "fields read"), rows, left=(0, len(axes) + 1), hide=names[::-1])


def describe_rank(plan: Plan, summary: RankSummary) -> list[Section]:
    """Return the description of a rank, and of the requested samples."""
    place = summary.coordinates
    facts: Facts = [
        ("rank", f"{count(summary.rank)} of {count(summary.world_size)}"),
        ("tensor", place.tp),
        ("context", place.cp),
        ("data", place.dp),
        ("pipeline", place.pp),
        ("plan", summary.plan_id),
    ]
    sections = [Section("", [FactList(facts)])]
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
            axis = linear_axis("sample id", max(stream.source.total, 1))
            blocks.append(LaneChart("Sample ids it reads", [lane], axis))
        sections.append(Section(name, blocks))
    if summary.places:
        where = "" if summary.step is None else f", step {summary.step}"
        sections.append(Section(f"{summary.stream}{where}", [_places_table(summary.places)]))
    return sections


def describe_places(stream: str, places: Sequence[SamplePlace]) -> list[Section]:
    """Return the description of the way of samples."""
    if not places:
        return [Section(stream, [f"{stream} does not contain the sample"])]
    return [Section(stream, [_places_table(places)])]


def _places_table(places: Sequence[SamplePlace]) -> Table:
    header = (
        *("sample", "dp rank", "index", "step", "micro-batch", "row"),
        *("epoch", "dataset sample", "dataset"),
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
            count(place.dataset_sample),
            shown_path(place.prefix),
        )
        for place in places
    ]
    return Table(header, rows, left=(8,), hide=("index", "row", "epoch", "micro-batch"))
