"""Plans in the terminal: the table of a plan, who reads what as bars, and the way of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tokshard.cli import rendering, terminal, views
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard.inspection.plans import PlanSummary, RankSummary, SamplePlace
    from tokshard.sharding.plan import Stream
    from tokshard.sharding.ranks import SampleRange
    from tokshard.sharding.summary import Coverage, PassCoverage

_SHOWN_IDS = 5
_SHOWN_RANKS = 16
_SHOWN_SHARDS = 12
_BAR_CHARACTERS = 64


def option(name: str, text: str, *, metavar: str = "N", shown: str | bool = False) -> Any:
    """Return an option of ``inspect`` that has a meaning for plans."""
    return typer.Option(name, metavar=metavar, help=text, show_default=shown, rich_help_panel="Of a plan")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a plan.

    Attributes:
        rank: A rank of the whole job.
        step: A step.
        index: The n-th sample that the rank reads.
        sample: The id of a sample: the global index.
        shard: ``"D:N"``: sample N of dataset D.
        epoch: In which epoch samples are looked for.
        stream: The stream.
    """

    rank: int | None = None
    step: int | None = None
    index: int | None = None
    sample: int | None = None
    shard: str | None = None
    epoch: int | None = None
    stream: str = "train"

    def refuse_for(self, thing: str) -> None:
        """Refuse questions that only plans can answer.

        Raises:
            UsageError: There is one.
        """
        for name in ("rank", "step", "index", "sample", "shard", "epoch"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name} has a meaning for plans only, and {thing} is none")

    def check(self) -> None:
        """Check that the questions fit together.

        Raises:
            UsageError: They do not.
        """
        asked = [name for name in ("step", "index", "sample", "shard") if getattr(self, name) is not None]
        if len(asked) > 1:
            raise UsageError(f"--{asked[0]} and --{asked[1]} are two questions: ask one at a time")
        if self.rank is not None and (self.sample, self.shard) != (None, None):
            raise UsageError(f"--{asked[0]} says itself which rank reads it: leave out --rank")
        if self.epoch is not None and (self.sample, self.shard) == (None, None):
            raise UsageError("--epoch needs --sample or --shard")

    def shard_sample(self) -> tuple[int, int]:
        """Return the number of the dataset and of the sample that ``--shard`` names.

        Raises:
            UsageError: It names none.
        """
        dataset, colon, sample = (self.shard or "").partition(":")
        if not (colon and dataset.isdecimal() and sample.isdecimal()):
            raise UsageError(f"--shard {self.shard!r} is not D:N", hint="for example --shard 0:1234")
        return int(dataset), int(sample)


def inspect_plan(path: str, question: Question, *, as_json: bool) -> None:
    """Answer a question about a plan, or say what it is."""
    from tokshard.inspection import plans
    from tokshard.sharding.plan import read_plan

    question.check()
    if question.sample is not None or question.shard is not None:
        plan = read_plan(path)
        ids: tuple[int, ...] = (question.sample or 0,)
        if question.shard is not None:
            ids = plans.find_shard_sample(plan, question.stream, *question.shard_sample())
        places = [plans.find_sample(plan, question.stream, one, epoch=question.epoch) for one in ids]
        if as_json:
            terminal.say_json(plans.samples_json(plan, question.stream, places))
        elif places:
            show_places(places)
        else:
            terminal.say(f"no sample of {terminal.safe(question.stream)} stands for it")
        return
    if (
        question.rank is None
        and (question.step, question.index) == (None, None)
        and not plans.names_rank(path)
    ):
        summary = plans.inspect_plan(path)
        terminal.say_json(summary.to_json()) if as_json else show_plan(summary)
        return
    found = plans.inspect_rank(
        path, question.rank, stream=question.stream, step=question.step, index=question.index
    )
    terminal.say_json(found.to_json()) if as_json else show_rank(found)


