"""``tokshard diff``: options, one library call, one rendering."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, options, rendering, terminal
from tokshard.cli.quantities import parse_count
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard.comparison.difference import PlanDifference, StreamDifference
    from tokshard.comparison.products import Compared, IndexDifference, SplitDifference

SCHEMA = "tokshard.diff/1"
DIFFERENT = 1
_SHOWN_CHARACTERS = 60


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan, a blend, or a cache of indexes.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one of its kind.")],
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            parser=parse_count,
            metavar="N",
            help="Plans: compare so many steps.",
            show_default="all",
        ),
    ] = None,
    first_only: Annotated[
        bool, typer.Option("--first", help="Plans: stop at the first step that differs.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare two plans, blends or caches of indexes: where they part, and what moves, comes and goes.

    [bold]Examples[/bold]

    tokshard diff plan plan2

    tokshard diff mix mix2 --json

    tokshard diff old-cache new-cache

    Plans are compared from the consumed samples on at which the later one begins. The exit code is 0 if the
    same is read, and 1 if not.
    """
    with failures.reported(as_json=as_json):
        from tokshard.comparison import products

        kinds = [products.kind_of(path) for path in (first, second)]
        if kinds[0] != kinds[1]:
            raise UsageError(f"{first} is a {kinds[0]}, and {second} a {kinds[1]}: they cannot be compared")
        if kinds[0] != "plan" and (steps is not None or first_only):
            raise UsageError("--steps and --first have a meaning for plans only")
        if kinds[0] == "plan":
            same = _diff_plans(first, second, steps, first_only=first_only, as_json=as_json, quiet=quiet)
        else:
            same = _diff_others(kinds[0], first, second, as_json=as_json, quiet=quiet)
        if not same:
            raise typer.Exit(DIFFERENT)


def _diff_plans(
    first: str, second: str, steps: int | None, *, first_only: bool, as_json: bool, quiet: bool
) -> bool:
    from tokshard.comparison.difference import diff_plans
    from tokshard.sharding.plan import read_plan

    found = diff_plans(read_plan(first), read_plan(second), steps=steps, first_only=first_only)
    if as_json:
        terminal.say_json({"schema": SCHEMA, "kind": "plan", "reads_same": found.reads_same, **asdict(found)})
    elif not quiet:
        _show_plans(found)
    return found.reads_same


def _diff_others(kind: str, first: str, second: str, *, as_json: bool, quiet: bool) -> bool:
    from tokshard.blending.document import BlendDocument
    from tokshard.comparison.products import diff_blends, diff_caches

    found = (
        diff_blends(BlendDocument.read(first), BlendDocument.read(second))
        if kind == "blend"
        else diff_caches(first, second)
    )
    if as_json:
        terminal.say_json({"schema": SCHEMA, "reads_same": found.same, **asdict(found)})
    elif not quiet:
        _show_others(found)
    return found.same


def _show_plans(found: PlanDifference) -> None:
    terminal.say("the same plan" if found.same else "two plans")
    _show_fields(found.topology)
    for stream in found.streams:
        _show_stream(stream)
    _show_alone(found.only_first, found.only_second)


def _show_stream(stream: StreamDifference) -> None:
    terminal.say(f"{terminal.safe(stream.name)}, from {terminal.count(stream.start)} consumed samples on:")
    _show_fields(stream.settings)
    if stream.first_step is None:
        terminal.say("  every step that both have holds the same samples")
    else:
        one, other, consumed = (terminal.count(number) for number in stream.first_step)
        terminal.say(f"  first step that differs: {one} of A, {other} of B, at {consumed} consumed samples")
    _show_counts(stream.sources)


def _show_others(found: Compared) -> None:
    from tokshard.comparison.products import SplitDifference

    _show_fields(found.settings)
    for part in found.parts:
        if isinstance(part, SplitDifference):
            _show_split(part)
        else:
            _show_index(part)
    _show_alone(found.only_first, found.only_second)


def _show_split(part: SplitDifference) -> None:
    samples = " and ".join(terminal.count(number) for number in part.samples)
    terminal.say(f"{terminal.safe(part.name)}: {samples} samples")
    _show_fields(part.hash_fields)
    _show_first(part.first_sample)
    _show_counts(part.sources)


def _show_index(part: IndexDifference) -> None:
    samples = " and ".join(terminal.count(number) for number in part.samples)
    hashes = "one hash" if part.hashes[0] == part.hashes[1] else " and ".join(part.hashes)
    terminal.say(f"{terminal.safe(part.name)}: {samples} samples, {hashes}")
    _show_fields(part.hash_fields)
    _show_first(part.first_sample)
    terminal.say(f"  {terminal.count(part.same)} samples are the same at the same place")


def _show_first(sample: int | None) -> None:
    if sample is None:
        terminal.say("  every sample that both have is the same")
    else:
        terminal.say(f"  first sample that differs: {terminal.count(sample)}")


def _show_fields(fields: Sequence[tuple[str, Any, Any]]) -> None:
    for name, one, other in fields:
        terminal.say(f"  {terminal.safe(name)}: {_shown(one)} -> {_shown(other)}")


def _shown(value: Any) -> str:
    text = terminal.safe(str(value))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _show_counts(sources: Sequence[Any]) -> None:
    names = ("same", "moved", "added", "removed")
    rows = [
        [f"  {terminal.path(one.prefix)}", *(terminal.count(getattr(one, name)) for name in names)]
        for one in sources
    ]
    if rows:
        rendering.table(["  dataset", *names], rows)


def _show_alone(first: Sequence[str], second: Sequence[str]) -> None:
    for which, names in (("A", first), ("B", second)):
        for name in names:
            terminal.say(f"only in {which}: {terminal.safe(name)}")
