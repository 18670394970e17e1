"""``tokshard build-indices``: options, one library call, one rendering."""

from __future__ import annotations

import tokshard
from tokshard import BuildIndicesOptions
from tokshard.cli.command_run import CommandRun
from tokshard.cli.from_launch import LaunchOptions, adjusted, warn_early
from tokshard.cli.generate import Given


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
    following = None if indexes is None else indexes.next_step(options.cache_dir)
    from tokshard.checks.inspect.packing_facts import describe_packed

    packed = describe_packed(
        (index.path_prefix, index.description.index_split, index.plan) for index in report.indices
    )
    run.show(report, lambda report: [report.indices_section(), *packed, report.outcome(following)])
