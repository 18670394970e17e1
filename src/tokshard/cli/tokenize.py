"""``tokshard tokenize``: options, one library call, one rendering."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, terminal
from tokshard.cli.arrays import (
    ArrayTaskText,
    ArrayWish,
    Emit,
    Finish,
    Image,
    Tasks,
    finish_array,
    job_file,
    run_task,
    show_task,
)
from tokshard.cli.events import recorded
from tokshard.cli.notes import warn
from tokshard.cli.options import (
    AsJson,
    ExecutorChoice,
    ExecutorKind,
    LogJson,
    NoProgress,
    Quiet,
    RayAddress,
    RayCpusPerTask,
    RayRetries,
    ray_executor,
    ray_options,
)
from tokshard.cli.quantities import parse_bytes
from tokshard.cli.tokenizeview import show_plan, show_report
from tokshard.tokenization.options import (
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_UNIT_BYTES,
    TokenizeOptions,
    output_prefix,
)

if TYPE_CHECKING:
    from tokshard.tokenization.workers.executor import Executor as Encoder

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
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="JSONL (plain, .gz, .bz2, .xz, .zst), Parquet or Arrow files, 'globs', directories, "
            "@list.txt, URLs of these (s3://...), or - for stdin.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.bin, PREFIX.idx, PREFIX.tokshard/; may be a URL.",
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
            metavar="FILE|DIR|URL|hf:ID",
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
    staging: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where an output with a URL is made before it is uploaded.",
            show_default="the user's cache",
            rich_help_panel=_RUN,
        ),
    ] = None,
    keep_staging: Annotated[
        bool,
        typer.Option(
            "--keep-staging", help="Keep the local files of an uploaded output.", rich_help_panel=_RUN
        ),
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
    array_task: ArrayTaskText = None,
    finish: Finish = None,
    emit: Emit = None,
    tasks: Tasks = None,
    image: Image = None,
    executor: ExecutorChoice = ExecutorKind.local,
    ray_address: RayAddress = None,
    ray_cpus_per_task: RayCpusPerTask = None,
    ray_retries: RayRetries = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Turn text into a Megatron indexed dataset.

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
            "staging": staging,
            "keep_staging": keep_staging,
        }
        # Wrong options fail here, before anything heavy is imported.
        TokenizeOptions(**options)
        output_prefix(inputs, output)
        array = ArrayWish(array_task, finish, emit, tasks, image)
        ray = ray_options(executor, ray_address, ray_cpus_per_task, ray_retries, workers=workers)
        alone = array == ArrayWish(None, None, None, None, None)
        encoder: Encoder | None = ray_executor(ray, alone=alone)
        if array.emit is not None:
            terminal.say(job_file(context, array).rstrip())
            return
        from tokshard.tokenization import job

        if dry_run:
            plan = job.plan_tokenization(inputs, output, **options)
            _show(plan, show_plan, as_json=as_json, quiet=False)
            return
        from tokshard.cli.meter import make_meter

        meter = log.following(make_meter(quiet=quiet, animated=not no_progress))
        if tokenizer is None and not quiet:
            terminal.tell("using the built-in byte-level tokenizer; pass --tokenizer for your own")
        if array.array_task is not None:
            done = run_task(array, inputs, output, progress=meter, **options)
            warn(done.result.warnings if done.result else (), log=log, quiet=quiet)
            _show(done, show_task, as_json=as_json, quiet=quiet)
            return
        if array.finish:
            report = finish_array(array, inputs, output, progress=meter, **options)
        else:
            report = job.tokenize_corpus(inputs, output, executor=encoder, progress=meter, **options)
        warn(report.warnings, log=log, quiet=quiet)
        _show(report, show_report, as_json=as_json, quiet=quiet)


def _show(report: Any, show: Callable[[Any], None], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        terminal.say_json(report.to_json())
    elif not quiet:
        show(report)
