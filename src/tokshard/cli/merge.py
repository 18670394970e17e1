"""``tokshard merge``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import tokshard
from tokshard import MergeOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.core.formatting import count, counted, size, throughput, tokenizer_name

if TYPE_CHECKING:
    from tokshard import MergeReport

_SHOWN_INPUTS = 10


def merge(options: MergeOptions, planned: DryRun, run: CommandRun) -> None:
    """Concatenate indexed datasets, byte-identical to Megatron's merge, or shuffle their documents.

    Datasets are concatenated in the order of the arguments; the matches of a glob are in natural order
    (part-2 before part-10). If --shuffle takes two passes, it also needs disk space for scratch files;
    --dry-run shows how much. The same command resumes an interrupted merge.

    Examples:
        tokshard merge out/web out/books -o out/all
        tokshard merge 'shards/part-*' -o out/all
        tokshard merge out/web out/books --shuffle 7 -o out/shuffled
    """
    report = tokshard.merge(
        options, dry_run=planned.dry_run, progress=None if planned.dry_run else run.progress
    )
    run.warn(report.warnings)
    run.show(report, _show_dry_run if planned.dry_run else _show)


def _show(report: MergeReport) -> None:
    output, shuffle = report.output, report.options.shuffle
    is_found = report.action == "found"
    facts: list[tuple[str, object]] = [("up to date" if is_found else "written", output.describe())]
    if not is_found:
        if report.bytes_resumed:
            facts.append(("reused", f"{size(report.bytes_resumed)} copied by an earlier run"))
        if shuffle is not None:
            facts.append(("order", f"shuffled with seed {shuffle.seed}"))
        speed = throughput(report.seconds, output.size_bytes, output.tokens)
        facts.append(("time", f"{counted(len(report.options.inputs), 'dataset')} in {speed}"))
    flag = " --multimodal" if report.options.multimodal else ""
    rendering.outcome([*facts, ("next", f"tokshard inspect {shlex.quote(output.path_prefix)}{flag}")])


def _show_dry_run(report: MergeReport) -> None:
    output, inputs = report.output, report.inputs or ()
    total = sum(dataset.source.bin_bytes for dataset in inputs)
    rendering.line(f"inputs: {count(len(inputs))}, {size(total)} of {inputs[0].dataset.dtype} tokens")
    lines = [
        f"  {dataset.source.path} ({count(dataset.dataset.documents)} documents, "
        f"{count(dataset.dataset.tokens)} tokens)"
        for dataset in inputs
    ]
    rendering.lines(lines, _SHOWN_INPUTS, "  and {rest} more")
    rendering.line(f"output: {output.path_prefix} ({report.state})")
    rendering.line(f"tokenizer: {tokenizer_name(output.tokenizer)}")
    _show_shuffle(report)


def _show_shuffle(report: MergeReport) -> None:
    shuffle, sizes, free_bytes = report.options.shuffle, report.shuffle_sizes, report.free_bytes
    if shuffle is None or sizes is None:
        return
    rendering.line(f"order: shuffled with seed {shuffle.seed} ({shuffle.ALGORITHM})")
    passes = counted(sizes.passes, "pass", "passes")
    means = f"{size(sizes.memory_bytes)} of memory"
    if sizes.scratch_bytes:
        means += f", {size(sizes.scratch_bytes)} of scratch files"
    rendering.line(f"shuffle: {passes} over the tokens, {means}")
    free = "unknown" if free_bytes is None else size(free_bytes)
    rendering.line(f"disk: {size(sizes.disk_bytes)} required, {free} free")
