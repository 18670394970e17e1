"""``tokshard tokenize``: options and one call."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Literal

import typer

import tokshard
from tokshard import ArrayTask, TokenizeOptions
from tokshard.cli import declarations, terminal, tokenize_views
from tokshard.cli.command_run import command_run
from tokshard.cli.corpus_options import TEXT, DatasetConfigName, DatasetSplit
from tokshard.cli.declarations import choice, integer, switch, text
from tokshard.cli.megatron_options import rules_of_preset
from tokshard.cli.options import (
    RUN,
    AsJson,
    DryRun,
    ExecutorChoice,
    Force,
    Lock,
    NoProgress,
    Quiet,
    RayAddress,
    RayCpusPerTask,
    RayRetries,
    ray_options,
)
from tokshard.cli.subset_options import (
    Holdout,
    HoldoutKey,
    HoldoutSeed,
    Limit,
    MaxTokens,
    Sample,
    SampleSeed,
    refuse_with_preset,
)
from tokshard.cli.tokenize_options import (
    Dtype,
    Encoder,
    Eod,
    FilesBeside,
    MergeFile,
    TiktokenNumSpecialTokens,
    TiktokenPattern,
    TiktokenSpecialTokens,
    TokenizerPath,
    Transformers,
    VocabFile,
    VocabSize,
)
from tokshard.core.megatron_versions import MEGATRON_VERSIONS
from tokshard.errors import UsageError
from tokshard.text.tokenize.job_array.options import ArrayOptions

_ERRORS = "Bad records"
_ARRAYS = "Job arrays"

OnError = Literal["fail", "skip"]
Preset = Literal["megatron"]

COMMON_OPTIONS = (
    "--output",
    "--field",
    "--append-eod",
    "--limit",
    "--tokenizer",
    "--eod",
    "--encoder",
    "--on-error",
    "--max-document-bytes",
    "--workers",
    "--force",
    "--dry-run",
    "--preset",
)


def tokenize(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT...",
            help="JSONL (plain, .gz, .bz2, .xz or .zst), Parquet or Arrow files; also quoted globs, "
            "directories, @list.txt, URLs such as s3://bucket/*.jsonl, files of the Hugging Face Hub "
            "(hf://datasets/ORG/NAME/GLOB), or - for stdin.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        text(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/. PREFIX can be a URL.",
            default="the input's name without suffixes",
        ),
    ] = None,
    config: DatasetConfigName = None,
    split: DatasetSplit = None,
    field: Annotated[
        list[str] | None,
        text(
            "--field",
            metavar="NAME",
            help="Read the text from this JSON field or column.",
            default=",".join(TokenizeOptions.fields),
            group=TEXT,
        ),
    ] = None,
    append_eod: Annotated[
        bool | None,
        switch(
            "--append-eod/--no-append-eod",
            help="Append the EOD token to each document.",
            default="--append-eod",
            group=TEXT,
        ),
    ] = None,
    special_tokens: Annotated[
        bool | None,
        switch(
            "--special-tokens/--no-special-tokens",
            help="Add BOS and similar tokens to each document, as the tokenizer defines them.",
            default="--no-special-tokens",
            group=TEXT,
        ),
    ] = None,
    tokenizer: TokenizerPath = None,
    vocab_file: VocabFile = None,
    merge_file: MergeFile = None,
    tiktoken_pattern: TiktokenPattern = None,
    tiktoken_num_special_tokens: TiktokenNumSpecialTokens = None,
    tiktoken_special_tokens: TiktokenSpecialTokens = None,
    vocab_size: VocabSize = None,
    files_beside: FilesBeside = TokenizeOptions.files_beside,
    eod: Eod = None,
    encoder: Encoder = TokenizeOptions.encoder,
    dtype: Dtype = TokenizeOptions.dtype,
    transformers: Transformers = None,
    sample: Sample = None,
    sample_seed: SampleSeed = TokenizeOptions.sample_seed,
    limit: Limit = None,
    max_tokens: MaxTokens = None,
    holdout: Holdout = None,
    holdout_key: HoldoutKey = None,
    holdout_seed: HoldoutSeed = TokenizeOptions.holdout_seed,
    on_error: Annotated[
        OnError,
        choice(
            OnError,
            "--on-error",
            help="Stop at a bad record, or skip it and list it in PREFIX.tokshard/rejected.jsonl.",
            group=_ERRORS,
        ),
    ] = TokenizeOptions.on_error,
    max_errors: Annotated[
        int | None,
        integer(
            "--max-errors",
            help="With --on-error skip: stop after more than N bad records.",
            default="no limit",
            group=_ERRORS,
        ),
    ] = None,
    max_document_bytes: Annotated[
        int | None,
        declarations.size(
            "--max-document-bytes",
            help="Reject records above SIZE.",
            default="16MB or 4MB",
            group=_ERRORS,
        ),
    ] = TokenizeOptions.max_document_bytes,
    workers: Annotated[
        int | None,
        integer("--workers", help="Run N worker processes.", default="all cores", group=RUN),
    ] = None,
    unit_size: Annotated[
        int,
        declarations.size(
            "--unit-size",
            help="Divide inputs into units of work of SIZE input bytes.",
            default=f"{TokenizeOptions.unit_bytes >> 20}MiB",
            group=RUN,
        ),
    ] = TokenizeOptions.unit_bytes,
    resume: Annotated[
        bool,
        switch("--resume/--no-resume", help="Reuse the finished units of an unfinished run.", group=RUN),
    ] = TokenizeOptions.resume,
    force: Force = TokenizeOptions.force,
    lock: Lock = TokenizeOptions.lock,
    discard_work: Annotated[
        bool,
        switch(
            "--discard-work",
            help="Remove all unfinished work of this output, for any inputs and options, and stop.",
            group=RUN,
        ),
    ] = False,
    dry_run: DryRun = False,
    local_dir: Annotated[
        str | None,
        text(
            "--local-dir",
            metavar="DIR",
            help="Build an output with a URL in this directory before its upload.",
            default="the user's cache",
            group=RUN,
        ),
    ] = None,
    keep_local: Annotated[
        bool,
        switch("--keep-local", help="Keep the local files of an uploaded output.", group=RUN),
    ] = TokenizeOptions.keep_local,
    provenance: Annotated[
        bool,
        switch(
            "--provenance/--no-provenance",
            help="Record the input position of each document, for `tokshard trace`.",
            group=RUN,
        ),
    ] = TokenizeOptions.provenance,
    preset: Annotated[
        Preset | None,
        choice(
            Preset,
            "--preset",
            help="Accept the options of Megatron's preprocess_data.py, with its defaults and output names.",
            group=RUN,
        ),
    ] = None,
    megatron: Annotated[
        str | None,
        text(
            "--megatron",
            metavar="VERSION",
            help="With --preset megatron: tokenize as the preprocess_data.py of this Megatron version: "
            f"{', '.join(MEGATRON_VERSIONS[:-1])} or {MEGATRON_VERSIONS[-1]}.",
            default=MEGATRON_VERSIONS[-1],
            group=RUN,
        ),
    ] = None,
    array_task: Annotated[
        str | None,
        text(
            "--array-task",
            metavar="I/N|auto|auto/N",
            help="Encode share I of N, from 0/N. With auto, read the numbers from Slurm, Kubernetes or MPI.",
            group=_ARRAYS,
        ),
    ] = None,
    finish: Annotated[
        bool | None,
        switch(
            "--finish/--no-finish",
            help="Only assemble the output from the parts that tasks encoded, or leave that to a later "
            "--finish. Without either, the last task assembles the output, except with --lock none.",
            group=_ARRAYS,
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        integer("--tasks", help="With --finish: the job array has N tasks.", group=_ARRAYS),
    ] = None,
    executor: ExecutorChoice = "local",
    ray_address: RayAddress = None,
    ray_cpus_per_task: RayCpusPerTask = None,
    ray_retries: RayRetries = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> None:
    """Tokenize text into a Megatron indexed dataset.

    The same command resumes an interrupted run. The output is the same for any number of workers and
    interruptions.

    Examples:
        tokshard tokenize corpus.jsonl --tokenizer tokenizer.json
        tokshard tokenize 'web/*.jsonl.zst' -o out/web --tokenizer hf:gpt2
        zstdcat corpus.jsonl.zst | tokshard tokenize - -o out/corpus --on-error skip
        tokshard tokenize corpus.jsonl --holdout 0.1%
    """
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        like_megatron = preset == "megatron"
        if like_megatron and split is not None:
            raise UsageError(
                "--split is not supported with --preset megatron, where it abbreviates --split-sentences",
                hint="leave out --preset megatron, or pass the files of the split as inputs",
            )
        rules = rules_of_preset(megatron, is_used=like_megatron)
        default_eod = TokenizeOptions.append_eod and not like_megatron
        options = TokenizeOptions(
            inputs=inputs or ("-" if discard_work else ()),
            output=output,
            tokenizer=tokenizer,
            vocab_file=vocab_file,
            merge_file=merge_file,
            tiktoken_pattern=tiktoken_pattern,
            tiktoken_num_special_tokens=tiktoken_num_special_tokens,
            tiktoken_special_tokens=tiktoken_special_tokens or None,
            vocab_size=vocab_size,
            files_beside=files_beside,
            eod=eod,
            append_eod=default_eod if append_eod is None else append_eod,
            special_tokens=TokenizeOptions.special_tokens if special_tokens is None else special_tokens,
            fields=field or TokenizeOptions.fields,
            name_by_field=like_megatron,
            workers=workers,
            encoder=encoder,
            dtype=dtype,
            sample=sample,
            sample_seed=sample_seed,
            limit=limit,
            max_tokens=max_tokens,
            holdout=holdout,
            holdout_key=holdout_key,
            holdout_seed=holdout_seed,
            on_error=on_error,
            max_errors=max_errors,
            max_document_bytes=max_document_bytes,
            unit_bytes=unit_size,
            provenance=provenance,
            resume=resume,
            force=force,
            lock=lock,
            local_dir=local_dir,
            keep_local=keep_local,
            transformers=transformers,
            strict_tokenizer=like_megatron,
            config=config,
            split=split,
        )
        if like_megatron:
            refuse_with_preset(options)
        if discard_work:
            from tokshard.text.tokenize.discard import discard_work as discard

            run.show(discard(options), tokenize_views.show_discarded)
            return
        array = ArrayOptions(array_task, finish, tasks)
        ray = ray_options(executor, ray_address, ray_cpus_per_task, ray_retries, workers=workers)
        if ray is not None and array != ArrayOptions():
            raise UsageError(
                "--executor ray and the options of job arrays exclude each other",
                hint="leave out one of them",
            )
        if dry_run:
            report = tokshard.tokenize(options, dry_run=True)
            run.warn(report.warnings)
            run.show(report, partial(tokenize_views.show_dry_run, rules=rules))
            return
        if tokenizer is None and vocab_file is None and not quiet:
            terminal.tell("using the built-in byte-level tokenizer; pass --tokenizer for your own")
        if array.array_task is not None:
            task = ArrayTask.parse(array.array_task, os.environ)
            done = tokshard.tokenize_array_task(
                options, task, finish=array.finish is None, progress=run.progress
            )
            run.warn(done.result.warnings if done.result else ())
            run.show(done, partial(tokenize_views.show_task, is_locked=lock != "none"))
            return
        if array.finish:
            report = tokshard.finish_tokenize(options, tasks=array.tasks, progress=run.progress)
        else:
            report = tokshard.tokenize(options, executor=ray, progress=run.progress)
        run.warn(report.warnings)
        run.show(report, partial(tokenize_views.show_report, rules=rules))
