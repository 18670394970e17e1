"""``tokshard export``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import tokshard
from tokshard import ExportOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.core import formatting
from tokshard.core.formatting import counted, throughput

if TYPE_CHECKING:
    from tokshard import ExportReport


def export(options: ExportOptions, planned: DryRun, run: CommandRun) -> None:
    """Export a dataset or samples in the format of another trainer.

    The token files have the bytes that the format's own writer makes from the same ids: OLMo-core (olmo),
    modded-nanogpt, llm.c and NeMo Automodel (nanogpt), datatrove and nanotron (datatrove), or Parquet. The
    same command resumes an interrupted export.

    Examples:
        tokshard export out/web --to olmo -o exports/web
        tokshard export out/web --to nanogpt --shard-tokens 10M -o exports/web-nanogpt
        tokshard export mix --samples --to parquet -o exports/mix
    """
    report = tokshard.export(options, dry_run=planned.dry_run, progress=run.progress)
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
