"""``tokshard merge``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

import tokshard
from tokshard import MergeOptions
from tokshard.cli import declarations, rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import integer, switch, text
from tokshard.cli.options import RUN, AsJson, DryRun, Force, Lock, NoProgress, Quiet
from tokshard.core.formatting import count, counted, size, throughput, tokenizer_name, written_dataset

if TYPE_CHECKING:
    from tokshard import MergeDryRun, MergeReport, ShuffleForecast

_SHOWN_INPUTS = 10


def merge(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Path prefixes of datasets, in order, or quoted globs of these.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        text("--output", "-o", metavar="PREFIX", help="Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/."),
    ],
    multimodal: Annotated[
        bool, switch("--multimodal", help="Merge multimodal datasets, whose sequences have modes.")
    ] = MergeOptions.multimodal,
    allow_tokenizer_mismatch: Annotated[
        bool,
        switch(
            "--allow-tokenizer-mismatch",
            help="Allow datasets with different tokenizers, and record the mismatch.",
        ),
    ] = MergeOptions.allow_tokenizer_mismatch,
    shuffle: Annotated[
        int | None,
        integer(
            "--shuffle",
            metavar="SEED",
            help="Shuffle the documents of all inputs, in an order given by SEED and their number.",
            default="concatenate the inputs",
        ),
    ] = MergeOptions.shuffle,
    memory: Annotated[
        int | None,
        declarations.size(
            "--memory",
            help="Shuffle in one pass if tokens and index fit into SIZE, else in two with SIZE of memory.",
            default="1/3 of the available memory for one pass, 1GiB for two",
            group=RUN,
        ),
    ] = MergeOptions.memory_bytes,
    workers: Annotated[
        int | None,
        integer("--workers", help="Use N threads for --shuffle.", default="all cores, at most 4", group=RUN),
    ] = MergeOptions.workers,
    resume: Annotated[
        bool, switch("--resume/--no-resume", help="Resume an unfinished merge.", group=RUN)
    ] = MergeOptions.resume,
    force: Force = MergeOptions.force,
    lock: Lock = MergeOptions.lock,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> None:
    """Concatenate indexed datasets, byte-identical to Megatron's merge, or shuffle their documents.

    Datasets are concatenated in the order of the arguments; the matches of a glob are in natural order
    (part-2 before part-10). If --shuffle takes two passes, it also needs disk space for scratch files;
    --dry-run shows how much. The same command resumes an interrupted merge.

    Examples:
        tokshard merge out/web out/books -o out/all
        tokshard merge 'shards/part-*' -o out/all
        tokshard merge out/web out/books --shuffle 7 -o out/shuffled
    """
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        options = MergeOptions(
            inputs,
            output,
            multimodal,
            allow_tokenizer_mismatch,
            resume,
            force,
            lock,
            shuffle=shuffle,
            memory_bytes=memory,
            workers=workers,
        )
        if dry_run:
            plan = tokshard.dry_run_merge(options)
            run.warn(plan.warnings)
            run.show(plan, _show_dry_run)
            return
        report = tokshard.merge(options, progress=run.progress)
        run.warn(report.warnings)
        run.show(report, _show)


def _show(report: MergeReport) -> None:
    written = report.bin_bytes + report.idx_bytes
    facts: list[tuple[str, object]] = [
        ("up to date" if report.up_to_date else "written", written_dataset(report))
    ]
    if not report.up_to_date:
        if report.bytes_resumed:
            facts.append(("reused", f"{size(report.bytes_resumed)} copied by an earlier run"))
        speed = throughput(report.seconds, written, report.tokens)
        if report.shuffle is not None:
            facts.append(("order", f"shuffled with seed {report.shuffle.seed}"))
        facts.append(("time", f"{counted(report.inputs, 'dataset')} in {speed}"))
    flag = " --multimodal" if report.multimodal else ""
    rendering.outcome([*facts, ("next", f"tokshard inspect {shlex.quote(report.prefix)}{flag}")])


def _show_dry_run(plan: MergeDryRun) -> None:
    total = sum(dataset.bin_bytes for dataset in plan.inputs)
    rendering.line(f"inputs: {count(len(plan.inputs))}, {size(total)} of {plan.dtype} tokens")
    inputs = [
        f"  {dataset.path} ({count(dataset.documents)} documents, {count(dataset.tokens)} tokens)"
        for dataset in plan.inputs
    ]
    rendering.lines(inputs, _SHOWN_INPUTS, "  and {rest} more")
    rendering.line(f"output: {plan.prefix} ({plan.state})")
    rendering.line(f"tokenizer: {tokenizer_name(plan.tokenizer)}")
    if plan.shuffle is not None:
        _show_shuffle(plan.shuffle)


def _show_shuffle(shuffle: ShuffleForecast) -> None:
    rendering.line(f"order: shuffled with seed {shuffle.seed} ({shuffle.algorithm})")
    passes = counted(shuffle.passes, "pass", "passes")
    means = f"{size(shuffle.memory_bytes)} of memory"
    if shuffle.scratch_bytes:
        means += f", {size(shuffle.scratch_bytes)} of scratch files"
    rendering.line(f"shuffle: {passes} over the tokens, {means}")
    free = "unknown" if shuffle.free_bytes is None else size(shuffle.free_bytes)
    rendering.line(f"disk: {size(shuffle.disk_bytes)} required, {free} free")
