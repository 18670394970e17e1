"""``tokshard build-indices``: options, one library call, one rendering."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, options, terminal
from tokshard.cli.events import recorded
from tokshard.cli.meter import make_meter
from tokshard.cli.notes import NEUTRAL_HINT, NEUTRAL_NOTE, warn
from tokshard.cli.options import (
    ExecutorChoice,
    ExecutorKind,
    LogJson,
    RayAddress,
    RayCpusPerTask,
    RayRetries,
    ray_options,
)
from tokshard.cli.wishes import Wishes
from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.index_cache.options import DEFAULT_SPLIT_WARNING, NamingOptions, TrainingOptions, check_path_as

if TYPE_CHECKING:
    from tokshard.cli.wishes import EpochSamples
    from tokshard.index_cache.report import IndexReport

SCHEMA = "tokshard.build-indices/1"
MISSED = 1
_LABEL_WIDTH = 11


def build_indices(
    prefixes: Annotated[
        list[str],
        typer.Argument(metavar="PREFIX...", help="Path prefixes of datasets.", show_default=False),
    ],
    seq_length: options.SequenceLengths = None,
    split: options.SplitText = None,
    seed: options.Seed = None,
    add_extra_token: options.ExtraToken = True,
    drop_last_partial_validation: options.DropLastPartial = True,
    num_samples: options.NumSamplesList = None,
    epochs: Annotated[
        list[int] | None,
        typer.Option(
            "--epochs",
            help="As many training samples as so many epochs have; may be repeated.",
            show_default=False,
            rich_help_panel=options.SIZE,
        ),
    ] = None,
    surplus: Annotated[
        float | None,
        typer.Option(
            "--surplus",
            metavar="FRACTION",
            help="For a source of a blend: build this much more, as Megatron does (0.005).",
            show_default="0",
            rich_help_panel=options.SIZE,
        ),
    ] = None,
    train_iters: options.TrainIters = None,
    train_samples: options.TrainSamples = None,
    global_batch_size: options.GlobalBatchSize = None,
    eval_interval: options.EvalInterval = None,
    eval_iters: options.EvalIters = None,
    eval_global_batch_size: options.EvalGlobalBatchSize = None,
    start_eval_at_iter: options.StartEvalAtIter = None,
    full_validation: options.FullValidation = False,
    skip_train: options.SkipTrain = False,
    like: options.Like = None,
    tokenizer_identifiers: options.TokenizerIdentifiers = None,
    megatron: options.MegatronVersion = None,
    tokenizer_type: options.TokenizerType = None,
    tokenizer_model: options.TokenizerModel = None,
    vocab_size: options.VocabSize = None,
    path_as: options.PathAs = None,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            "--cache-dir",
            "--data-cache-path",
            metavar="DIR",
            help="Where the files go.",
            show_default="PREFIX/cache/GPTDataset_indices, as Megatron",
            rich_help_panel=options.RUN,
        ),
    ] = None,
    assert_hit: options.AssertHit = False,
    rebuild: options.Rebuild = False,
    workers: options.Workers = None,
    executor: ExecutorChoice = ExecutorKind.local,
    ray_address: RayAddress = None,
    ray_cpus_per_task: RayCpusPerTask = None,
    ray_retries: RayRetries = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Build the document, sample and shuffle indexes that a Megatron job would build at its start.

    [bold]Examples[/bold]

    tokshard build-indices data/web --seq-length 4096 --epochs 1

    tokshard build-indices data/web --seq-length 4096 --num-samples 10M,20k --cache-dir cache
    --like old-cache/0f3a...-GPTDataset-train-description.txt

    tokshard build-indices data/web --seq-length 4096 --train-iters 50000 --global-batch-size 512
    --eval-interval 1000 --eval-iters 10 --megatron 0.19 --tokenizer-model /models/llama --cache-dir cache

    The files have Megatron's names and bytes. What is there and fresh is not built again.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "build-indices") as log:
        ray = ray_options(executor, ray_address, ray_cpus_per_task, ray_retries, workers=workers)
        names = NamingOptions(
            like=like,
            tokenizer_identifiers=tokenizer_identifiers,
            megatron=megatron,
            tokenizer_type=tokenizer_type,
            tokenizer_model=tokenizer_model,
            vocab_size=vocab_size,
        )
        of_training = TrainingOptions(
            train_iters=train_iters,
            train_samples=train_samples,
            global_batch_size=global_batch_size,
            eval_interval=eval_interval,
            eval_iters=eval_iters,
            eval_global_batch_size=eval_global_batch_size,
            start_eval_at_iter=start_eval_at_iter,
            full_validation=full_validation,
            skip_train=skip_train,
        ).sizes
        sizes = (Sizes(*one) for one in num_samples or ())
        wishes = Wishes(
            prefixes=tuple(prefixes),
            sequence_lengths=tuple(seq_length or ()),
            split=split,
            seed=seed,
            extra_token=add_extra_token,
            drop_last_partial=drop_last_partial_validation,
            sizes=(*sizes, *((of_training,) if of_training else ())),
            epochs=tuple(epochs or ()),
            surplus=surplus,
            like=names.settings(),
            identifiers=names.identifiers(),
            path_as=options.parse_path_as(path_as),
        )
        check_path_as(wishes.path_as, (*wishes.prefixes, cache_dir or ""))
        if assert_hit and rebuild:
            raise UsageError("--assert-hit builds nothing: leave out --rebuild")
        from tokshard.index_cache import job

        notes, hint = _notes(wishes)
        warn(notes, hint, log=log, quiet=quiet)
        how: dict[str, Any] = {
            "cache_directory": cache_dir,
            "workers": workers,
            "progress": log.following(make_meter(quiet=quiet, animated=not no_progress)),
        }
        requests = wishes.requests()
        if assert_hit:
            reports = job.check_indices(requests, **how)
        else:
            reports = job.build_indices(requests, rebuild=rebuild, **{**how, "workers": ray or workers})
        warnings = dict.fromkeys(one for report in reports for one in report.warnings)
        warn(list(warnings), log=log, quiet=quiet)
        _show(reports, wishes, samples=wishes.samples_of_epochs(), as_json=as_json, quiet=quiet)
        if not all(report.is_fresh for report in reports):
            raise typer.Exit(MISSED)


def _notes(wishes: Wishes) -> tuple[list[str], str | None]:
    """Return what is said before the work, and the hint to the last of it."""
    notes = [DEFAULT_SPLIT_WARNING] if wishes.uses_default_split else []
    notes += [
        f"--like does not tell how many samples {name} has, so that its index is left out"
        for name in wishes.unsized_splits
    ]
    return (notes, None) if wishes.identifiers is not None else ([*notes, NEUTRAL_NOTE], NEUTRAL_HINT)


def _show(
    reports: list[IndexReport], wishes: Wishes, *, samples: list[EpochSamples], as_json: bool, quiet: bool
) -> None:
    if as_json:
        first = {str(one.epochs): one.samples for one in samples[: len(wishes.epochs)]}
        terminal.say_json(
            {
                "schema": SCHEMA,
                "fresh": all(report.is_fresh for report in reports),
                "megatron_names": wishes.identifiers is not None,
                "train_samples_of_epochs": first,
                "indices": [report.to_json() for report in reports],
            }
        )
        return
    if quiet:
        return
    for report in reports:
        _show_index(report)
    _show_epochs(samples)
    fresh = sum(report.is_fresh for report in reports)
    if fresh < len(reports):
        terminal.say(f"{fresh} of {len(reports)} indexes are there and fresh")
    elif wishes.identifiers is not None:
        terminal.say(f"next: {_next(reports[0])}")


def _show_epochs(samples: list[EpochSamples]) -> None:
    """Say what to ask a job for; datasets and lengths are named where there are several."""
    several_sets = len({one.prefix for one in samples}) > 1
    several_lengths = len({one.sequence_length for one in samples}) > 1
    for one in samples:
        of = f" of {terminal.safe(one.prefix)}" if several_sets else ""
        length = f" with --seq-length {one.sequence_length}" if several_lengths else ""
        verb = "epoch{} is" if one.epochs == 1 else "epochs{} are"
        terminal.say(f"{one.epochs} {verb.format(of)} --train-samples {one.samples}{length}")


def _show_index(report: IndexReport) -> None:
    request, plan = report.request, report.plan
    asked = "one epoch" if request.num_samples is None else f"{terminal.count(request.num_samples)} samples"
    epochs = "1 epoch" if plan.epochs == 1 else f"{terminal.count(plan.epochs)} epochs"
    terminal.say(f"{request.split_name} of {terminal.safe(request.prefix)}: {_outcome(report)}")
    _line("asked", f"{asked} of {terminal.count(request.sequence_length)} tokens")
    tokens = terminal.count(plan.tokens_per_epoch)
    _line("holds", f"{terminal.count(plan.samples)} samples: {epochs} of {tokens} tokens")
    names = ",".join(["description.txt", *(f"{name}.npy" for name in report.entry.arrays)])
    stem = os.path.join(report.entry.directory, report.entry.stem)
    _line("hash", report.entry.hash)
    _line("description", terminal.safe(json.dumps(json.loads(report.request.description().text()))))
    _line("files", f"{terminal.safe(stem)}-{{{names}}}")


def _outcome(report: IndexReport) -> str:
    if report.action is None:
        return (
            report.condition if report.is_fresh else f"{report.condition}: it {terminal.safe(report.detail)}"
        )
    words = {"found": "there already", "verified": "Megatron's own, verified"}
    return words.get(report.action, report.action)


def _line(label: str, text: str) -> None:
    terminal.say(f"  {label:<{_LABEL_WIDTH}} {text}")


def _next(report: IndexReport) -> str:
    request = report.request
    arguments = ["--data-path", request.training_path, "--data-cache-path", report.entry.directory]
    arguments += ["--seq-length", str(request.sequence_length), "--seed", str(request.seed)]
    if request.split.text is not None:
        arguments += ["--split", request.split.text]
    return f"give the job {terminal.safe(shlex.join(arguments))}, and its whole command to tokshard doctor"
