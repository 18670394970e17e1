"""Data arguments of a Megatron training job, and their problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tokshard.core import megatron_defaults
from tokshard.core.findings import Finding
from tokshard.core.megatron_versions import is_at_least, known_version
from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes, TrainingArguments, training_sizes
from tokshard.gpt_index.splits import parse_split

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """The data arguments of a Megatron job, with Megatron's names.

    Absent arguments are None (or False for a switch). ``world_size`` is that of the launcher, if the command
    shows it; ``is_completed`` is set if Megatron has parsed the arguments and filled in derived ones;
    ``notes`` are remarks for the user; ``unseen`` are the variables, such as ``$@``, that may contain more
    arguments.
    """

    data_path: tuple[str, ...] | None = None
    data_args_path: str | None = None
    train_data_path: tuple[str, ...] | None = None
    valid_data_path: tuple[str, ...] | None = None
    test_data_path: tuple[str, ...] | None = None
    per_split_data_args_path: str | None = None
    data_cache_path: str | None = None
    split: str | None = None
    seed: int | None = None
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    train_iters: int | None = None
    train_samples: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    rampup_batch_size: tuple[str, ...] | None = None
    step_batch_size_schedule: str | None = None
    eval_interval: int | None = None
    eval_iters: int | None = None
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    start_eval_at_iter: int | None = None
    phase_transition_iterations: str | None = None
    iteration: int | None = None
    full_validation: bool = False
    multiple_validation_sets: bool = False
    skip_train: bool = False
    mid_level_dataset_surplus: float | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    dataloader_type: str | None = None
    no_data_sharding: bool = False
    dataloader_fast_cache_load: bool = False
    dataloader_defer_npy_index_mmap: bool = False
    per_dataset_sequences_path: str | None = None
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    tokenizer_metadata: str | None = None
    vocab_size: int | None = None
    padded_vocab_size: int | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    tokenizer_special_tokens: tuple[str, ...] | None = None
    tokenizer_hf_use_fast: bool = False
    tokenizer_hf_no_use_fast: bool = False
    tokenizer_hf_include_special_tokens: bool = False
    tokenizer_hf_no_include_special_tokens: bool = False
    trust_remote_code: bool = False
    chat_template: str | None = None
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int | None = None
    use_gigatoken: bool = False
    legacy_tokenizer: bool = False
    mock_data: bool = False
    sft: bool = False
    fim_data: bool = False
    world_size: int | None = None
    is_completed: bool = False
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks that read different samples; None if the launcher's world size is unknown."""
        model = self.model_parallel_size
        return None if self.world_size is None or self.world_size % model else self.world_size // model

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on the same samples: tensor, pipeline and context parallel."""
        sizes = (
            self.tensor_model_parallel_size,
            self.pipeline_model_parallel_size,
            self.context_parallel_size,
        )
        product = 1
        for size in sizes:
            product *= size or 1
        return product

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sample."""
        return self.seq_length if self.seq_length is not None else self.encoder_seq_length

    @property
    def batch_size(self) -> int | None:
        """The global batch size in Megatron's sums of sizes; None if unknown.

        Without ``--global-batch-size``, and so always with a step schedule, it is one micro-batch for
        each data-parallel rank.
        """
        if self.global_batch_size is not None:
            return self.global_batch_size
        if self.micro_batch_size is None or self.data_parallel_size is None:
            return None
        return self.micro_batch_size * self.data_parallel_size

    def training_arguments(self) -> TrainingArguments:
        """Return the arguments that decide the sizes.

        Raises:
            UsageError: The batch size is unknown.
        """
        batch = self.batch_size
        if batch is None:
            raise UsageError(
                "the global batch size is required and cannot be derived from the launch command",
                hint="add --global-batch-size, or --micro-batch-size and the number of processes",
            )
        phases = (self.phase_transition_iterations or "").replace(" ", "")
        given = {
            "train_iters": self.train_iters or self._steps_of_schedule(),
            "train_samples": self.train_samples,
            # A finding says which versions do not start without it.
            "eval_interval": megatron_defaults.EVAL_INTERVAL
            if self.eval_interval is None
            else self.eval_interval,
            "eval_iters": self.eval_iters,
            "eval_global_batch_size": self.eval_global_batch_size,
            "start_eval_at_iter": self.start_eval_at_iter,
            "iteration": self.iteration,
        }
        return TrainingArguments(
            global_batch_size=batch,
            full_validation=self.full_validation,
            skip_train=self.skip_train,
            phase_transition_iterations=tuple(
                sorted(_whole("--phase-transition-iterations", step) for step in phases.split(",") if step)
            ),
            **{name: value for name, value in given.items() if value is not None},
        )

    def sizes(self, megatron: str | None = None) -> Sizes:
        """Return the samples that the job requests in each split.

        Args:
            megatron: The version of Megatron Core, if it is known.

        Raises:
            UsageError: A required argument is missing or out of range.
        """
        return training_sizes(self.training_arguments(), megatron)

    def _steps_of_schedule(self) -> int | None:
        if not self.train_samples:
            return None
        if self.step_batch_size_schedule is not None:
            return _steps(
                parse_step_schedule(self.step_batch_size_schedule, self.seq_length), self.train_samples
            )
        return None


