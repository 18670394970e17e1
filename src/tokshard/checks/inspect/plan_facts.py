"""Descriptions of plans, of their ranks and of the places of samples."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.checks.inspect.facts import Facts
from tokshard.checks.inspect.plan_charts import add_charts, rank_chart
from tokshard.checks.inspect.plans import (
    RankReads,
    RankSummary,
    SamplePlace,
    remaining_samples,
    shuffle_words,
)
from tokshard.core.formatting import count, counted, number_ranges, percent, short_id, shown_path
from tokshard.core.presentation import Aside, Block, FactList, Section, Table
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.ranks.continuation import owner_of
from tokshard.ranks.links import Bucketing
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.sources import SampleSource
from tokshard.samples.index.packing import pack_words

_SHOWN_TABLE_RANKS = 64
_SHOWN_RANGES = 3


def describe_plan(plan: Plan, *, charts: bool = True) -> list[Section]:
    """Return the description of a plan, a section for each stream; without charts no data is opened."""
    topology = plan.topology
    sizes = (
        f"tensor {topology.tensor_parallel} x context {topology.context_parallel} x "
        f"data {topology.data_parallel} x pipeline {topology.pipeline_parallel}, order {topology.rank_order}"
    )
    facts: Facts = [("plan", short_id(plan.plan_id)), ("ranks", f"{count(topology.world_size)}: {sizes}")]
    facts += [
        ("" if number else "continues", short_id(stopped.plan_id))
        for number, stopped in enumerate(plan.history)
    ]
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
    blocks: list[Block] = [FactList(_stream_facts(stream))]
    page_only: list[Block] = []
    if charts:
        add_charts(stream, blocks, page_only)
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
        how = f"{counted(order.micro_batch_size, 'sample')} at a time, round-robin"
    else:
        how = f"runs of {count(owner.run)}" if owner.run else "1 sample at a time, round-robin"
    read = first.read - order.skipped
    samples = counted(read - first.repeated + first.dropped, "sample")
    ranks = counted(order.ranks, "data-parallel rank")
    each = count(read // order.ranks)
    is_begun = order.skipped > 0 and first.epochs != 1
    of_epoch = f" of epoch {first.first_epoch}" if is_begun or len(order.epoch_ranges) > 1 else ""
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
            f"{stream.mode}: {samples}{of_epoch} over {ranks}, {how}, {each} per rank; tail {stream.tail}",
        ),
    ]
    if order.consumed_samples:
        facts.append(("consumed", f"{counted(order.consumed_samples, 'sample')} before step 0"))
    for epochs in order.epoch_ranges:
        for label, number in (("dropped", epochs.dropped), ("repeated", epochs.repeated)):
            if number:
                is_one = of_epoch and epochs.epochs == 1
                epoch = f"epoch {epochs.first_epoch}" if is_one else "each epoch"
                facts.append((label, f"{counted(number, 'sample')} in {epoch}"))
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
    blend_hash = short_id(source.order.stem.partition("-")[0])
    return f"{count(source.total)} samples of {counted(datasets, 'dataset')}, in the order of {blend_hash}"


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
        ("plan", short_id(summary.plan_id)),
    ]
    sections = [Section("", [FactList(facts)])]
    for name, stream in plan.streams.items():
        part = summary.streams[name]
        numbers: Facts = [
            ("reads", ", ".join(part.manifest.fields) or "nothing: other ranks send what it needs"),
            ("steps", count(part.manifest.steps)),
            ("samples", count(part.manifest.samples)),
        ]
        for label, boundary in (("first", part.first), ("last", part.last)):
            if boundary is not None:
                where = f"sample {count(boundary.dataset_sample)} of {shown_path(boundary.prefix)}"
                numbers.append(
                    (label, f"index {boundary.index}, step {boundary.step}: {where} (id {boundary.sample})")
                )
        if part.problem is not None:
            numbers.append(("unknown", f"its first and last sample and its datasets: {part.problem}"))
        blocks: list[Block] = [FactList(numbers), *_dataset_tables(part)]
        if part.manifest.samples:
            blocks += rank_chart(stream, place.dp)
        sections.append(Section(name, blocks))
    if summary.places:
        where = "" if summary.step is None else f", step {summary.step}"
        sections.append(Section(f"{summary.stream}{where}", [_places_table(summary.places)]))
    return sections


def _dataset_tables(reads: RankReads) -> list[Table]:
    """Return the table of the samples of each dataset, if they are known."""
    if reads.datasets is None:
        return []
    estimated = "" if reads.exact else " (estimated)"
    rows = [
        (
            shown_path(part.prefix),
            count(part.samples),
            percent(part.samples / max(reads.manifest.samples, 1)),
        )
        for part in reads.datasets
    ]
    return [Table(("dataset", f"samples{estimated}", "share"), rows)]


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
