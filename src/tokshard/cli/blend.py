"""``tokshard blend``: options, one library call, one rendering."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tokshard
from tokshard import BlendOptions
from tokshard.cli import rendering, terminal
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.from_launch import LaunchOptions, adjusted, warn_early
from tokshard.cli.generate import Given
from tokshard.core.formatting import count, duration, percent, shown_path, visible
from tokshard.core.options import RUN, Option, Options
from tokshard.core.presentation import Section, Table
from tokshard.errors import UsageError
from tokshard.samples.blend.options import Form

if TYPE_CHECKING:
    from tokshard import BlendReport


@dataclass(frozen=True, kw_only=True)
class EmitOptions(Options):
    """Options of the command line alone."""

    data_path: Annotated[bool, Option("Accept the words that follow, as in Megatron.", is_hidden=True)] = (
        False
    )
    emit: Annotated[
        Form | None,
        Option(
            "Print only the blend in one of Megatron's forms; without --output, build nothing.", group=RUN
        ),
    ] = None


def blend(
    given: Given[BlendOptions], launch: LaunchOptions, emitted: EmitOptions, planned: DryRun, run: CommandRun
) -> None:
    r"""Mix datasets by weight: build their indexes and the order of the blend.

    The index files have Megatron's names and bytes. A blend that would draw more samples of a
    dataset than its index holds is refused before anything is built.

    Examples:
        tokshard blend 0.7 data/web 0.3 data/code --seq-length 4096 \
            --num-samples 10M -o mix

        tokshard blend recipe.toml -o mix --megatron 0.19 \
            --tokenizer-model /models/llama

        tokshard blend --from-launch 'launch.sh 7b' --megatron 0.19 -o mix
    """
    emit = emitted.emit
    if run.as_json and emit is not None:
        raise UsageError("--emit cannot be used with --json", hint="leave out one of them")
    indexes = launch.indexes(given)
    if indexes is None:
        options = given.make()
    else:
        run.warn(indexes.warnings)
        options = adjusted(indexes.blend_options(), given)
    is_silent = planned.dry_run or emit is not None
    warn_early(options, run, names=not is_silent)
    is_planned = planned.dry_run or (emit is not None and options.output is None)
    report = tokshard.blend(options, dry_run=is_planned, progress=run.progress)
    run.warn(report.warnings)
    if emit is not None:
        from tokshard.samples.blend.emission import emit_megatron

        text = emit_megatron(report, options, emit)
        terminal.say(text if emit == "megatron-json" else visible(text))
    else:
        following = None if indexes is None else launch.following(given, indexes, options.cache)
        run.show(report, lambda report: _show(report, options, following))


def _show(report: BlendReport, options: BlendOptions, following: str | None) -> None:
    if report.blend is None or report.path is None:
        _show_plan(report)
        return
    from tokshard.checks.inspect.blend_facts import describe_blend

    rendering.show(describe_blend(report.blend, report.path))
    rendering.line()
    actions = Counter(entry.action for entry in report.entries)
    words = {"found": "reused"}
    done = ", ".join(f"{count(number)} {words.get(action, action)}" for action, number in actions.items())
    facts: list[tuple[str, object]] = [
        ("written", shown_path(report.path)),
        ("indexes", f"{done} in {shown_path(report.blend.cache_directory)}"),
        ("time", duration(report.seconds)),
    ]
    rendering.outcome([*facts, ("next", following or _next(report, options, report.path))])


def _show_plan(report: BlendReport) -> None:
    header = ("source", "share", "samples", "in its index", "epochs", "tokens of an epoch")
    sections = []
    for split in report.splits:
        rows = [
            (
                source.path_prefix,
                percent(source.weight),
                count(source.draws),
                count(source.plan.samples),
                f"{source.epochs_drawn:.2f}",
                count(source.plan.tokens_per_epoch),
            )
            for source in split.sources
        ]
        title = f"{split.name}: {split.kind_name}, {count(split.samples)} samples"
        sections.append(Section(title, [Table(header, rows, hide=("tokens of an epoch", "in its index"))]))
    rendering.show(sections)


def _next(report: BlendReport, options: BlendOptions, path: str) -> str:
    if options.naming.are_given:
        from tokshard.samples.blend.emission import emit_megatron

        arguments = emit_megatron(report, options)
        if any(source.plan.packed is not None for split in report.splits for source in split.sources):
            arguments += " --eod-mask-loss"
        return f"launch with {arguments}; check the launch script with `tokshard doctor launch.sh`"
    directory = shlex.quote(shown_path(os.path.dirname(path)))
    return f"tokshard shard-plan {directory} --data-parallel N --global-batch-size N -o PLAN"
