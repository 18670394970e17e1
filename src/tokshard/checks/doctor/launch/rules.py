"""Checks of the data arguments of a Megatron job: findings, and checks that were skipped."""

from __future__ import annotations

from collections.abc import Iterator

from tokshard.checks.doctor.launch.arguments import DATA_ARGUMENTS, MODEL_SIZES, LaunchArguments, option_of
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.programs import fork_of, unsupported_data
from tokshard.checks.doctor.launch.unknown import NO_WORLD_SIZE, SkippedCheck, Unknown
from tokshard.core import megatron_rules
from tokshard.core.findings import Finding, Severity
from tokshard.core.formatting import shortened
from tokshard.core.megatron_rules import is_at_least, known_version
from tokshard.errors import UsageError
from tokshard.samples.index.splits import parse_split

# Arguments with which a job does not read the datasets of its data arguments.
_OTHER_DATA = ("mock_data", "sft")
_INDEXING = (
    "split",
    "data_cache_path",
    "seq_length",
    "encoder_seq_length",
    "seed",
    "mid_level_dataset_surplus",
)
_TOKENIZER = ("tokenizer_model", "vocab_file", "merge_file", "chat_template", "tokenizer_special_tokens")
_NULL_IDS = ("null_tokenizer_eod_id", "null_tokenizer_pad_id")
_SIZES = (
    "train_iters",
    "train_samples",
    "rampup_batch_size",
    "step_batch_size_schedule",
    "eval_interval",
    "eval_iters",
    "eval_global_batch_size",
    "start_eval_at_iter",
    "phase_transition_iterations",
)

Result = Finding | SkippedCheck


def check_launch(launch: Launch, megatron: str | None = None) -> list[Result]:
    """Check the arguments of a launch command, including data arguments if the job reads GPT's samples.

    Args:
        launch: The launch command.
        megatron: The version of Megatron Core, if it is known.

    Raises:
        UsageError: The version is not known.
    """
    unsupported = unsupported_data(launch)
    if unsupported is None or unsupported.has_other_names_only:
        return check_arguments(launch.arguments, megatron, is_fork=fork_of(launch) is not None)
    return [*check_processes(launch.arguments, None if megatron is None else known_version(megatron))]


def check_arguments(
    launch: LaunchArguments, megatron: str | None = None, *, is_fork: bool = False
) -> list[Result]:
    """Check arguments that Megatron refuses or treats unexpectedly.

    Args:
        launch: The arguments of the job.
        megatron: The version of Megatron Core, if it is known.
        is_fork: Whether the job's program belongs to a fork of a Megatron version before 0.16.

    Returns:
        Findings, and the checks that were skipped because arguments are unknown.

    Raises:
        UsageError: The version is not known.

    Example:
        >>> launch = LaunchArguments(seq_length=100, context_parallel_size=8, world_size=8, skip_train=True)
        >>> [result.code for result in check_arguments(launch)]
        ['context-parallel', 'no-data']
    """
    version = None if megatron is None else known_version(megatron)
    results = [*_reading(launch), *_ranks(launch), *_batches(launch), *_schedules(launch, version)]
    if not is_fork:
        results += (*_ramp_up(launch, version), *_validation(launch, version))
    return [*results, *_sources(launch), *_split_string(launch), *_caches(launch)]


def check_processes(launch: LaunchArguments, megatron: str | None = None) -> list[Finding]:
    """Check the arguments that do not depend on the kind of the data: options, processes and batches.

    Example:
        >>> launch = LaunchArguments(tensor_model_parallel_size=16, world_size=8, mock_data=True)
        >>> [finding.code for finding in check_processes(launch)]
        ['world-size']
    """
    results = (*_ranks(launch), *_batches(launch), *_schedules(launch, megatron))
    errors = [result for result in results if isinstance(result, Finding) and result.severity == "error"]
    return [*launch.problems, *errors]


