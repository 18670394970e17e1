"""What is wrong with the arguments of a job before any data is looked at."""

from __future__ import annotations

from collections.abc import Iterator

from tokshard.core.findings import Finding
from tokshard.errors import UsageError
from tokshard.gpt_index.splits import DEFAULT_SPLIT, parse_split
from tokshard.preflight.launch.arguments import LaunchArguments, parse_step_schedule


def findings_of_arguments(launch: LaunchArguments) -> list[Finding]:
    """Return what Megatron will refuse, and what it will do otherwise than one may think.

    Example:
        >>> launch = LaunchArguments(seq_length=100, context_parallel_size=8, skip_train=True)
        >>> [one.code for one in findings_of_arguments(launch)]
        ['context-parallel', 'no-data']
    """
    rules = (_reading, _ranks, _batches, _schedules, _validation, _sources, _split, _caches)
    return [finding for rule in rules for finding in rule(launch)]


def _reading(launch: LaunchArguments) -> Iterator[Finding]:
    for note in launch.notes:
        yield Finding("reading", "warning", note)
    if launch.unseen:
        yield Finding(
            "unknown-arguments",
            "note",
            f"the text does not set {', '.join(launch.unseen)}: arguments in it are not seen",
            "`bash -x script` prints the command with them",
        )


def _ranks(launch: LaunchArguments) -> Iterator[Finding]:
    length, context = launch.sequence_length, launch.context_parallel_size or 1
    if length is not None and context > 1 and length % (2 * context):
        yield Finding(
            "context-parallel",
            "error",
            f"the sequence length {length} is not divisible by {2 * context} (2 x context-parallel size)",
            f"use a multiple of {2 * context}: each sequence is cut into two chunks for each of these ranks",
        )
    model, world = launch.model_parallel_size, launch.world_size
    if world is not None and world % model:
        yield Finding(
            "world-size",
            "error",
            f"{world} processes are not divisible by {model}, the tensor, pipeline and context parallel "
            "sizes multiplied",
        )


def _batches(launch: LaunchArguments) -> Iterator[Finding]:
    ranks = launch.data_parallel_size
    pairs = (
        ("global batch size", launch.global_batch_size, launch.micro_batch_size),
        (
            "evaluation's global batch size",
            launch.eval_global_batch_size or (launch.eval_micro_batch_size and launch.global_batch_size),
            launch.eval_micro_batch_size or launch.micro_batch_size,
        ),
    )
    for name, batch, micro in pairs:
        if batch is None or micro is None or ranks is None or micro < 1:
            continue
        if batch % (micro * ranks):
            yield Finding(
                "batch-size",
                "error",
                f"the {name} {batch} is not divisible by {micro * ranks}: {micro} for each of {ranks} "
                "data-parallel ranks",
            )


def _schedules(launch: LaunchArguments) -> Iterator[Finding]:
    if launch.step_batch_size_schedule is not None:
        try:
            schedule = parse_step_schedule(launch.step_batch_size_schedule, launch.seq_length)
        except UsageError as error:
            yield Finding.of_error("schedule", error)
            return
        if launch.global_batch_size is not None and not launch.is_completed:
            yield Finding(
                "schedule", "error", "--step-batch-size-schedule and --global-batch-size exclude each other"
            )
        by_steps = launch.train_iters and not launch.train_samples
        if by_steps and max(batch for _, batch in schedule) > (launch.batch_size or 0):
            yield Finding(
                "schedule",
                "warning",
                f"Megatron takes {launch.batch_size} samples a step for the size of the training data, fewer "
                "than the schedule's: training may run out of samples",
                "give --train-samples instead of --train-iters",
            )
    if launch.rampup_batch_size is not None and not launch.train_iters:
        yield Finding(
            "schedule",
            "warning",
            "--rampup-batch-size is ignored from Megatron 0.18 on; up to 0.17 it makes more steps, and with "
            "them more samples of validation than are counted here",
            "give --train-iters as the job prints it",
        )


def _validation(launch: LaunchArguments) -> Iterator[Finding]:
    if launch.eval_interval is None and not launch.full_validation and not launch.skip_train:
        yield Finding(
            "eval-interval",
            "warning",
            "--eval-interval is not given: it is 1000 up to Megatron 0.16, and later versions fail without",
        )


def _sources(launch: LaunchArguments) -> Iterator[Finding]:
    for option, given in (("--mock-data", launch.mock_data), ("--sft", launch.sft)):
        if given:
            yield Finding("other-data", "note", f"with {option} the job reads no indexes and no cache")
    if launch.fim_data:
        yield Finding(
            "other-data",
            "warning",
            "with --fim-data the files are named by another class (GPTFIMDataset) than those told here",
        )
    common = [launch.data_path, launch.data_args_path]
    separate = [launch.train_data_path, launch.valid_data_path, launch.test_data_path]
    kinds = [
        any(one is not None for one in common),
        any(one is not None for one in (*separate, launch.per_split_data_args_path)),
    ]
    if None not in common or all(kinds) or (kinds[1] and any(separate) and launch.per_split_data_args_path):
        yield Finding(
            "no-single-source", "error", "the data is given in several ways, which exclude each other"
        )
    if not any(kinds) and not launch.mock_data and not launch.sft:
        yield Finding("no-data", "error", "no data is given", "give --data-path or one of its like")
    if kinds[1] and launch.split is not None:
        yield Finding(
            "split-excluded",
            "error",
            f"--split {launch.split!r} and data for each split exclude each other: Megatron will not start",
            "leave out --split",
        )


def _split(launch: LaunchArguments) -> Iterator[Finding]:
    if launch.data_path is None and launch.data_args_path is None:
        return
    if launch.split is None and launch.data_path is None:
        yield Finding(
            "default-split",
            "error",
            "--split is not given: Megatron has a default for --data-path alone, and will not start",
            f"give --split; the default would be {DEFAULT_SPLIT!r}",
        )
        return
    if launch.split is None:
        yield Finding(
            "default-split",
            "warning",
            f"--split is not given, and the default {DEFAULT_SPLIT!r} keeps 3.1% of the data from training",
            "give --split 1,0,0 for training alone, or the shares that are wanted",
        )
        return
    try:
        parse_split(launch.split)
    except UsageError as error:
        yield Finding.of_error("split", error)


def _caches(launch: LaunchArguments) -> Iterator[Finding]:
    lazy = launch.dataloader_fast_cache_load or launch.dataloader_defer_npy_index_mmap
    if lazy and launch.data_cache_path is None:
        yield Finding(
            "no-cache-path", "error", "the fast and deferred loading of caches need --data-cache-path"
        )
    if lazy and (launch.data_path is not None or launch.data_args_path is not None):
        yield Finding(
            "fast-cache-load", "error", "the fast and deferred loading of caches need data for each split"
        )
    if launch.dataloader_type == "cyclic" and launch.no_data_sharding:
        yield Finding(
            "cyclic-sampler",
            "warning",
            "the cyclic sampler without data sharding can give ranks different numbers of batches, which "
            "then drift apart",
            "leave out --no-data-sharding, or use a number of samples that all ranks divide",
        )
