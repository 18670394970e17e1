"""``tokshard export``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import tokshard
from tokshard import ExportOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import choice, count, integer, size, switch, text
from tokshard.cli.options import RUN, AsJson, DryRun, Force, Lock, NoProgress, Quiet
from tokshard.core import formatting
from tokshard.core.formatting import counted, throughput

if TYPE_CHECKING:
    from tokshard import ExportReport

SAMPLES = "Samples"
FILES = "Files"
NANOGPT = "nanogpt"

COMMON_OPTIONS = (
    "--to",
    "--output",
    "--samples",
    "--split",
    "--shard-tokens",
    "--shard-size",
    "--vocab-size",
    "--bos-id",
    "--resume",
    "--force",
    "--dry-run",
    "--json",
)


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX",
            help="Path prefix of a dataset; with --samples a blend, plan or dataset with an index.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        choice(Literal["olmo", "nanogpt", "datatrove", "parquet"], "--to", help="Write this format."),
    ],
    output: Annotated[str, text("--output", "-o", metavar="DIR", help="Write the files into DIR.")],
    samples: Annotated[
        bool,
        switch("--samples", help="Export samples in training order instead of documents.", group=SAMPLES),
    ] = ExportOptions.samples,
    split: Annotated[
        str | None,
        text(
            "--split",
            metavar="NAME",
            help="Export the samples of this split.",
            group=SAMPLES,
            default="train",
        ),
    ] = ExportOptions.split,
    last_label: Annotated[
        bool | None,
        switch(
            "--last-label/--no-last-label",
            help="Write the last label of each sample, one more token. By default not for olmo.",
            group=SAMPLES,
        ),
    ] = ExportOptions.last_label,
    pad_id: Annotated[
        int | None,
        integer("--pad-id", help="Fill samples that are shorter with this token.", group=SAMPLES),
    ] = ExportOptions.pad_id,
    name: Annotated[
        str | None,
        text(
            "--name",
            metavar="NAME",
            help="Begin file names with this text.",
            group=FILES,
            default="by format",
        ),
    ] = ExportOptions.name,
    shard_tokens: Annotated[
        int | None,
        count(
            "--shard-tokens",
            help="Limit the tokens of a shard.",
            group=FILES,
            default="that of the format's own writer",
        ),
    ] = ExportOptions.shard_tokens,
    shard_size: Annotated[
        int | None,
        size("--shard-size", help="Limit the bytes of the tokens of a shard instead.", group=FILES),
    ] = ExportOptions.shard_bytes,
    vocab_size: Annotated[
        int | None,
        count(
            "--vocab-size",
            help="Choose the dtype for a vocabulary of N tokens.",
            group=FILES,
            default="the recorded one",
        ),
    ] = ExportOptions.vocab_size,
    dtype: Annotated[
        str | None,
        text(
            "--dtype",
            metavar="NAME",
            help="Write tokens of this dtype.",
            group=FILES,
            default="the smallest that holds the vocabulary",
        ),
    ] = ExportOptions.dtype,
    tokenizer_name: Annotated[
        str | None,
        text(
            "--tokenizer-name",
            metavar="NAME",
            help="Name the tokenizer in the metadata of datatrove.",
            group=FILES,
            default="the recorded path",
        ),
    ] = ExportOptions.tokenizer_name,
    bos_id: Annotated[
        int | None,
        integer(
            "--bos-id", help="Begin each document with this token.", group=NANOGPT, default="the EOD token"
        ),
    ] = ExportOptions.bos_id,
    eod_id: Annotated[
        int | None,
        integer(
            "--eod-id",
            help="Leave out this token at the end of documents.",
            group=NANOGPT,
            default="the recorded one",
        ),
    ] = ExportOptions.eod_id,
    val_shards: Annotated[
        int | None,
        integer("--val-shards", help="Name the first N shards val.", group=NANOGPT, default="1"),
    ] = ExportOptions.val_shards,
    header: Annotated[
        str | None,
        choice(
            Literal["fineweb", "automodel"],
            "--header",
            help="Write this header.",
            group=NANOGPT,
            default="fineweb for uint16, else automodel",
        ),
    ] = ExportOptions.header,
    resume: Annotated[
        bool, switch("--resume/--no-resume", help="Resume an unfinished export.", group=RUN)
    ] = ExportOptions.resume,
    force: Force = ExportOptions.force,
    lock: Lock = ExportOptions.lock,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> None:
    """Export a dataset or samples in the format of another trainer.

    The token files have the bytes that the format's own writer makes from the same ids: OLMo-core (olmo),
    modded-nanogpt, llm.c and NeMo Automodel (nanogpt), datatrove and nanotron (datatrove), or Parquet. The
    same command resumes an interrupted export.

    Examples:
        tokshard export out/web --to olmo -o exports/web
        tokshard export out/web --to nanogpt --shard-tokens 10M -o exports/web-nanogpt
        tokshard export mix --samples --to parquet -o exports/mix
    """
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        options = ExportOptions(
            source,
            to,  # type: ignore[arg-type]
            output,
            samples,
            split,
            last_label,
            pad_id,
            name,
            dtype,
            vocab_size,
            shard_tokens,
            shard_size,
            eod_id,
            bos_id,
            val_shards,
            header,  # type: ignore[arg-type]
            tokenizer_name,
            resume,
            force,
            lock,
        )
        report = tokshard.export(options, dry_run=dry_run, progress=run.progress)
        run.warn(report.warnings)
        run.show(report, _show)


def _records(report: ExportReport) -> str:
    return counted(report.records, "document" if report.plan.source.kind == "dataset" else "sample")


def _show(report: ExportReport) -> None:
    manifest = report.manifest
    if manifest is None:
        _show_plan(report)
        return
    dtype = manifest.parameters.dtype
    written = (
        f"{report.output} ({counted(report.files, 'file')}, {formatting.size(manifest.size_bytes)}: "
        f"{_records(report)}, {counted(manifest.tokens, 'token')} of {dtype})"
    )
    facts: list[tuple[str, object]] = [("up to date" if report.action == "found" else "written", written)]
    facts.append(("dtype", f"{dtype}: {report.dtype_detail}"))
    if manifest.tokens_added or manifest.tokens_left_out:
        added, left_out = (
            counted(manifest.tokens_added, "BOS token"),
            counted(manifest.tokens_left_out, "EOD token"),
        )
        facts.append(("documents", f"{added} added before them, {left_out} left out after them"))
    if report.action == "written":
        if report.shards_resumed:
            facts.append(("reused", f"{counted(report.shards_resumed, 'shard')} written by an earlier run"))
        facts.append(("time", throughput(report.seconds, manifest.size_bytes, manifest.tokens)))
    rendering.outcome([*facts, ("next", f"tokshard verify {shlex.quote(report.output)}")])


def _show_plan(report: ExportReport) -> None:
    tokens = counted(report.source_tokens, "token")
    rendering.line(f"source: {report.source} ({report.plan.source.kind}, {_records(report)}, {tokens})")
    parameters = report.plan.parameters
    limit = counted(parameters.shard_tokens, "token")
    rendering.line(f"format: {parameters.format}, {counted(report.files, 'file')}, shards of {limit}")
    rendering.line(f"dtype: {parameters.dtype}: {report.dtype_detail}")
    if parameters.bos_id is not None:
        left_out = "none" if parameters.eod_id is None else str(parameters.eod_id)
        rendering.line(f"documents: BOS token {parameters.bos_id} before, EOD token left out: {left_out}")
    rendering.line(f"output: {report.output} ({report.state})")
