"""``tokshard blend``: options, one library call, one rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tokshard
from tokshard import BlendOptions
from tokshard.cli import terminal
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.from_launch import LaunchOptions, adjusted, warn_early
from tokshard.cli.generate import Given
from tokshard.core.formatting import visible
from tokshard.core.options import RUN, Option, Options
from tokshard.core.presentation import Section
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
        following = None if indexes is None else indexes.next_step(options.cache)
        run.show(report, lambda report: _sections(report, options, following))


def _sections(report: BlendReport, options: BlendOptions, following: str | None) -> list[Section]:
    if report.blend is None or report.path is None:
        return report.planned_sections()
    from tokshard.checks.inspect.blend_facts import describe_blend
    from tokshard.samples.blend.emission import next_step

    return [
        *describe_blend(report.blend, report.path),
        report.outcome(following or next_step(report, options, report.path)),
    ]
