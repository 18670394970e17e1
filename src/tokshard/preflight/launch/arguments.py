"""The arguments of a Megatron training job that decide what data it reads, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes, TrainingArguments, training_sizes

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """The arguments of a Megatron job that decide what data it reads, under Megatron's names.

    What is not given is None (or False for a switch). ``world_size`` is that of the launcher, where the
    command tells it; ``is_completed`` is set where Megatron has parsed the arguments and filled in what
    follows from others; ``notes`` are things about the reading that a user should know; ``unseen`` are
    the variables, such as ``$@``, in which there may be more arguments.
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
        """Ranks that read different samples; None where the launcher's world size is not known."""
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
        """The global batch size in Megatron's sums of sizes; None where it cannot be known.

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
            UsageError: The batch size is neither given nor to be found out.
        """
        batch = self.batch_size
        if batch is None:
            raise UsageError(
                "the global batch size is neither given nor to be found out from the launch command",
                hint="add --global-batch-size, or --micro-batch-size and the number of processes",
            )
        phases = (self.phase_transition_iterations or "").replace(" ", "")
        return TrainingArguments(
            global_batch_size=batch,
            train_iters=self.train_iters or self._steps_of_schedule(),
            train_samples=self.train_samples,
            eval_interval=1000 if self.eval_interval is None else self.eval_interval,
            eval_iters=100 if self.eval_iters is None else self.eval_iters,
            eval_global_batch_size=self.eval_global_batch_size,
            start_eval_at_iter=self.start_eval_at_iter,
            full_validation=self.full_validation,
            skip_train=self.skip_train,
            phase_transition_iterations=tuple(
                sorted(_whole("--phase-transition-iterations", one) for one in phases.split(",") if one)
            ),
            iteration=self.iteration or 0,
        )

    def sizes(self) -> Sizes:
        """Return the samples that the job asks for in each split.

        Raises:
            UsageError: An argument that the sums need is missing or out of range.
        """
        return training_sizes(self.training_arguments())

    def _steps_of_schedule(self) -> int | None:
        """Return the steps that a step schedule or a ramp-up takes for the samples of training."""
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
                f"--step-batch-size-schedule: {entry!r} is not a pair such as 250B:1536"
            ) from None
    pairs.sort()
    if not pairs or pairs[0][0] != 0 or any(batch < 1 for _, batch in pairs):
        raise UsageError(f"--step-batch-size-schedule {text!r} does not begin with 0:SIZE")
    return pairs


def _scaled(text: str) -> int:
    text = text.strip().upper()
    scale = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1] if scale > 1 else text) * scale)


def _steps(schedule: list[tuple[int, int]], samples: int) -> int:
    """Return the steps that a schedule takes for a number of samples; the last one may be partial."""
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
        raise UsageError(f"{option} is {text!r}, not a whole number") from None