def unknown_sizes(launch: LaunchArguments) -> Unknown | None:
    """Return the unknown value that decides the numbers of samples, or None."""
    names: tuple[str, ...] = (*_SIZES, "global_batch_size")
    if launch.global_batch_size is None:
        names += ("micro_batch_size", "world_size", *MODEL_SIZES)
    unknown = launch.unknown_value(*names)
    if unknown is not None:
        return unknown
    has_steps = launch.train_iters is not None or launch.train_samples is not None
    if not has_steps:
        return launch.hidden_arguments()
    if launch.batch_size is None:
        if launch.micro_batch_size is not None and launch.world_size is None:
            return NO_WORLD_SIZE
        return launch.hidden_arguments()
    if launch.eval_interval is None and not (launch.full_validation or launch.skip_train):
        return launch.hidden_arguments()
    return None


def unknown_data(launch: LaunchArguments) -> Unknown | None:
    """Return the unknown value that decides the datasets of a job, or None."""
    unknown = launch.unknown_value(*DATA_ARGUMENTS, *_OTHER_DATA, *_INDEXING)
    if unknown is not None:
        return unknown
    has_split = launch.split is not None or (launch.data_path is None and launch.data_args_path is None)
    if has_data(launch) and has_split and launch.sequence_length and launch.data_cache_path is not None:
        return None
    return launch.hidden_arguments()


def unknown_names(launch: LaunchArguments) -> Unknown | None:
    """Return the unknown value that decides the tokenizer's identifiers, or None."""
    names = ("vocab_size", *_NULL_IDS) if launch.tokenizer_type == "NullTokenizer" else _TOKENIZER
    unknown = launch.unknown_value("tokenizer_type", *names)
    if unknown is None and launch.tokenizer_type is None and launch.tokenizer_model is None:
        return launch.hidden_arguments()
    return unknown


def has_data(launch: LaunchArguments) -> bool:
    """Return whether a data argument is given and known."""
    return any(getattr(launch, name) is not None for name in DATA_ARGUMENTS)


def _reading(launch: LaunchArguments) -> Iterator[Result]:
    yield from launch.problems
    if (hidden := launch.hidden_arguments()) is not None:
        yield hidden.skipped("arguments")
    without_value = [name for name, written in launch.unknown if not written]
    if (absent := launch.unknown_value(*without_value)) is not None:
        yield absent.skipped("arguments")


def _ranks(launch: LaunchArguments) -> Iterator[Result]:
    for name in (*MODEL_SIZES, "micro_batch_size"):
        if (size := getattr(launch, name)) is not None and size < 1:
            yield Finding(
                "arguments", "error", f"{option_of(name)} must be at least 1, got {size}", "correct it"
            )
    length = launch.sequence_length
    chunks = 2 * (launch.context_parallel_size or 1)
    unknown = launch.unknown_value("seq_length", "encoder_seq_length", "context_parallel_size")
    if unknown is not None:
        yield unknown.skipped("context-parallel")
    elif length is not None and chunks > 2 and length % chunks:
        message = f"the sequence length must be divisible by {chunks} (2 x context parallel), got {length}"
        hint = f"use a multiple of {chunks}: each context-parallel rank reads two chunks of a sequence"
        yield Finding("context-parallel", "error", message, hint)
    model, world = launch.model_parallel_size, launch.world_size
    if launch.is_completed and world is None:
        return
    unknown = launch.unknown_value("world_size", *MODEL_SIZES)
    if unknown is not None or world is None:
        yield (unknown or NO_WORLD_SIZE).skipped("world-size")
    elif world % model:
        sizes = f"{model} (tensor x pipeline x context)"
        message = f"the number of processes must be divisible by {sizes}, got {world}"
        hint = f"start a multiple of {model} processes, or change the parallel sizes"
        yield Finding("world-size", "error", message, hint)


