"""``tokshard build-indices``: options, one library call, one rendering."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

import tokshard
from tokshard import BuildIndicesOptions, NamingOptions, Sizes, TrainingOptions
from tokshard.cli import from_launch as launches
from tokshard.cli import options, rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import integer, number, text
from tokshard.core import megatron_defaults
from tokshard.core.formatting import count, counted, duration, listed, shown_path, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokshard import BuildIndicesReport
    from tokshard.samples.index.job import EpochSize, IndexReport

_SHOWN_DIRECTORIES = 4
_WORDS = {"found": "reused"}


COMMON_OPTIONS = (
    "--from-launch",
    *options.INDEXING_OPTIONS,
    "--epochs",
    "--rebuild",
    "--workers",
)


def build_indices(
    context: typer.Context,
    prefixes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PREFIX...]", help="Path prefixes of datasets.", show_default=False),
    ] = None,
    from_launch: launches.FromLaunch = None,
    seq_length: options.SequenceLengths = None,
    split: options.SplitText = None,
    seed: options.Seed = None,
    add_extra_token: options.ExtraToken = BuildIndicesOptions.extra_token,
    drop_last_partial_validation: options.DropLastPartial = BuildIndicesOptions.drop_last_partial,
    pack: options.Pack = BuildIndicesOptions.pack,
    max_documents_per_sample: options.MaxDocumentsPerSample = None,
    pad_multiple: options.PadMultiple = None,
    num_samples: options.NumSamplesList = None,
    epochs: Annotated[
        list[int] | None,
        integer("--epochs", help="Build as many training samples as N epochs have.", group=options.SIZE),
    ] = None,
    surplus: Annotated[
        float,
        number(
            "--surplus",
            metavar="FRACTION",
            help="Build this fraction more samples, as Megatron does for a dataset of a blend "
            f"({megatron_defaults.SURPLUS}).",
            default=f"{BuildIndicesOptions.surplus:g}",
            group=options.SIZE,
        ),
    ] = BuildIndicesOptions.surplus,
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
            default="PREFIX/cache/GPTDataset_indices",
            group=options.RUN,
        ),
    ] = None,
    rebuild: options.Rebuild = BuildIndicesOptions.rebuild,
    lock: options.Lock = BuildIndicesOptions.lock,
    allow_tokenizer_mismatch: options.AllowTokenizerMismatch = BuildIndicesOptions.allow_tokenizer_mismatch,
    workers: options.Workers = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    r"""Build the sample indexes that a Megatron job would build when it starts.

    The files have Megatron's names and bytes. Indexes that are present and up to date are not built again.

    Examples:
        tokshard build-indices data/web --seq-length 4096 --epochs 1

        tokshard build-indices data/web --seq-length 4096 --num-samples 10M,20k \
            --cache-dir cache --like old-cache/0f3a-GPTDataset-train-description.txt

        tokshard build-indices data/web --seq-length 4096 --train-iters 50000 \
            --global-batch-size 512 --eval-interval 1000 --eval-iters 10 \
            --cache-dir cache --megatron 0.19 --tokenizer-model /models/llama

        tokshard build-indices --from-launch launch.sh --megatron 0.19
    """
    values = dict(locals())
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        indexes = launches.indexes_of(context, values)
        if indexes is not None:
            launches.check_packing(indexes, pack)
            run.warn(indexes.warnings)
            chosen = launches.adjusted(
                indexes.build_indices_options(launches.packing_words(values)),
                values,
                pack=pack,
                max_documents_per_sample=max_documents_per_sample,
                pad_multiple=pad_multiple,
                rebuild=rebuild,
                lock=lock,
                allow_tokenizer_mismatch=allow_tokenizer_mismatch,
                workers=workers,
            )
        else:
            chosen = BuildIndicesOptions(
                prefixes=tuple(prefixes or ()),
                sequence_lengths=tuple(seq_length or ()),
                split=split,
                seed=seed,
                extra_token=add_extra_token,
                drop_last_partial=drop_last_partial_validation,
                pack=pack,
                max_documents_per_sample=max_documents_per_sample,
                pad_multiple=pad_multiple,
                num_samples=tuple(Sizes(*size) for size in num_samples or ()),
                epochs=tuple(epochs or ()),
                surplus=surplus,
                training=TrainingOptions(
                    train_iters=train_iters,
                    train_samples=train_samples,
                    global_batch_size=global_batch_size,
                    eval_interval=eval_interval,
                    eval_iters=eval_iters,
                    eval_global_batch_size=eval_global_batch_size,
                    start_eval_at_iter=start_eval_at_iter,
                    full_validation=full_validation,
                    skip_train=skip_train,
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
                workers=workers,
            )
        early = chosen.early_warnings()
        if chosen.naming.are_given:
            run.warn(early)
        else:
            run.warn((*early, options.NEUTRAL_NOTE), options.NEUTRAL_HINT)
        report = tokshard.build_indices(chosen, progress=run.progress)
        run.warn(report.warnings)
        following = None
        if indexes is not None:
            following = launches.following(indexes, chosen.cache_directory, values)
        run.show(report, lambda report: _show(report, following))


def _show(report: BuildIndicesReport, following: str | None) -> None:
    from tokshard.checks.inspect.description import describe

    several_lengths = len({index.plan.sequence_length for index in report.indices}) > 1
    header = ["dataset", "split", "samples", "epochs", "documents", "tokens", "index", "size"]
    rows = []
    for index in report.indices:
        row = [
            *(shown_path(index.path_prefix), index.description.index_split),
            *(count(index.plan.samples), count(index.plan.epochs)),
            *(count(index.documents), count(index.plan.tokens)),
            *(_WORDS.get(index.action, index.action), size(index.size_bytes)),
        ]
        rows.append([*row, count(index.plan.sequence_length)] if several_lengths else row)
    rendering.table([*header, "sequence length"] if several_lengths else header, rows, left=(0, 1, 6))
    _show_epochs(report.epoch_sizes)
    packing = describe(report)
    rendering.line()
    rendering.show(packing)
    if packing:
        rendering.line()
    rendering.outcome(_outcome(report, following))


def _outcome(report: BuildIndicesReport, following: str | None) -> Iterator[tuple[str, object]]:
    actions = Counter(index.action for index in report.indices)
    done = ", ".join(f"{count(number)} {_WORDS.get(action, action)}" for action, number in actions.items())
    directories = dict.fromkeys(shown_path(os.path.dirname(index.files[0])) for index in report.indices)
    written = sum(index.size_bytes for index in report.indices)
    where = listed(list(directories), _SHOWN_DIRECTORIES)
    yield "indexes", f"{done} in {where} ({size(written)})"
    yield "time", duration(report.seconds)
    if report.has_megatron_names:
        yield "next", following or _next(report.indices[0])


def _show_epochs(sizes: Sequence[EpochSize]) -> None:
    several_datasets = len({size.path_prefix for size in sizes}) > 1
    several_lengths = len({size.sequence_length for size in sizes}) > 1
    for epoch_size in sizes:
        of = f" of {epoch_size.path_prefix}" if several_datasets else ""
        length = f" with --seq-length {epoch_size.sequence_length}" if several_lengths else ""
        verb = "is" if epoch_size.epochs == 1 else "are"
        epochs = counted(epoch_size.epochs, "epoch")
        rendering.line(f"{epochs}{of} {verb} --train-samples {epoch_size.train_samples}{length}")


def _next(index: IndexReport) -> str:
    described = index.description
    directory = os.path.dirname(index.files[0])
    arguments = ["--data-path", described.dataset_path, "--data-cache-path", directory]
    arguments += ["--seq-length", str(described.sequence_length), "--seed", str(described.random_seed)]
    if described.split is not None:
        arguments += ["--split", described.split]
    if index.packing_report is not None:
        arguments.append("--eod-mask-loss")
    return f"launch with {shlex.join(arguments)}; check the launch script with `tokshard doctor launch.sh`"
