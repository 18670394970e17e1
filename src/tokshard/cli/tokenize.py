"""``tokshard tokenize``: options, one library call, one rendering."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, terminal
from tokshard.cli.events import LogJson, recorded
from tokshard.cli.options import AsJson, NoProgress, Quiet
from tokshard.cli.quantities import parse_bytes
from tokshard.tokenization.options import (
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_UNIT_BYTES,
    TokenizeOptions,
    output_prefix,
)

if TYPE_CHECKING:
    from tokshard.tokenization.report import DryRunReport, TokenizeReport

_TEXT = "Text"
_TOKENIZER = "Tokenizer"
_ERRORS = "Bad records"
_RUN = "Run"


class Engine(StrEnum):
    """Choices of --engine."""

    auto = "auto"
    reference = "reference"
    fast = "fast"


class Dtype(StrEnum):
    """Choices of --dtype."""

    auto = "auto"
    uint16 = "uint16"
    int32 = "int32"


class OnError(StrEnum):
    """Choices of --on-error."""

    fail = "fail"
    skip = "skip"


class Preset(StrEnum):
    """Choices of --preset."""

    megatron = "megatron"


def tokenize(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="JSONL (plain, .gz, .bz2, .xz, .zst), Parquet or Arrow files, 'globs', directories, "
            "@list.txt, or - for stdin.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.bin, PREFIX.idx, PREFIX.tokshard/.",
            show_default="the input's name without suffixes",
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="JSON field or column with the text; may be repeated.",
            show_default="text",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    append_eod: Annotated[
        bool | None,
        typer.Option(
            "--append-eod/--no-append-eod",
            help="Append the EOD token to each document.",
            show_default="on",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            help="Apply the tokenizer's post-processor (BOS and so on).",
            show_default="off",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR|hf:ID",
            show_default="built-in bytes",
            rich_help_panel=_TOKENIZER,
            help="tokenizer.json (file or its directory), hf:ID, .tiktoken or SentencePiece .model file.",
        ),
    ] = None,
    eod: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="The EOD token, or its id.",
            show_default="the tokenizer's eos",
            rich_help_panel=_TOKENIZER,
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Which encoder; both give the same tokens.", rich_help_panel=_TOKENIZER)
    ] = Engine.auto,
    dtype: Annotated[
        Dtype, typer.Option(help="Token type in the .bin file.", rich_help_panel=_TOKENIZER)
    ] = Dtype.auto,
    on_error: Annotated[
        OnError, typer.Option(help="What a bad record does.", rich_help_panel=_ERRORS)
    ] = OnError.fail,
    max_errors: Annotated[
        int | None,
        typer.Option(
            help="With skip: stop after more bad records than this.",
            show_default="no limit",
            rich_help_panel=_ERRORS,
        ),
    ] = None,
    max_document_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Longest record.",
            show_default="64 MB",
            rich_help_panel=_ERRORS,
        ),
    ] = DEFAULT_MAX_DOCUMENT_BYTES,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="all cores", rich_help_panel=_RUN)
    ] = None,
    unit_size: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Input bytes of a unit of work.",
            show_default="16 MiB",
            rich_help_panel=_RUN,
        ),
    ] = DEFAULT_UNIT_BYTES,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on with an unfinished run.", rich_help_panel=_RUN),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing output.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and stop.", rich_help_panel=_RUN)
    ] = False,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance/--no-provenance", help="Record where each document came from.", rich_help_panel=_RUN
        ),
    ] = True,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Defaults, output names and option spellings of Megatron's preprocess_data.py.",
            show_default=False,
            rich_help_panel=_RUN,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Turn text into a Megatron indexed data set.

    [bold]Examples[/bold]

    tokshard tokenize corpus.jsonl

    tokshard tokenize 'web/*.jsonl.zst' -o out/web --tokenizer tokenizer.json

    zstdcat corpus.jsonl.zst | tokshard tokenize - -o out/corpus --on-error skip

    An interrupted run is resumed by the same command; the bytes do not depend on it, nor on the number
    of workers.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "tokenize") as log:
        like_megatron = preset is Preset.megatron
        options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "eod": eod,
            "append_eod": append_eod if append_eod is not None else not like_megatron,
            "special_tokens": special_tokens if special_tokens is not None else like_megatron,
            "fields": tuple(field or ["text"]),
            "name_by_field": like_megatron,
            "workers": workers,
            "engine": engine.value,
            "dtype": dtype.value,
            "on_error": on_error.value,
            "max_errors": max_errors,
            "max_document_bytes": max_document_bytes,
            "unit_bytes": unit_size,
            "provenance": provenance,
            "resume": resume,
            "force": force,
        }
        # Wrong options fail here, before anything heavy is imported.
        TokenizeOptions(**options)
        output_prefix(inputs, output)
        from tokshard.tokenization import job

        if dry_run:
            _show_plan(job.plan_tokenization(inputs, output, **options), as_json=as_json)
            return
        from tokshard.cli.meter import make_meter

        meter = log.following(make_meter(quiet=quiet, animated=not no_progress))
        if tokenizer is None and not quiet:
            terminal.tell("using the built-in byte-level tokenizer; pass --tokenizer for your own")
        report = job.tokenize_corpus(inputs, output, progress=meter, **options)
        log.warnings(report.warnings)
        _show(report, as_json=as_json, quiet=quiet)


def _show(report: TokenizeReport, *, as_json: bool, quiet: bool) -> None:
    for warning in () if quiet else report.warnings:
        terminal.tell(f"warning: {terminal.safe(warning)}")
    if as_json:
        terminal.say_json(report.to_json())
        return
    if quiet:
        return
    for output in report.outputs:
        terminal.say(
            f"{terminal.safe(output.prefix)}.bin, .idx: {terminal.count(output.documents)} documents, "
            f"{terminal.count(output.sequences)} sequences, {terminal.count(output.tokens)} tokens "
            f"({output.dtype}, {terminal.size(output.bin_bytes + output.idx_bytes)})"
        )
    if sum(report.rejected.values()):
        reasons = ", ".join(f"{terminal.count(n)} {reason}" for reason, n in sorted(report.rejected.items()))
        listed = f"{terminal.safe(report.outputs[0].prefix)}.tokshard/rejected.jsonl"
        terminal.say(f"rejected: {reasons} (listed in {listed})")
    terminal.say(_how(report))
    terminal.say(f"next: tokshard inspect {terminal.safe(report.outputs[0].prefix)}")


def _how(report: TokenizeReport) -> str:
    if report.up_to_date:
        return "everything is there already, made from the same inputs with the same options"
    speed = terminal.size(report.content_bytes / max(report.seconds, 1e-9))
    size = terminal.size(report.content_bytes)
    parts = [f"{size} of text in {terminal.duration(report.seconds)} ({speed}/s)"]
    made_by = report.engine["documents"]
    engines = " and ".join(name for name in ("fast", "reference") if made_by.get(name))
    if engines:
        parts.append(f"{engines} engine")
    if report.engine["compared"]:
        parts.append(f"{terminal.count(report.engine['compared'])} documents compared with the reference")
    if report.units_resumed:
        parts.append(f"{report.units_resumed} of {report.units} units were done before")
    return ", ".join(parts)


def _show_plan(plan: DryRunReport, *, as_json: bool) -> None:
    if as_json:
        terminal.say_json(plan.to_json())
        return
    total = sum(entry["size_bytes"] or 0 for entry in plan.inputs)
    terminal.say(f"inputs: {terminal.count(len(plan.inputs))}, {terminal.size(total)} on disk")
    for entry in plan.inputs[:10]:
        length = "stream" if entry["size_bytes"] is None else terminal.size(entry["size_bytes"])
        kind = (
            entry["format"]
            if entry["compression"] == "none"
            else f"{entry['format']}, {entry['compression']}"
        )
        terminal.say(f"  {terminal.safe(entry['path'])} ({kind}, {length})")
    if len(plan.inputs) > 10:
        terminal.say(f"  and {len(plan.inputs) - 10} more")
    terminal.say(f"outputs: {', '.join(map(terminal.safe, plan.outputs))} ({plan.state})")
    name, vocabulary = terminal.tokenizer_name(plan.tokenizer), terminal.count(plan.tokenizer["vocab_size"])
    dtype, eod = plan.options["dtype"], plan.options["eod"]
    terminal.say(f"tokenizer: {name}, {vocabulary} tokens, {dtype}, EOD {eod}")
    reason = f" ({plan.engine_reason})" if plan.engine_reason else ""
    terminal.say(f"engine: {plan.engine}{terminal.safe(reason)}, {plan.workers} workers")
