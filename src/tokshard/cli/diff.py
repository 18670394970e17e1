"""``tokshard diff``: options, one call, one rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tokshard
from tokshard import DiffOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun
from tokshard.core.formatting import count, shown_path
from tokshard.core.options import Option, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard.checks.diff.report import (
        DiffReport,
        FieldDifference,
        IndexDifference,
        SourceDifference,
        SplitDifference,
        StreamDifference,
    )

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Compared(Options):
    """The two products to compare."""

    first: Annotated[str, Option("A plan, blend or index cache.", is_argument=True, metavar="A")]
    second: Annotated[str, Option("Another one of the same kind.", is_argument=True, metavar="B")]


def diff(compared: Compared, options: DiffOptions, run: CommandRun) -> None:
    """Compare two plans, blends or index caches: the first difference, and which samples changed.

    Plans are compared from the consumed samples at which the later one begins. The exit code is 0 if both
    read the same samples, and 1 if they do not.

    Examples:
        tokshard diff plan plan2
        tokshard diff mix mix2 --json
        tokshard diff old-cache new-cache
    """
    report = tokshard.diff(compared.first, compared.second, options, progress=run.progress)
    run.warn(report.warnings)
    run.show(report, _show)
    if not report.reads_same:
        run.found_problems()


def _show(report: DiffReport) -> None:
    from tokshard.checks.diff.report import StreamDifference

    if report.same_plan is not None:
        rendering.line("the same plan" if report.same_plan else "two plans")
    _show_fields(report.fields)
    for part in report.parts:
        if isinstance(part, StreamDifference):
            _show_stream(part)
        else:
            _show_samples(part)
    for which, names in (("A", report.only_in_a), ("B", report.only_in_b)):
        for name in names:
            rendering.line(f"only in {which}: {name}")


def _show_stream(stream: StreamDifference) -> None:
    rendering.line(f"{stream.name}, from {count(stream.start)} consumed samples on:")
    _show_fields(stream.fields)
    if stream.first_step is None:
        rendering.line("  every step that both have holds the same samples")
    else:
        step = stream.first_step
        rendering.line(
            f"  first step that differs: {count(step.a)} of A, {count(step.b)} of B, at "
            f"{count(step.consumed_samples)} consumed samples"
        )
    _show_counts(stream.sources)


def _show_samples(part: SplitDifference | IndexDifference) -> None:
    from tokshard.checks.diff.report import IndexDifference

    line = f"{part.name}: {count(part.samples[0])} and {count(part.samples[1])} samples"
    if isinstance(part, IndexDifference):
        first, second = part.hashes
        line += f", same hash {first}" if first == second else f", hashes {first} and {second}"
    rendering.line(line)
    _show_fields(part.fields)
    if part.first_sample is None:
        rendering.line("  every sample that both have is the same")
    else:
        rendering.line(f"  first sample that differs: {count(part.first_sample)}")
    if isinstance(part, IndexDifference):
        rendering.line(f"  {count(part.same)} samples are the same at the same position")
    else:
        _show_counts(part.sources)


def _show_fields(fields: Sequence[FieldDifference]) -> None:
    for field in fields:
        rendering.line(f"  {field.field}: {_shown(field.a)} -> {_shown(field.b)}")


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _show_counts(sources: Sequence[SourceDifference]) -> None:
    names = ("same", "moved", "added", "removed")
    rows = [
        [f"  {shown_path(source.dataset)}", *(count(getattr(source, name)) for name in names)]
        for source in sources
    ]
    if rows:
        rendering.table(["  dataset", *names], rows)
