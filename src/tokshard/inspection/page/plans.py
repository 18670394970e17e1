"""The sections of a plan: its ranks, its shards, and who reads what when."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.core.formatting import count
from tokshard.inspection.facts import Facts
from tokshard.inspection.page.charts import COLOURS, Bar, Span, bars, curve, lanes
from tokshard.inspection.page.document import facts, section
from tokshard.inspection.page.markup import Markup, tag
from tokshard.inspection.plans import PlanSummary, RankSummary
from tokshard.inspection.readgrid import ReadGrid
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.ranks import SampleRange, ranges_of

_SHOWN_SHARDS = 24
_SHOWN_RANKS = 32
_SHOWN_PIECES = 500


def plan_sections(summary: PlanSummary, grids: dict[str, ReadGrid | None]) -> list[Markup]:
    """Return the sections of a plan: one for each stream.

    Args:
        summary: The plan.
        grids: What ranks begin with at steps, by stream; None, or no entry, where that cannot be told.
    """
    plan = summary.plan
    streams = [_stream_section(name, one, grids.get(name)) for name, one in plan.streams.items()]
    return [section("What it is", facts(_plan_facts(plan))), *streams]


def rank_sections(summary: RankSummary) -> list[Markup]:
    """Return the sections of a rank: what it is, and what it reads of each stream."""
    view = summary.view
    place = view.coordinates
    lines: Facts = [
        ("rank", f"{count(view.rank)} of {count(view.topology.world_size)}"),
        ("tensor", place.tp),
        ("context", place.cp),
        ("data", place.dp),
        ("pipeline", place.pp),
        ("plan", view.plan_id),
    ]
    found = [section("What it is", facts(lines))]
    for name, stream in view.streams.items():
        one = stream.assignment
        reads = ", ".join(view.needs(name)) or "nothing: other ranks send what it needs"
        numbers: Facts = [
            ("reads", reads),
            ("steps", count(one.steps)),
            ("samples", count(one.samples_per_rank)),
        ]
        ranges = ranges_of(one, stream.source, view.data_parallel_rank) or ()
        bounds = stream.source.bounds.tolist() if ranges else []
        lane = [("in a run", [_range(stream, each, bounds) for each in ranges])]
        chart = lanes("By sample ids", lane, below=("0", "", count(stream.source.total))) if ranges else None
        found.append(section(name, facts(numbers), chart))
    return found


def _plan_facts(plan: Plan) -> Facts:
    topology = plan.topology
    parts = f"tensor {topology.tensor} x context {topology.context} x data {topology.data_parallel}"
    ranks = f"{count(topology.world_size)}: {parts} x pipeline {topology.pipeline}, order {topology.order}"
    lines: Facts = [("plan", plan.plan_id), ("ranks", ranks)]
    lines += [("goes on from" if not number else "", _parent(one)) for number, one in enumerate(plan.history)]
    lines += [("warning", one) for one in plan.warnings]
    return lines


def _parent(one: object) -> str:
    return str(one.get("plan_id") if isinstance(one, dict) else getattr(one, "plan_id", one))


def _stream_section(name: str, stream: Stream, grid: ReadGrid | None) -> Markup:
    one = stream.assignment
    lines: Facts = [
        ("samples", count(stream.source.total)),
        ("steps", count(one.steps)),
        ("on each rank", f"{count(one.samples_per_rank)} samples in micro-batches of {one.micro_batch_size}"),
        *((part["step"], part["what"]) for part in stream.composition),
    ]
    if one.consumed_samples:
        lines.append(("consumed", f"{count(one.consumed_samples)} samples before step 0"))
    return section(
        name,
        facts(lines),
        _batches(stream),
        _boundaries(stream),
        None if grid is None else _grid(stream, grid),
    )


def _batches(stream: Stream) -> Markup | None:
    """Return the global batch size over the steps, where it changes."""
    steps = stream.assignment.steps
    pieces = [piece for piece in stream.assignment.timeline.pieces if piece[0] < steps][:_SHOWN_PIECES]
    if len(pieces) < 2:
        return None
    most = max(size for _, _, size in pieces)
    points = [(first / steps, size / most) for first, _, size in pieces]
    return curve(
        "Global batch size", points, left=(count(most), "0"), below=("step 0", "", count(steps)), steps=True
    )


def _boundaries(stream: Stream) -> Markup:
    """Return the datasets by where their sample ids begin and end, and what ranks read of them."""
    source = stream.source
    if source.order is not None or len(source.datasets) > _SHOWN_SHARDS:
        rows = [
            Bar(one.prefix, one.samples, count(one.samples), colour=number)
            for number, one in enumerate(source.datasets[:_SHOWN_SHARDS])
        ]
        more = len(source.datasets) - _SHOWN_SHARDS
        rest = tag("p", f"and {count(more)} more", class_="soft") if more > 0 else ""
        return tag("div", bars("Samples of the datasets", rows), rest)
    bounds = source.bounds.tolist()
    rows_of: list[tuple[str, Sequence[Span]]] = [
        (
            f"shard {number}",
            [_ids(bounds[number], bounds[number + 1], source.total, number, one.prefix)],
        )
        for number, one in enumerate(source.datasets)
    ]
    for rank in range(min(stream.assignment.ranks, _SHOWN_RANKS)):
        ranges = ranges_of(stream.assignment, source, rank)
        if ranges:
            spans = [_range(stream, one, bounds) for one in ranges]
            rows_of.append((f"rank {rank}", spans))
    keys = _keys([one.prefix for one in source.datasets])
    caption = "Shards, and what data-parallel ranks read of them in a run, by sample ids"
    chart = lanes(caption, rows_of, below=("sample 0", "", count(source.total)))
    return tag("div", chart, keys)


def _range(stream: Stream, one: SampleRange, bounds: list[int]) -> Span:
    reference = stream.source.datasets[one.dataset]
    shift = bounds[one.dataset] - reference.first
    return _ids(one.first + shift, one.stop + shift, stream.source.total, one.dataset, reference.prefix)


def _ids(first: int, stop: int, total: int, colour: int, prefix: str) -> Span:
    title = f"samples {count(first)} to {count(stop - 1)} of {prefix}"
    return Span(first / max(total, 1), stop / max(total, 1), title, colour)


def _grid(stream: Stream, grid: ReadGrid) -> Markup:
    """Return what each rank begins with at each step: the colour is the dataset, the shade the sample."""
    total, wide = max(stream.source.total, 1), len(grid.steps)
    rows: list[tuple[str, Sequence[Span]]] = []
    for row, rank in enumerate(grid.ranks):
        spans = []
        for column, step in enumerate(grid.steps):
            sample = grid.samples[row][column]
            dataset = None if grid.datasets is None else grid.datasets[row][column]
            of = "" if dataset is None else f" of {stream.source.datasets[dataset].prefix}"
            title = f"rank {rank}, step {step}: sample {count(sample)}{of}"
            spans.append(Span(column / wide, (column + 1) / wide, title, dataset or 0, sample / total))
        rows.append((f"rank {rank}", spans))
    caption = (
        "The first sample of data-parallel ranks at steps: the colour is its dataset, and the stronger "
        f"it is, the larger is its id (of {count(total)}); of many steps some are shown"
    )
    steps = grid.steps
    below = (f"step {count(steps[0])}", f"{count(steps[wide // 2])}", count(steps[-1]))
    note = None
    if grid.unknown is not None:
        note = tag("p", f"Which dataset it comes from cannot be told here: {grid.unknown}", class_="soft")
    return tag("div", lanes(caption, rows, below=below), note)


def _keys(names: Sequence[str]) -> Markup:
    """Return which colour is which dataset."""
    items = [
        tag(
            "li",
            tag(
                "svg",
                tag("rect", width=10, height=10, class_=f"c{number % COLOURS}"),
                view_box="0 0 10 10",
                class_="key",
                aria_hidden="true",
            ),
            f"{number}: {name}",
        )
        for number, name in enumerate(names)
    ]
    return tag("ul", *items, class_="keys")