def names_plan(path: str) -> bool:
    """Tell whether a path names a plan or a file of one."""
    from tokshard.sharding.ranks import is_plan

    return is_plan(path)


def show_summary(summary: PlanSummary) -> None:
    """Print what a plan is, without its bars."""
    plan = summary.plan
    topology = plan.topology
    terminal.say(f"plan {plan.plan_id}")
    _line(
        "ranks",
        f"{terminal.count(topology.world_size)}: tensor {topology.tensor} x context {topology.context} x "
        f"data {topology.data_parallel} x pipeline {topology.pipeline}, "
        f"order {terminal.safe(topology.order)}",
    )
    if plan.history:
        _line("goes on from", ", ".join(terminal.safe(one.get("plan_id", ""))[:16] for one in plan.history))
    for name, stream in plan.streams.items():
        _show_stream(name, stream, summary.coverage[name])


def show_plan(summary: PlanSummary) -> None:
    """Print what a plan is, and which ranks read which parts of its datasets."""
    from tokshard.sharding.ranks import ranges_of

    show_summary(summary)
    for name, stream in summary.plan.streams.items():
        terminal.say("")
        terminal.say(f"{name}: who reads what")
        _show_bars(stream)
        if ranges_of(stream.assignment, stream.source, 0) is None:
            views.show_grid(stream)


def show_rank(summary: RankSummary) -> None:
    """Print what a rank reads."""
    view = summary.view
    place = view.coordinates
    terminal.say(
        f"rank {view.rank} of {terminal.count(view.topology.world_size)}: tensor {place.tp}, "
        f"context {place.cp}, data {place.dp}, pipeline {place.pp}"
    )
    for name, stream in view.streams.items():
        needs = view.needs(name)
        one = stream.assignment
        reads = ", ".join(needs) if needs else "nothing: other ranks send what it needs"
        _line(name, f"reads {reads}")
        _line("", f"{terminal.count(one.steps)} steps, {terminal.count(one.samples_per_rank)} samples")
    if not summary.places:
        return
    where = "" if summary.step is None else f", step {summary.step}"
    terminal.say(f"{summary.stream}{where}:")
    show_places(summary.places)


def show_places(places: Sequence[SamplePlace]) -> None:
    """Print where samples come from and go to."""
    rows = [
        [
            terminal.count(one.sample),
            *(
                _of(number)
                for number in (one.data_parallel_rank, one.index, one.step, one.micro_batch, one.row)
            ),
            terminal.count(one.epoch),
            terminal.count(one.dataset),
            terminal.count(one.dataset_sample),
            terminal.path(one.prefix),
        ]
        for one in places
    ]
    header = [
        "sample",
        "dp rank",
        "index",
        "step",
        "micro-batch",
        "row",
        "epoch",
        "shard",
        "of shard",
        "dataset",
    ]
    rendering.table(header, rows, left=(9,))


def _of(number: int) -> str:
    return "-" if number < 0 else terminal.count(number)


def _show_stream(name: str, stream: Stream, covered: Coverage) -> None:
    one = stream.assignment
    sizes = [size for first, _, size in one.timeline.pieces if first < max(1, one.steps)]
    growing = f" to {terminal.count(sizes[-1])}" if len(sizes) > 1 else ""
    _line(
        name,
        f"{terminal.count(stream.source.total)} samples, {terminal.count(one.steps)} steps of "
        f"{terminal.count(sizes[0])}{growing}, {terminal.count(one.samples_per_rank)} samples on each of "
        f"{terminal.count(one.ranks)} data-parallel ranks",
    )
    for part in stream.composition:
        _line(f"  {part['step']}", terminal.safe(part["what"]))
    if one.consumed_samples:
        _line("  consumed", f"{terminal.count(one.consumed_samples)} samples before step 0")
    for each in covered.passes:
        _show_tail(each)
    if covered.left:
        _line("  left", f"{terminal.count(covered.left)} more could be read after the last step")


