"""``tokshard build-indices``: options, one library call, one rendering."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING

import tokshard
from tokshard import BuildIndicesOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun
from tokshard.cli.from_launch import LaunchOptions, adjusted, warn_early
from tokshard.cli.generate import Given
from tokshard.core.formatting import count, counted, duration, listed, shown_path, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokshard import BuildIndicesReport
    from tokshard.samples.index.job import EpochSize, IndexReport

_SHOWN_DIRECTORIES = 4
_WORDS = {"found": "reused"}


def build_indices(given: Given[BuildIndicesOptions], launch: LaunchOptions, run: CommandRun) -> None:
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
    indexes = launch.indexes(given)
    if indexes is None:
        options = given.make()
    else:
        run.warn(indexes.warnings)
        packing = given.words("pack", "max_documents_per_sample", "pad_multiple")
        options = adjusted(indexes.build_indices_options(packing), given)
    warn_early(options, run)
    report = tokshard.build_indices(options, progress=run.progress)
    run.warn(report.warnings)
    following = None if indexes is None else launch.following(given, indexes, options.cache_dir)
    run.show(report, lambda report: _show(report, following))


def _show(report: BuildIndicesReport, following: str | None) -> None:
    from tokshard.checks.inspect.packing_facts import describe_built

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
    packing = describe_built(report)
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
