"""``tokshard merge``: options, one library call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, terminal
from tokshard.cli.events import recorded
from tokshard.cli.notes import warn
from tokshard.cli.options import AsJson, LogJson, NoProgress, Quiet
from tokshard.storage.paths import check_output_prefix

if TYPE_CHECKING:
    from tokshard.dataset.merge.report import MergeDryRunReport, MergeReport

_RUN = "Run"
_SHOWN_INPUTS = 10


def merge(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Path prefixes of datasets, in order, or 'globs' of these.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.bin, PREFIX.idx, PREFIX.tokshard/.",
            show_default=False,
        ),
    ],
    multimodal: Annotated[bool, typer.Option("--multimodal", help="The datasets have modes.")] = False,
    allow_tokenizer_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-tokenizer-mismatch", help="Merge datasets of different tokenizers all the same."
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on with an unfinished merge.", rich_help_panel=_RUN),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing output.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and stop.", rich_help_panel=_RUN)
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Put datasets behind each other into one, with the bytes that Megatron would write.

    [bold]Examples[/bold]

    tokshard merge out/web out/books -o out/all

    tokshard merge 'shards/part-*' -o out/all

    The order is that of the arguments; what a quoted glob gives is in natural order (part-2 before
    part-10). An interrupted merge is resumed by the same command.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "merge") as log:
        options: dict[str, Any] = {
            "multimodal": multimodal,
            "allow_tokenizer_mismatch": allow_tokenizer_mismatch,
            "resume": resume,
            "force": force,
        }
        # A wrong name fails here, before anything heavy is imported.
        check_output_prefix(output)
        from tokshard.dataset.merge import job

        if dry_run:
            plan = job.plan_merge(inputs, output, **options)
            warn(plan.warnings, log=log, quiet=quiet)
            _show_plan(plan, as_json=as_json)
            return
        from tokshard.cli.meter import make_meter

        meter = log.following(make_meter(quiet=quiet, animated=not no_progress))
        report = job.merge_datasets(inputs, output, progress=meter, **options)
        warn(report.warnings, log=log, quiet=quiet)
        _show(report, as_json=as_json, quiet=quiet)


def _show(report: MergeReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        terminal.say_json(report.to_json())
        return
    if quiet:
        return
    terminal.say(
        f"{terminal.safe(report.prefix)}.bin, .idx: {terminal.count(report.documents)} documents, "
        f"{terminal.count(report.sequences)} sequences, {terminal.count(report.tokens)} tokens "
        f"({report.dtype}, {terminal.size(report.bin_bytes + report.idx_bytes)})"
    )
    terminal.say(_how(report))
    flag = " --multimodal" if report.multimodal else ""
    terminal.say(f"next: tokshard inspect {terminal.safe(report.prefix)}{flag}")


def _how(report: MergeReport) -> str:
    if report.up_to_date:
        return "everything is there already, made from the same inputs"
    size = report.bin_bytes + report.idx_bytes
    speed = terminal.size(size / max(report.seconds, 1e-9))
    parts = [f"{terminal.count(report.inputs)} datasets in {terminal.duration(report.seconds)} ({speed}/s)"]
    if report.bytes_resumed:
        parts.append(f"{terminal.size(report.bytes_resumed)} were copied before")
    return ", ".join(parts)


def _show_plan(plan: MergeDryRunReport, *, as_json: bool) -> None:
    if as_json:
        terminal.say_json(plan.to_json())
        return
    total = sum(one["bin_bytes"] for one in plan.inputs)
    terminal.say(f"inputs: {terminal.count(len(plan.inputs))}, {terminal.size(total)} of {plan.dtype} tokens")
    for one in plan.inputs[:_SHOWN_INPUTS]:
        terminal.say(
            f"  {terminal.safe(one['path'])} ({terminal.count(one['documents'])} documents, "
            f"{terminal.count(one['tokens'])} tokens)"
        )
    if len(plan.inputs) > _SHOWN_INPUTS:
        terminal.say(f"  and {len(plan.inputs) - _SHOWN_INPUTS} more")
    terminal.say(f"output: {terminal.safe(plan.prefix)} ({plan.state})")
    terminal.say(f"tokenizer: {terminal.tokenizer_name(plan.tokenizer)}")
