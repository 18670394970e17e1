"""``tokshard blend``: options, one library call, one rendering."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import tokshard
from tokshard import BlendOptions, NamingOptions, Sizes, TrainingOptions
from tokshard.cli import from_launch as launches
from tokshard.cli import options, rendering, terminal
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import choice, number, switch, text
from tokshard.core.formatting import count, duration, percent, shown_path, visible
from tokshard.core.presentation import Section, Table
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard import BlendReport


_MIXTURE = "Mixture"


Unit = Literal["samples", "tokens"]
Emit = Literal["megatron-args", "megatron-json", "megatron-words"]

COMMON_OPTIONS = (
    "--output",
    "--from-launch",
    "--train",
    "--valid",
    "--test",
    "--unit",
    "--epochs",
    "--max-epochs",
    *options.INDEXING_OPTIONS,
    "--emit",
    "--force",
    "--dry-run",
)


def blend(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[[WEIGHT] PREFIX...]",
            help="Alternating weights and path prefixes, path prefixes only, a recipe.toml, a JSON file "
            "as for Megatron's --per-split-data-args-path, or @FILE with such words.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        text("--output", "-o", metavar="DIR", help="Write DIR/blend.json, and the indexes to DIR/cache."),
    ] = None,
    from_launch: launches.FromLaunch = None,
    train: Annotated[
        str | None,
        text(
            "--train",
            "--train-data-path",
            metavar="'WORDS'",
            help="Use these weights and prefixes for training only.",
            group=_MIXTURE,
        ),
    ] = None,
    valid: Annotated[
        str | None,
        text(
            "--valid",
            "--valid-data-path",
            metavar="'WORDS'",
            help="Use these weights and prefixes for validation only.",
            group=_MIXTURE,
        ),
    ] = None,
    test: Annotated[
        str | None,
        text(
            "--test",
            "--test-data-path",
            metavar="'WORDS'",
            help="Use these weights and prefixes for testing only.",
            group=_MIXTURE,
        ),
    ] = None,
    data_path: Annotated[
        bool, typer.Option("--data-path", hidden=True, help="Accept the words that follow, as in Megatron.")
    ] = False,
    data_args_path: Annotated[
        str | None,
        text(
            "--data-args-path",
            metavar="FILE",
            help="Read weights and prefixes from a file for Megatron's --data-args-path.",
            group=_MIXTURE,
        ),
    ] = None,
    per_split_data_args_path: Annotated[
        str | None,
        text(
            "--per-split-data-args-path",
            metavar="FILE",
            help="Read weights and prefixes of each split from a JSON file for Megatron's option of that "
            "name.",
            group=_MIXTURE,
        ),
    ] = None,
    multiple_validation_sets: Annotated[
        bool,
        switch(
            "--multiple-validation-sets",
            help="Keep the validation sets of the datasets apart.",
            group=_MIXTURE,
        ),
    ] = BlendOptions.multiple_validation_sets,
    unit: Annotated[
        Unit | None,
        choice(
            Unit,
            "--unit",
            help="Read weights as shares of the samples, or as amounts of tokens.",
            default="samples",
            group=_MIXTURE,
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        number("--epochs", help="Read each dataset this many times, instead of by weight.", group=_MIXTURE),
    ] = None,
    max_epochs: Annotated[
        float | None,
        number(
            "--max-epochs",
            help="Read no dataset more than this many times; the others get its remaining share.",
            group=_MIXTURE,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        number(
            "--temperature",
            metavar="T",
            help="Raise weights (or sizes) to the power 1/T.",
            default="1",
            group=_MIXTURE,
        ),
    ] = None,
    seq_length: options.SequenceLength = None,
    split: options.SplitText = None,
    seed: options.Seed = None,
    add_extra_token: options.ExtraToken = BlendOptions.extra_token,
    drop_last_partial_validation: options.DropLastPartial = BlendOptions.drop_last_partial,
    pack: Annotated[
        options.PackChoice | None,
        options.pack(default="concat"),
    ] = None,
    max_documents_per_sample: options.MaxDocumentsPerSample = None,
    pad_multiple: options.PadMultiple = None,
    num_samples: options.NumSamples = None,
    surplus: options.Surplus = None,
    train_iters: options.TrainIters = None,
    train_samples: options.TrainSamples = None,
    global_batch_size: options.GlobalBatchSize = None,
    eval_interval: options.EvalInterval = None,
    eval_iters: options.EvalIters = None,
    eval_global_batch_size: options.EvalGlobalBatchSize = None,
    start_eval_at_iter: options.StartEvalAtIter = None,
    full_validation: options.FullValidation = TrainingOptions.full_validation,
    skip_train: options.SkipTrain = TrainingOptions.skip_train,
    like: options.Like = None,
    tokenizer_identifiers: options.TokenizerIdentifiers = None,
    megatron: options.MegatronVersion = None,
    tokenizer_type: options.TokenizerType = None,
    tokenizer_model: options.TokenizerModel = None,
    vocab_size: options.VocabSize = None,
    tokenizer: options.LocalTokenizer = None,
    path_as: options.PathAs = None,
    variables: options.Variables = None,
    iteration: options.Iteration = None,
    cache_dir: Annotated[
        str | None,
        text(
            "--cache-dir",
            "--data-cache-path",
            metavar="DIR",
            help="Write the index files to this directory.",
            default="that of --from-launch, or OUTPUT/cache",
            group=options.RUN,
        ),
    ] = None,
    emit: Annotated[
        Emit | None,
        choice(
            Emit,
            "--emit",
            help="Print only the blend in one of Megatron's forms; without --output, build nothing.",
            group=options.RUN,
        ),
    ] = None,
    rebuild: options.Rebuild = BlendOptions.rebuild,
    lock: options.Lock = BlendOptions.lock,
    allow_tokenizer_mismatch: options.AllowTokenizerMismatch = BlendOptions.allow_tokenizer_mismatch,
    force: Annotated[
        bool, switch("--force", help="Replace another blend at the output.", group=options.RUN)
    ] = BlendOptions.force,
    dry_run: options.DryRun = False,
    workers: options.Workers = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    r"""Mix datasets by weight: build their indexes and the order of the blend.

    The index files have Megatron's names and bytes. A blend that would draw more samples of a
    dataset than its index holds is refused before anything is built.

    Examples:
        tokshard blend 0.7 data/web 0.3 data/code --seq-length 4096 \
            --num-samples 10M -o mix

        tokshard blend recipe.toml -o mix --megatron 0.19 \
            --tokenizer-model /models/llama

        tokshard blend --from-launch 'launch.sh 7b' --megatron 0.19 -o mix
    """
    values = dict(locals())
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        indexes = launches.indexes_of(context, values)
        if indexes is not None:
            launches.check_packing(indexes, pack)
            run.warn(indexes.warnings)
            chosen = launches.adjusted(
                indexes.blend_options(),
                values,
                output=output,
                pack=pack,
                max_documents_per_sample=max_documents_per_sample,
                pad_multiple=pad_multiple,
                rebuild=rebuild,
                lock=lock,
                allow_tokenizer_mismatch=allow_tokenizer_mismatch,
                force=force,
                workers=workers,
            )
        else:
            chosen = BlendOptions(
                sources=tuple(words or ()),
                output=output,
                train=train,
                valid=valid,
                test=test,
                data_args_path=data_args_path,
                per_split_data_args_path=per_split_data_args_path,
                multiple_validation_sets=multiple_validation_sets,
                unit=unit,
                epochs=epochs,
                max_epochs=max_epochs,
                temperature=temperature,
                sequence_length=seq_length,
                split=split,
                seed=seed,
                extra_token=add_extra_token,
                drop_last_partial=drop_last_partial_validation,
                pack=pack,
                max_documents_per_sample=max_documents_per_sample,
                pad_multiple=pad_multiple,
                num_samples=None if num_samples is None else Sizes(*num_samples),
                surplus=surplus,
                training=TrainingOptions(
                    train_iters=train_iters,
                    train_samples=train_samples,
                    global_batch_size=global_batch_size,
                    eval_interval=eval_interval,
                    eval_iters=eval_iters,
                    eval_global_batch_size=eval_global_batch_size,
                    start_eval_at_iter=start_eval_at_iter,
                    skip_train=skip_train,
                    full_validation=full_validation,
                ),
                naming=NamingOptions(
                    like=like,
                    tokenizer_identifiers=tokenizer_identifiers,
                    megatron=megatron,
                    tokenizer_type=tokenizer_type,
                    tokenizer_model=tokenizer_model,
                    vocab_size=vocab_size,
                    tokenizer=tokenizer,
                ),
                path_as=options.parse_path_as(path_as),
                cache_directory=cache_dir,
                rebuild=rebuild,
                lock=lock,
                allow_tokenizer_mismatch=allow_tokenizer_mismatch,
                force=force,
                workers=workers,
            )
        if as_json and emit is not None:
            raise UsageError("--emit and --json exclude each other", hint="leave out one of them")
        run.warn(chosen.early_warnings())
        if not chosen.naming.are_given and not dry_run and emit is None:
            run.warn((options.NEUTRAL_NOTE,), options.NEUTRAL_HINT)
        planned = dry_run or (emit is not None and output is None)
        report = tokshard.blend(chosen, dry_run=planned, progress=run.progress)
        run.warn(report.warnings)
        if emit is not None:
            from tokshard.samples.blend.emission import emit_megatron

            text = emit_megatron(report, chosen, emit)
            terminal.say(text if emit == "megatron-json" else visible(text))
        else:
            following = None if indexes is None else launches.following(indexes, chosen.cache, values)
            run.show(report, lambda report: _show(report, chosen, following))


def _show(report: BlendReport, options: BlendOptions, following: str | None) -> None:
    if report.blend is None or report.path is None:
        _show_plan(report)
        return
    from tokshard.checks.inspect.description import describe

    rendering.show(describe(report))
    rendering.line()
    actions = Counter(entry.action for entry in report.entries)
    words = {"found": "reused"}
    done = ", ".join(f"{count(number)} {words.get(action, action)}" for action, number in actions.items())
    facts: list[tuple[str, object]] = [
        ("written", shown_path(report.path)),
        ("indexes", f"{done} in {shown_path(report.blend.cache_directory)}"),
        ("time", duration(report.seconds)),
    ]
    rendering.outcome([*facts, ("next", following or _next(report, options, report.path))])


def _show_plan(report: BlendReport) -> None:
    header = ("source", "share", "samples", "in its index", "epochs", "tokens of an epoch")
    sections = []
    for split in report.splits:
        rows = [
            (
                source.path_prefix,
                percent(source.weight),
                count(source.draws),
                count(source.plan.samples),
                f"{source.epochs_drawn:.2f}",
                count(source.plan.tokens_per_epoch),
            )
            for source in split.sources
        ]
        title = f"{split.name}: {split.kind_name}, {count(split.samples)} samples"
        sections.append(Section(title, [Table(header, rows, hide=("tokens of an epoch", "in its index"))]))
    rendering.show(sections)


def _next(report: BlendReport, options: BlendOptions, path: str) -> str:
    if options.naming.are_given:
        from tokshard.samples.blend.emission import emit_megatron

        arguments = emit_megatron(report, options)
        if any(source.plan.packed is not None for split in report.splits for source in split.sources):
            arguments += " --eod-mask-loss"
        return f"launch with {arguments}; check the launch script with `tokshard doctor launch.sh`"
    directory = shlex.quote(shown_path(os.path.dirname(path)))
    return f"tokshard shard-plan {directory} --data-parallel N --global-batch-size N -o PLAN"
