"""``tokshard tokenize``: options, one call, one rendering."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tokshard
from tokshard import ArrayOptions, ArrayTask, TokenizeOptions
from tokshard.cli import terminal
from tokshard.cli.command_run import command_run
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
    parse_bytes,
    ray_options,
)
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard import ArrayTaskReport, TokenizeDryRun, TokenizeReport


_ARRAYS_PANEL = "Job arrays"
# Options of the array, not of the work of a task.
_OWN_OPTIONS = frozenset({"array_task", "tasks", "emit", "image", "as_json", "dry_run"})


class Scheduler(StrEnum):
    """Choices of --emit."""

    slurm = "slurm"
    k8s = "k8s"


ArrayTaskText = Annotated[
    str | None,
    typer.Option(
        "--array-task",
        metavar="I/N|auto|auto/N",
        help="Encode share I of N, from 0/N; auto asks Slurm, Kubernetes or MPI.",
        show_default=False,
        rich_help_panel=_ARRAYS_PANEL,
    ),
]
Finish = Annotated[
    bool | None,
    typer.Option(
        "--finish/--no-finish",
        help="Only put together what tasks have encoded; or leave that to a later --finish.",
        show_default="the last task does it",
        rich_help_panel=_ARRAYS_PANEL,
    ),
]
Emit = Annotated[
    Scheduler | None,
    typer.Option(
        "--emit",
        help="Print a job file that runs this command in --tasks tasks.",
        show_default=False,
        rich_help_panel=_ARRAYS_PANEL,
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks",
        metavar="N",
        min=1,
        help="With --emit and --finish: how many tasks.",
        show_default=False,
        rich_help_panel=_ARRAYS_PANEL,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="With --emit k8s: the container image.",
        show_default="a placeholder",
        rich_help_panel=_ARRAYS_PANEL,
    ),
]


def _command_words(context: typer.Context) -> list[str]:
    words = [str(context.info_name)]
    inputs: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in _OWN_OPTIONS or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            inputs = value
        else:
            words += _option_words(parameter, value)
    if any(name.startswith("-") for name in inputs):
        return [*words, "--", *inputs]
    return [*words[:1], *inputs, *words[1:]]


def _option_words(option: Any, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    words = []
    for item in value if isinstance(value, list) else [value]:
        text = item.value if isinstance(item, StrEnum) else str(item)
        words += [f"{option.opts[0]}={text}"] if text.startswith("-") else [option.opts[0], text]
    return words


def _show_task(report: ArrayTaskReport) -> None:
    name = f"task {report.task} of {report.tasks}"
    if report.state == "elsewhere":
        terminal.say(f"{name}: {terminal.safe(report.holder or '')} does all that is left to do")
    if report.state in {"encoded", "published"}:
        counts = (terminal.counted(report.documents, "document"), terminal.counted(report.tokens, "token"))
        before = f"; {terminal.count(report.units_resumed)} were done before" if report.units_resumed else ""
        units = terminal.counted(report.units, "unit")
        terminal.say(f"{name}: {units} encoded, {', '.join(counts)}{before}")
    if report.state == "encoded":
        terminal.say("the task that ends last puts the output together, or the same command with --finish")
    if report.result is not None:
        _show_report(report.result)


_TEXT = "Text"
_TOKENIZER = "Tokenizer"
_ERRORS = "Bad records"
_RUN = "Run"


class EncoderChoice(StrEnum):
    """Choices of --encoder."""

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


_ENCODER = EncoderChoice(TokenizeOptions.encoder)
_DTYPE = Dtype(TokenizeOptions.dtype)
_ON_ERROR = OnError(TokenizeOptions.on_error)


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
            show_default=",".join(TokenizeOptions.fields),
            rich_help_panel=_TEXT,
        ),
    ] = None,
    append_eod: Annotated[
        bool | None,
        typer.Option(
            "--append-eod/--no-append-eod",
            help="Append the EOD token to each document.",
            show_default="on" if TokenizeOptions.append_eod else "off",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            help="Apply the tokenizer's post-processor (BOS and so on).",
            show_default="on" if TokenizeOptions.special_tokens else "off",
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
    encoder: Annotated[
        EncoderChoice,
        typer.Option(help="The encoder; both give the same tokens.", rich_help_panel=_TOKENIZER),
    ] = _ENCODER,
    dtype: Annotated[
        Dtype, typer.Option(help="Token type in the .bin file.", rich_help_panel=_TOKENIZER)
    ] = _DTYPE,
    on_error: Annotated[
        OnError, typer.Option(help="What a bad record does.", rich_help_panel=_ERRORS)
    ] = _ON_ERROR,
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
            show_default=f"{TokenizeOptions.max_document_bytes // 10**6} MB",
            rich_help_panel=_ERRORS,
        ),
    ] = TokenizeOptions.max_document_bytes,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="all cores", rich_help_panel=_RUN)
    ] = None,
    unit_size: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Input bytes of a unit of work.",
            show_default=f"{TokenizeOptions.unit_bytes >> 20} MiB",
            rich_help_panel=_RUN,
        ),
    ] = TokenizeOptions.unit_bytes,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on with an unfinished run.", rich_help_panel=_RUN),
    ] = TokenizeOptions.resume,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing output.", rich_help_panel=_RUN)
    ] = TokenizeOptions.force,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and stop.", rich_help_panel=_RUN)
    ] = False,
    local_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where an output with a URL is built before its upload.",
            show_default="the user's cache",
            rich_help_panel=_RUN,
        ),
    ] = None,
    keep_local: Annotated[
        bool,
        typer.Option(
            "--keep-local", help="Keep the local files of an uploaded output.", rich_help_panel=_RUN
        ),
    ] = TokenizeOptions.keep_local,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance/--no-provenance", help="Record where each document came from.", rich_help_panel=_RUN
        ),
    ] = TokenizeOptions.provenance,
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
    with command_run(
        "tokenize", as_json=as_json, quiet=quiet, no_progress=no_progress, log_json=log_json
    ) as run:
        like_megatron = preset is Preset.megatron
        default_eod = TokenizeOptions.append_eod and not like_megatron
        default_special = TokenizeOptions.special_tokens or like_megatron
        options = TokenizeOptions(
            inputs=inputs,
            output=output,
            tokenizer=tokenizer,
            eod=eod,
            append_eod=default_eod if append_eod is None else append_eod,
            special_tokens=default_special if special_tokens is None else special_tokens,
            fields=field or TokenizeOptions.fields,
            name_by_field=like_megatron,
            workers=workers,
            encoder=encoder.value,
            dtype=dtype.value,
            on_error=on_error.value,
            max_errors=max_errors,
            max_document_bytes=max_document_bytes,
            unit_bytes=unit_size,
            provenance=provenance,
            resume=resume,
            force=force,
            local_dir=local_dir,
            keep_local=keep_local,
        )
        array = ArrayOptions(array_task, finish, emit.value if emit else None, tasks, image)
        ray = ray_options(executor, ray_address, ray_cpus_per_task, ray_retries, workers=workers)
        if ray is not None and array != ArrayOptions():
            raise UsageError(
                "--executor ray and the options of job arrays are two ways to divide the work",
                hint="leave out one of them",
            )
        if array.emit is not None:
            if as_json:
                raise UsageError("--emit prints a job file, which is no JSON: leave out --json")
            command = ("tokshard", *_command_words(context))
            terminal.say(tokshard.array_job_file(options, array, command).rstrip())
            return
        if dry_run:
            run.show(tokshard.dry_run_tokenize(options), _show_dry_run)
            return
        if tokenizer is None and not quiet:
            terminal.tell("using the built-in byte-level tokenizer; pass --tokenizer for your own")
        if array.array_task is not None:
            task = ArrayTask.parse(array.array_task, os.environ)
            done = tokshard.tokenize_array_task(
                options, task, finish=array.finish is None, progress=run.progress
            )
            run.warn(done.result.warnings if done.result else ())
            run.show(done, _show_task)
            return
        if array.finish:
            report = tokshard.finish_tokenize(options, tasks=array.tasks, progress=run.progress)
        else:
            cluster = None if ray is None else tokshard.RayExecutor(ray)
            report = tokshard.tokenize(options, executor=cluster, progress=run.progress)
        run.warn(report.warnings)
        run.show(report, _show_report)


def _show_report(report: TokenizeReport) -> None:
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
    made_by = report.encoder.documents
    encoders = " and ".join(name for name in ("fast", "reference") if made_by.get(name))
    if encoders:
        parts.append(f"{encoders} encoder")
    if report.encoder.compared:
        parts.append(f"{terminal.count(report.encoder.compared)} documents compared with the reference")
    if report.units_resumed:
        parts.append(f"{report.units_resumed} of {report.units} units were done before")
    return ", ".join(parts)


def _show_dry_run(plan: TokenizeDryRun) -> None:
    total = sum(source.size_bytes or 0 for source in plan.inputs)
    terminal.say(f"inputs: {terminal.count(len(plan.inputs))}, {terminal.size(total)} on disk")
    for source in plan.inputs[:10]:
        length = "stream" if source.size_bytes is None else terminal.size(source.size_bytes)
        packed = "" if source.compression == "none" else f", {source.compression}"
        terminal.say(f"  {terminal.safe(source.path)} ({source.format}{packed}, {length})")
    if len(plan.inputs) > 10:
        terminal.say(f"  and {len(plan.inputs) - 10} more")
    terminal.say(f"outputs: {', '.join(map(terminal.safe, plan.outputs))} ({plan.state})")
    if plan.local_dir is not None:
        terminal.say(f"made in: {terminal.safe(plan.local_dir)}, then uploaded")
    name, vocabulary = terminal.tokenizer_name(plan.tokenizer), terminal.count(plan.tokenizer.vocab_size)
    dtype, eod = plan.options.dtype, plan.options.eod_id
    terminal.say(f"tokenizer: {name}, {vocabulary} tokens, {dtype}, EOD {eod}")
    reason = f" ({plan.encoder_reason})" if plan.encoder_reason else ""
    terminal.say(f"encoder: {plan.encoder}{terminal.safe(reason)}, {plan.workers} workers")
