"""``tokshard convert``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import tokshard
from tokshard import ConvertOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.core.formatting import counted, size, throughput, tokenizer_name

if TYPE_CHECKING:
    from tokshard import ConvertReport

_SHOWN_FILES = 10


def convert(options: ConvertOptions, planned: DryRun, run: CommandRun) -> None:
    """Convert token files of nanogpt, OLMo-core or datatrove into an indexed dataset.

    The tokens are copied, not encoded again. Documents begin at BOS tokens (nanogpt), or end where the
    .csv.gz (olmo) or .index (datatrove) beside the tokens says. Files of a directory or glob are read in
    natural order.

    Examples:
        tokshard convert fineweb10B --from nanogpt --bos-id 50256 -o out/fineweb
        tokshard convert 'dolma/part-*.npy' --from olmo --tokenizer olmo2 -o out/dolma
        tokshard convert tokenized --from datatrove -o out/web
    """
    report = tokshard.convert(
        options, dry_run=planned.dry_run, progress=None if planned.dry_run else run.progress
    )
    run.warn(report.warnings)
    run.show(report, _show_dry_run if planned.dry_run else _show)


def _show(report: ConvertReport) -> None:
    output = report.output
    is_found = report.action == "found"
    facts: list[tuple[str, object]] = [("up to date" if is_found else "written", output.describe())]
    if not is_found:
        if report.bytes_resumed:
            facts.append(("reused", f"{size(report.bytes_resumed)} converted by an earlier run"))
        speed = throughput(report.seconds, output.size_bytes, output.tokens)
        facts.append(("time", f"{counted(report.file_count, f'{report.options.format} file')} in {speed}"))
    facts.append(("tokenizer", _tokenizer(report)))
    facts.append(("documents", _endings(report)))
    rendering.outcome([*facts, ("next", f"tokshard inspect {shlex.quote(output.path_prefix)}")])


def _show_dry_run(report: ConvertReport) -> None:
    files = report.files or ()
    total = sum(file.source.size_bytes for file in files)
    tokens = sum(file.tokens for file in files)
    rendering.line(f"source: {counted(len(files), 'file')}, {counted(tokens, 'token')}, {size(total)}")
    lines = [
        f"  {file.source.path} ({counted(file.tokens, 'token')} of {file.dtype}"
        f"{f', documents in {file.boundaries}' if file.boundaries else ''})"
        for file in files
    ]
    rendering.lines(lines, _SHOWN_FILES, "  and {rest} more")
    rendering.line(f"documents: {_rule(report)}")
    rendering.line(f"output: {report.output.path_prefix} ({report.state}), {report.options.dtype}")
    rendering.line(f"tokenizer: {_tokenizer(report)}")


def _rule(report: ConvertReport) -> str:
    options = report.options
    if options.bos == "move":
        return f"BOS token {options.bos_id} before them is replaced by EOD token {options.eod_id} after them"
    if options.bos is not None:
        return f"BOS token {options.bos_id} before them is {'kept' if options.bos == 'keep' else 'dropped'}"
    if all(file.boundaries for file in report.files or ()):
        return "end as listed beside the tokens"
    return f"end with EOD token {options.eod_id} where no file lists them"


def _tokenizer(report: ConvertReport) -> str:
    known = report.output.tokenizer
    return "unknown: --tokenizer records it" if known is None else tokenizer_name(known)


def _endings(report: ConvertReport) -> str:
    options = report.options
    if options.append_eod is None:
        return "the EOD token is unknown" if options.eod_id is None else "none has tokens"
    return f"{'all' if options.append_eod else 'not all'} end with the EOD token {options.eod_id}"