def parse_step_schedule(text: str, sequence_length: int | None) -> list[tuple[int, int]]:
    """Return the pairs (first sample, batch size) of ``--step-batch-size-schedule``.

    Args:
        text: For example ``"0:768 250B:1536"``. Thresholds are tokens where a sequence length is given,
            else samples.
        sequence_length: Tokens of a sample, or None.

    Raises:
        UsageError: It is not a schedule.

    Example:
        >>> parse_step_schedule("0:16, 1M:32", 1000)
        [(0, 16), (1000, 32)]
    """
    pairs = []
    for entry in text.replace(",", " ").split():
        first, _, batch = entry.partition(":")
        try:
            pairs.append((_scaled(first) // (sequence_length or 1), _scaled(batch)))
        except ValueError:
            raise UsageError(
                f"--step-batch-size-schedule must be pairs such as 250B:1536, got {entry!r}"
            ) from None
    pairs.sort()
    if not pairs or pairs[0][0] != 0 or any(batch < 1 for _, batch in pairs):
        raise UsageError(f"--step-batch-size-schedule must begin with 0:SIZE, got {text!r}")
    return pairs


def _scaled(text: str) -> int:
    text = text.strip().upper()
    scale = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1] if scale > 1 else text) * scale)


def _steps(schedule: list[tuple[int, int]], samples: int) -> int:
    # The last step may be partial.
    consumed = steps = 0
    ends = [first for first, _ in schedule[1:]] + [samples]
    for end, (_, batch) in zip(ends, schedule, strict=True):
        more = max(0, -(-(min(end, samples) - consumed) // batch))
        consumed += more * batch
        steps += more
    return steps


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} must be an integer, got {text!r}") from None


def findings_of_arguments(launch: LaunchArguments, megatron: str | None = None) -> list[Finding]:
    """Return findings about arguments that Megatron refuses or treats unexpectedly.

    Args:
        launch: The arguments of the job.
        megatron: The version of Megatron Core, if it is known.

    Raises:
        UsageError: The version is not known.

    Example:
        >>> launch = LaunchArguments(seq_length=100, context_parallel_size=8, skip_train=True)
        >>> [finding.code for finding in findings_of_arguments(launch)]
        ['context-parallel', 'no-data']
    """
    validation = partial(_validation, megatron=None if megatron is None else known_version(megatron))
    rules = (_reading, _ranks, _batches, _schedules, validation, _sources, _split_string, _caches)
    return [finding for rule in rules for finding in rule(launch)]


def _reading(launch: LaunchArguments) -> Iterator[Finding]:
    for note in launch.notes:
        yield Finding("reading", "warning", note)
    if launch.unseen:
        yield Finding(
            "unknown-arguments",
            "note",
            f"not set in the text: {', '.join(launch.unseen)}; their arguments are not checked",
            "run `bash -x script` to print the expanded command",
        )


def _ranks(launch: LaunchArguments) -> Iterator[Finding]:
    length, context = launch.sequence_length, launch.context_parallel_size or 1
    if length is not None and context > 1 and length % (2 * context):
        yield Finding(
            "context-parallel",
            "error",
            f"the sequence length must be divisible by {2 * context} (2 x context parallel), got {length}",
            f"use a multiple of {2 * context}: each context-parallel rank reads two chunks of a sequence",
        )
    model, world = launch.model_parallel_size, launch.world_size
    if world is not None and world % model:
        yield Finding(
            "world-size",
            "error",
            f"the number of processes must be divisible by {model} (tensor x pipeline x context), "
            f"got {world}",
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
                f"the {name} must be divisible by {micro * ranks} ({micro} for each of {ranks} data-parallel "
                f"ranks), got {batch}",
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
                f"Megatron computes the size of the training data with {launch.batch_size} samples per step, "
                "fewer than the schedule's: training may run out of samples",
                "pass --train-samples instead of --train-iters",
            )
    if launch.rampup_batch_size is not None and not launch.train_iters:
        yield Finding(
            "schedule",
            "warning",
            "--rampup-batch-size is ignored from Megatron 0.18 on; up to 0.17 it adds steps, and so more "
            "samples of validation than are counted here",
            "pass --train-iters as the job prints it",
        )


def _validation(launch: LaunchArguments, megatron: str | None) -> Iterator[Finding]:
    if launch.eval_interval is not None or launch.full_validation or launch.skip_train:
        return
    default = megatron_defaults.EVAL_INTERVAL
    hint = f"add --eval-interval; the default up to 0.15 was {default}"
    if megatron is None:
        message = f"--eval-interval is missing: Megatron up to 0.15 uses {default}, later versions fail"
        yield Finding("eval-interval", "warning", message, hint)
    elif is_at_least(megatron, "0.16"):
        message = f"--eval-interval is missing: Megatron {megatron} has no default, and will not start"
        yield Finding("eval-interval", "error", message, hint)


def _sources(launch: LaunchArguments) -> Iterator[Finding]:
    for option, given in (("--mock-data", launch.mock_data), ("--sft", launch.sft)):
        if given:
            yield Finding("other-data", "note", f"with {option} the job reads no indexes and no cache")
    if launch.fim_data:
        yield Finding(
            "other-data",
            "warning",
            "with --fim-data the files are named after another class (GPTFIMDataset) than those listed here",
        )
    common = [launch.data_path, launch.data_args_path]
    separate = [launch.train_data_path, launch.valid_data_path, launch.test_data_path]
    kinds = [
        any(option is not None for option in common),
        any(option is not None for option in (*separate, launch.per_split_data_args_path)),
    ]
    if None not in common or all(kinds) or (kinds[1] and any(separate) and launch.per_split_data_args_path):
        yield Finding("no-single-source", "error", "several mutually exclusive data arguments are set")
    if not any(kinds) and not launch.mock_data and not launch.sft:
        yield Finding("no-data", "error", "no data argument is set", "add --data-path or --train-data-path")
    if kinds[1] and launch.split is not None:
        yield Finding(
            "split-excluded",
            "error",
            f"--split {launch.split!r} and data for each split exclude each other: Megatron will not start",
            "remove --split",
        )


def _split_string(launch: LaunchArguments) -> Iterator[Finding]:
    if launch.data_path is None and launch.data_args_path is None:
        return
    if launch.split is None and launch.data_path is None:
        yield Finding(
            "default-split",
            "error",
            "--split is missing: Megatron has a default only for --data-path, and will not start",
            f"add --split; the default would be {megatron_defaults.SPLIT!r}",
        )
        return
    if launch.split is None:
        yield Finding(
            "default-split",
            "warning",
            f"--split is missing, and the default {megatron_defaults.SPLIT!r} reserves 3.1% of the data for "
            "validation and test",
            "add --split 1,0,0 to train on all data, or other shares",
        )
        return
    try:
        parse_split(launch.split)
    except UsageError as error:
        yield Finding.of_error("split", error)


def _caches(launch: LaunchArguments) -> Iterator[Finding]:
    lazy = launch.dataloader_fast_cache_load or launch.dataloader_defer_npy_index_mmap
    if lazy and launch.data_cache_path is None:
        yield Finding("no-cache-path", "error", "fast and deferred cache loading require --data-cache-path")
    if lazy and (launch.data_path is not None or launch.data_args_path is not None):
        yield Finding(
            "fast-cache-load", "error", "fast and deferred cache loading require data for each split"
        )
    if launch.dataloader_type == "cyclic" and launch.no_data_sharding:
        yield Finding(
            "cyclic-sampler",
            "warning",
            "the cyclic sampler without data sharding can yield different numbers of batches per rank, and "
            "the ranks then diverge",
            "remove --no-data-sharding, or use a number of samples that is divisible by the ranks",
        )