def _batches(launch: LaunchArguments) -> Iterator[Result]:
    batch = launch.global_batch_size
    micro = launch.micro_batch_size
    unknown = launch.unknown_value("global_batch_size", "micro_batch_size", "world_size", *MODEL_SIZES)
    if unknown is None and batch is not None and micro is None:
        unknown = launch.hidden_arguments()
    elif unknown is None and batch is not None and launch.world_size is None and not launch.is_completed:
        unknown = NO_WORLD_SIZE
    if unknown is not None:
        yield unknown.skipped("batch-size")
        return
    ranks = launch.data_parallel_size
    # Hidden model-parallel sizes may make the batch divisible.
    has_sizes = all(getattr(launch, name) is not None for name in MODEL_SIZES)
    hidden = None if has_sizes else launch.hidden_arguments()
    eval_batch = launch.eval_global_batch_size or (launch.eval_micro_batch_size and batch)
    pairs = {
        # Megatron rounds it down.
        "--global-batch-size": (None if launch.decrease_batch_size_if_needed else batch, micro),
        "--eval-global-batch-size": (eval_batch, launch.eval_micro_batch_size or micro),
    }
    for option, (size, micro_size) in pairs.items():
        if size is None or micro_size is None or ranks is None or micro_size < 1:
            continue
        unit = micro_size * ranks
        if size % unit and hidden is not None:
            yield hidden.skipped("batch-size")
        elif size % unit:
            division = f"{unit} ({micro_size} for each of {ranks} data-parallel ranks)"
            message = f"{option} must be divisible by {division}, got {size}"
            hint = f"use {option} {-(-size // unit) * unit}, or other parallel sizes"
            yield Finding("batch-size", "error", message, hint)


def _schedules(launch: LaunchArguments, megatron: str | None) -> Iterator[Result]:
    iterations = launch.train_iters
    samples = launch.train_samples
    # Megatron fills in the other one. From 0.17 on, jobs that do not train may have both.
    is_free = launch.is_completed or (
        launch.skip_train and (megatron is None or is_at_least(megatron, "0.17"))
    )
    if None not in (iterations, samples) and (iterations or samples) and not is_free:
        message = "--train-iters cannot be used with --train-samples: Megatron will not start"
        yield Finding("schedule", "error", message, "remove one of them")
    if launch.step_batch_size_schedule is None:
        return
    try:
        schedule = launch.step_schedule().segments
    except UsageError as error:
        hint = "write pairs of a first sample and a batch size, such as '0:768 250B:1536'"
        message = f"--step-batch-size-schedule is invalid: {error.message[:200]}"
        yield Finding("schedule", "error", message, error.hint or hint)
        return
    if launch.global_batch_size is not None and not launch.is_completed:
        message = "--step-batch-size-schedule cannot be used with --global-batch-size"
        yield Finding("schedule", "error", message, "remove --global-batch-size")
    if iterations and not samples and max(size for _, size in schedule) > (launch.batch_size or 0):
        message = (
            f"Megatron computes the size of the training data with {launch.batch_size} samples per step, "
            "fewer than the schedule's: training may run out of samples"
        )
        yield Finding("schedule", "warning", message, "pass --train-samples instead of --train-iters")


def _ramp_up(launch: LaunchArguments, megatron: str | None) -> Iterator[Result]:
    if launch.rampup_batch_size is None or (launch.is_completed and launch.train_iters):
        return
    severity: Severity = "warning"
    message = "--rampup-batch-size is ignored from Megatron 0.18 on"
    hint = "pass the log of an earlier run of the job, which contains the number of steps"
    if megatron is not None and is_at_least(megatron, "0.18"):
        hint = "remove it"
    elif launch.train_iters:
        severity = "warning" if megatron is None else "error"
        refused = "Megatron up to 0.17 does not start with both --rampup-batch-size and --train-iters"
        message = f"{message}, and {refused}" if megatron is None else refused
        hint = "remove --rampup-batch-size, or pass --train-samples instead of --train-iters"
    else:
        message += "; up to 0.17 it adds steps, and so more samples of validation than are counted here"
    yield Finding("schedule", severity, message, hint)