def _show_tail(covered: PassCoverage) -> None:
    if count := covered.dropped.count:
        pairs = [] if covered.dropped_ids is None else covered.dropped_ids.to_json()
        texts = [f"{first}" if stop == first + 1 else f"{first} to {stop - 1}" for first, stop in pairs]
        _line("  dropped", f"{terminal.count(count)} in each epoch{_listed(texts)}")
    if covered.repeated:
        pairs = [list(pair) for pair in covered.repeated_ids or ()]
        texts = [f"{one} ({times} times)" if times > 1 else f"{one}" for one, times in pairs]
        _line("  repeated", f"{terminal.count(covered.repeated)} in each epoch{_listed(texts)}")


def _listed(texts: list[str]) -> str:
    if not texts:
        return ""
    rest = len(texts) - _SHOWN_IDS
    more = f" and {terminal.count(rest)} more" if rest > 0 else ""
    return f": samples {', '.join(texts[:_SHOWN_IDS])}{more}"


def _show_bars(stream: Stream) -> None:
    """Draw the ids of a stream from left to right: its datasets, and below what each rank reads of them."""
    from tokshard.sharding.ranks import ranges_of

    source, ranks = stream.source, stream.assignment.ranks
    cells = max(16, min(_BAR_CHARACTERS, rendering.width() - 40))
    _show_shards(stream, cells)
    shown = range(ranks) if ranks <= _SHOWN_RANKS else range(_SHOWN_RANKS - 1)
    for rank in shown:
        ranges = ranges_of(stream.assignment, source, rank)
        _rank_line(f"dp rank {rank}", stream, ranges, cells)
    if ranks > _SHOWN_RANKS:
        terminal.say(f"{'...':>14}")
        _rank_line(f"dp rank {ranks - 1}", stream, ranges_of(stream.assignment, source, ranks - 1), cells)


def _show_shards(stream: Stream, cells: int) -> None:
    source = stream.source
    if source.order is not None:
        terminal.say(f"{'blend':>14} │{'▒' * cells}│ {terminal.count(len(source.datasets))} datasets, mixed")
        return
    bounds = source.bounds.tolist()
    for number, one in enumerate(source.datasets[:_SHOWN_SHARDS]):
        ids = terminal.count(one.samples)
        bar = rendering.filled([(bounds[number], bounds[number + 1])], source.total, cells)
        terminal.say(f"{f'shard {number}':>14} │{bar}│ {ids} samples of {terminal.path(one.prefix)}")
    if len(source.datasets) > _SHOWN_SHARDS:
        terminal.say(f"{'...':>14}   {terminal.count(len(source.datasets))} shards in all")


def _rank_line(label: str, stream: Stream, ranges: tuple[SampleRange, ...] | None, cells: int) -> None:
    from tokshard.sharding.layouts import Striped

    one = stream.assignment
    count = f"{terminal.count(one.samples_per_rank)} samples"
    if ranges is None:
        turns = isinstance(one.passes[0].layout, Striped)
        how = f"1 of {one.ranks} in turn" if turns else f"1 of {one.ranks} runs of the order"
        terminal.say(f"{label:>14} │{'░' * cells}│ {count}, {how}")
        return
    bounds, datasets = stream.source.bounds.tolist(), stream.source.datasets
    parts = []
    for each in ranges:
        shift = bounds[each.dataset] - datasets[each.dataset].first
        parts.append((each.first + shift, each.stop + shift))
    shards = ", ".join(str(each.dataset) for each in ranges[:_SHOWN_IDS])
    more = ", ..." if len(ranges) > _SHOWN_IDS else ""
    terminal.say(
        f"{label:>14} │{rendering.filled(parts, stream.source.total, cells)}│ {count} of shard {shards}{more}"
    )


def _line(label: str, text: str) -> None:
    rendering.facts([(label, text)])
