"""Descriptions of plans, of their ranks and of the places of samples."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.checks.inspect.axes import SHARES, linear_axis
from tokshard.checks.inspect.facts import Facts
from tokshard.checks.inspect.planned import PlannedSamples, count_planned
from tokshard.checks.inspect.plans import (
    RankSummary,
    ReadGrid,
    SamplePlace,
    read_grid,
    remaining_samples,
    shuffle_words,
)
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
from tokshard.ranks.continuation import owner_of
from tokshard.ranks.links import Bucketing
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.shuffles import DatasetShuffle
from tokshard.ranks.sources import SampleSource
from tokshard.samples.index.packing import pack_words

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
    labels = ("continues", *[""] * len(plan.history))
    facts += [(label, stopped.plan_id) for label, stopped in zip(labels, plan.history, strict=False)]
    if plan.tokenizer is not None and plan.tokenizer.identity is not None:
        identity = plan.tokenizer.identity
        facts.append(("tokenizer", f"{tokenizer_name(identity)}, {counted(identity.vocab_size, 'token')}"))
    facts += [("warning", warning) for warning in plan.messages]
    sections = [Section("", [FactList(facts)])]
    sections += [_describe_stream(name, plan.streams[name], charts=charts) for name in plan.streams]
    return [*sections, _ranks_section(plan)]


def _describe_stream(name: str, stream: Stream, *, charts: bool) -> Section:
    order = stream.order
    title = f"{name}: {counted(order.samples, 'sample')} in {counted(order.steps, 'step')}"
    facts = _stream_facts(stream)
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
    if order.steps and len(stream.source.datasets) > 1:
        is_mixed = _datasets_in_runs(stream) is None
        try:
            grid = read_grid(stream, ranks=_SHOWN_RANKS, steps=_SHOWN_STEPS)
        except TokshardError as error:
            raise_exhaustion(error)
            unknown = Aside(f"Datasets by step are unknown: {error.message}")
            _blocks_for(error, blocks, page_only).append(unknown)
        else:
            (blocks if is_mixed else page_only).append(_grid_chart(stream, grid))
    return Section(title, blocks, page_only)


def _stream_facts(stream: Stream) -> list[tuple[str, str]]:
    """Return the samples of a stream, and the order of its first epoch from the data to the ranks."""
    order = stream.order
    first = order.epoch_ranges[0]
    sizes = [batch for step, _, batch in order.timeline.pieces if step < max(1, order.steps)]
    growing = f" to {count(sizes[-1])}" if len(sizes) > 1 else ""
    per_rank = counted(order.samples_per_rank, "sample")
    owner = owner_of(first, order)
    if owner is None:
        how = f"{count(order.micro_batch_size)} in turn"
    else:
        how = f"runs of {count(owner.run)}" if owner.run else "1 in turn"
    read = first.read - order.skipped
    samples = counted(read - first.repeated + first.dropped, "sample")
    ranks = counted(order.ranks, "data-parallel rank")
    each = count(read // order.ranks)
    facts = [
        ("samples", f"{count(order.samples)} planned, {count(stream.source.total)} in the data"),
        ("steps", f"{count(order.steps)} with a global batch size of {count(sizes[0])}{growing}"),
        ("each rank", f"{per_rank} in micro-batches of {order.micro_batch_size}"),
        ("sample", _sample_words(stream.source)),
        ("blend", _blend_words(stream.source)),
        ("shuffle", ", then ".join(shuffle_words(stream)) or "none"),
        *(
            ("bucketing", f"{link.words}, sorted by {stream.sort_key}")
            for link in first.links
            if isinstance(link, Bucketing)
        ),
        (
            "assignment",
            f"{stream.mode}: {samples} over {ranks}, {how}, {each} per rank; tail {stream.tail}",
        ),
    ]
    if order.consumed_samples:
        facts.append(("consumed", f"{counted(order.consumed_samples, 'sample')} before step 0"))
    for epochs in order.epoch_ranges:
        counts = {"dropped": epochs.dropped, "repeated": epochs.repeated}
        facts += [
            (label, f"{counted(number, 'sample')} in each epoch")
            for label, number in counts.items()
            if number
        ]
    if left := remaining_samples(order):
        facts.append(("remaining", f"{counted(left, 'sample')} could be read after the last step"))
    return facts


def _sample_words(source: SampleSource) -> str:
    if source.sequence_length is None:
        return "one document"
    extra = " (+1 for the last label)" if source.extra_token else ""
    packings = [dataset.packing for dataset in source.datasets]
    packing = f" ({pack_words(packings)})" if any(packings) else ""
    return f"{count(source.sequence_length)} tokens{extra}, from the sample indexes of the datasets{packing}"


def _blend_words(source: SampleSource) -> str:
    datasets = len(source.datasets)
    if source.order is None:
        noun = "dataset" if datasets == 1 else "datasets, concatenated"
        return f"none: {count(source.total)} samples of {count(datasets)} {noun}"
    blend_hash = source.order.stem.partition("-")[0]
    return f"{count(source.total)} samples of {counted(datasets, 'dataset')}, in the order of {blend_hash}"


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


def _batch_size_chart(stream: Stream) -> list[Block]:
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


def _ranges_chart(stream: Stream) -> LaneChart:
    source = stream.source
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
    return LaneChart(
        "Sample ids of each dataset, and the ids that each data-parallel rank (dp rank) reads",
        lanes,
        linear_axis("sample id", max(source.total, 1)),
        [shown_path(dataset.path_prefix) for dataset in shown],
        spread=_SPREAD,
    )


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
    numbers = order.numbers(rank, 0, order.samples_per_rank)[[0, -1]]
    first, last = epochs.links[0].forward(numbers + order.skipped, epochs.first_epoch).tolist()
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


def _grid_chart(stream: Stream, grid: ReadGrid) -> LaneChart:
    wide = len(grid.steps)
    prefixes = [shown_path(dataset.path_prefix) for dataset in stream.source.datasets]
    lanes = []
    for rank, samples, datasets in zip(
        grid.ranks, grid.samples.tolist(), grid.datasets.tolist(), strict=True
    ):
        spans = []
        for column, (step, sample, dataset) in enumerate(zip(grid.steps, samples, datasets, strict=True)):
            title = f"dp rank {rank}, step {step}: sample {count(sample)} of {prefixes[dataset]}"
            spans.append(Span(column / wide, (column + 1) / wide, title, dataset))
        lanes.append(Lane(f"dp rank {rank}", spans))
    some = [
        f"{shown} of {count(total)} {name}"
        for shown, total, name in (
            (len(grid.ranks), stream.order.ranks, "ranks"),
            (wide, stream.order.steps, "steps"),
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
        samples = [count(stream.order.samples_per_rank) if needs else "0" for stream in streams]
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
        part = summary.streams[name]
        numbers: Facts = [
            ("reads", ", ".join(part.fields) or "nothing: other ranks send what it needs"),
            ("steps", count(part.steps)),
            ("samples", count(part.samples)),
        ]
        blocks: list[Block] = [FactList(numbers)]
        if part.samples and _datasets_in_runs(stream) is not None:
            axis = linear_axis("sample id", max(stream.source.total, 1))
            blocks.append(LaneChart("Sample ids it reads", [_rank_lane(stream, place.dp)], axis))
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