def _validation(launch: LaunchArguments, megatron: str | None) -> Iterator[Result]:
    if launch.eval_interval is not None or launch.full_validation or launch.skip_train:
        return
    unknown = launch.unknown_value("eval_interval") or launch.hidden_arguments()
    if unknown is not None:
        yield unknown.skipped("eval-interval")
        return
    default = megatron_rules.EVAL_INTERVAL
    hint = f"add --eval-interval; the default up to 0.15 was {default}"
    if megatron is None:
        message = (
            f"--eval-interval is missing: Megatron up to 0.15 uses {default}, later versions do not start"
        )
        yield Finding("eval-interval", "warning", message, hint)
    elif is_at_least(megatron, "0.16"):
        message = f"--eval-interval is missing: Megatron {megatron} has no default, and will not start"
        yield Finding("eval-interval", "error", message, hint)


def _sources(launch: LaunchArguments) -> Iterator[Result]:
    given = [name for name in DATA_ARGUMENTS if getattr(launch, name) is not None]
    common = [name for name in given if name in {"data_path", "data_args_path"}]
    separate = [name for name in given if name not in common]
    has_files = "per_split_data_args_path" in separate
    if len(common) > 1 or (common and separate) or (has_files and len(separate) > 1):
        options = ", ".join(map(option_of, given))
        message = f"several mutually exclusive data arguments are set: {options}"
        yield Finding("no-single-source", "error", message, "keep one of them")
    unknown = launch.unknown_value(*DATA_ARGUMENTS, *_OTHER_DATA)
    if unknown is None and not given:
        unknown = launch.hidden_arguments()
    if unknown is not None:
        yield unknown.skipped("data")
    elif not given:
        hint = "add --data-path or --train-data-path"
        yield Finding("no-data", "error", "no data argument is set", hint)
    if separate and launch.split is not None:
        split = f"--split {shortened(launch.split)!r}"
        message = f"{split} cannot be used with data for each split: Megatron will not start"
        yield Finding("split-excluded", "error", message, "remove --split")


def _split_string(launch: LaunchArguments) -> Iterator[Result]:
    if launch.data_path is None and launch.data_args_path is None:
        return
    if launch.split is not None:
        try:
            parse_split(launch.split)
        except UsageError as error:
            hint = error.hint or "write shares such as --split 99,1,0"
            yield Finding("split", "error", error.message, hint)
        return
    unknown = launch.unknown_value("split") or launch.hidden_arguments()
    if unknown is not None:
        yield unknown.skipped("split")
    elif launch.data_path is None:
        message = "--split is missing: Megatron has a default only for --data-path, and will not start"
        hint = f"add --split; the default would be {megatron_rules.SPLIT!r}"
        yield Finding("default-split", "error", message, hint)
    else:
        default = f"the default {megatron_rules.SPLIT!r} reserves 3.1% of the data for validation and test"
        hint = "add --split 1,0,0 to train on all data, or other shares"
        yield Finding("default-split", "warning", f"--split is missing, and {default}", hint)


def _caches(launch: LaunchArguments) -> Iterator[Result]:
    is_lazy = launch.dataloader_fast_cache_load or launch.dataloader_defer_npy_index_mmap
    if is_lazy and launch.data_cache_path is None:
        unknown = launch.unknown_value("data_cache_path") or launch.hidden_arguments()
        message = "fast and deferred cache loading require --data-cache-path"
        if unknown is not None:
            yield unknown.skipped("cache-path")
        else:
            yield Finding("no-cache-path", "error", message, "add --data-cache-path DIR")
    has_common = launch.data_path is not None or launch.data_args_path is not None
    if launch.dataloader_fast_cache_load and has_common:
        message = "fast cache loading requires data for each split"
        options = "--train-data-path, --valid-data-path and --test-data-path"
        hint = f"use {options}, or remove --dataloader-fast-cache-load"
        yield Finding("fast-cache-load", "error", message, hint)
    if launch.dataloader_type == "cyclic" and launch.no_data_sharding:
        message = (
            "the cyclic sampler without data sharding can yield different numbers of batches per rank, and "
            "the ranks then diverge"
        )
        hint = "remove --no-data-sharding, or use a number of samples that is divisible by the ranks"
        yield Finding("cyclic-sampler", "warning", message, hint)
