"""Data arguments of a Megatron training job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace

from tokshard.checks.doctor.launch.unknown import NO_WORLD_SIZE, Unknown
from tokshard.core import megatron_rules
from tokshard.core.findings import Finding
from tokshard.core.formatting import shortened
from tokshard.errors import UsageError
from tokshard.ranks.schedule import MAX_SAMPLES, BatchSchedule
from tokshard.samples.index.sizes import Sizes, TrainingOptions

_EXPANSION = re.compile(r"[$`<*?\[{~]")


DATA_ARGUMENTS = (
    "data_path",
    "data_args_path",
    "train_data_path",
    "valid_data_path",
    "test_data_path",
    "per_split_data_args_path",
)
MODEL_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
NO_OPTIONS = frozenset({"unknown", "unseen", "problems", "world_size", "iteration", "is_completed"})
"""Attributes of :class:`LaunchArguments` that no option of Megatron sets."""


def option_of(name: str) -> str:
    """Return the option that sets an argument."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """The data arguments of a Megatron job, with Megatron's names.

    Absent arguments and those with an unknown value are None, or False for a switch. ``world_size`` is the
    number of processes of the launcher; ``is_completed`` is set if Megatron has parsed the arguments and
    filled in derived ones.

    Attributes:
        unknown: The names of the arguments with an unknown value, and the expansions in it, as written.
        unseen: Expansions, such as ``$@``, that may contain more arguments.
        problems: Findings about the text.
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
    decrease_batch_size_if_needed: bool = False
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
    dataloader_inter_document_masking: bool = False
    reset_attention_mask: bool = False
    reset_position_ids: bool = False
    eod_mask_loss: bool = False
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
    unknown: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()

    def unknown_value(self, *names: str) -> Unknown | None:
        """Return the first of these arguments whose value is unknown, or None."""
        for name, written in self.unknown:
            if name == "world_size" and name in names:
                return _unknown_world_size(written)
            if name in names:
                return _unknown_value(option_of(name), written)
        return None

    def hidden_arguments(self) -> Unknown | None:
        """Return the expansions that may contain more arguments, or None."""
        if not self.unseen:
            return None
        return Unknown.depending_on(self.unseen, f"{', '.join(self.unseen)} may contain more arguments")

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks that read different samples, or None if the world size is unknown."""
        model = self.model_parallel_size
        return None if self.world_size is None or self.world_size % model else self.world_size // model

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on the same samples: tensor, pipeline and context parallel."""
        return math.prod(getattr(self, name) or 1 for name in MODEL_SIZES)

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sample."""
        return self.seq_length if self.seq_length is not None else self.encoder_seq_length

    @property
    def batch_size(self) -> int | None:
        """The global batch size from which Megatron computes sizes, or None if unknown.

        Without ``--global-batch-size``, and therefore with a step schedule, it is one micro-batch for each
        data-parallel rank.
        """
        if self.global_batch_size is not None:
            return self.global_batch_size
        if self.micro_batch_size is None or self.data_parallel_size is None:
            return None
        if self.unknown_value("global_batch_size") is not None:
            return None
        return self.micro_batch_size * self.data_parallel_size

    def training(self) -> TrainingOptions:
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
        given = {field.name: getattr(self, field.name) for field in fields(TrainingOptions)}
        given["train_iters"] = self.train_iters or 0
        if not self.train_iters and self.train_samples and self.step_batch_size_schedule is not None:
            samples = min(self.train_samples, MAX_SAMPLES)
            timeline = self.step_schedule().timeline(1, stop=samples)
            given["train_iters"] = int(timeline.step_of(samples - 1)) + 1  # The last one may be partial.
        if self.eval_interval is None:  # A finding names the versions that require it.
            given["eval_interval"] = megatron_rules.EVAL_INTERVAL
        return TrainingOptions(**given | {"global_batch_size": batch})

    def sizes(self, megatron: str | None = None) -> Sizes:
        """Return the samples that the job requests in each split.

        Args:
            megatron: The version of Megatron Core, if it is known.

        Raises:
            UsageError: A required argument is missing or out of range.
        """
        words = (self.phase_transition_iterations or "").replace(" ", "").split(",")
        phases = sorted(_integer("--phase-transition-iterations", word) for word in words if word)
        return self.training().sizes(megatron, phases=phases, iteration=self.iteration or 0)

    def step_schedule(self) -> BatchSchedule:
        """Return the schedule of ``--step-batch-size-schedule``.

        Raises:
            UsageError: The schedule is absent or invalid.
        """
        return BatchSchedule.parse(self.step_batch_size_schedule or "", self.seq_length or None)


def _kind(annotation: str) -> str:
    return "list" if annotation.startswith("tuple") else annotation.partition(" |")[0]


KINDS = {
    argument.name: _kind(str(argument.type))
    for argument in fields(LaunchArguments)
    if argument.name not in NO_OPTIONS
}
"""The arguments that options set, and the kinds of their values: bool, int, float, str or list."""


def _unknown_world_size(expansion: str) -> Unknown:
    written = shortened(expansion)
    if written.isalpha():
        reason = f"the number of processes depends on the configuration of {written}"
        return replace(NO_WORLD_SIZE, reason=reason)
    reason = f"the number of processes depends on {written}"
    if written.startswith("--"):
        return Unknown(reason, "pass the launch command with numbers for --nnodes and --nproc-per-node")
    unknown = Unknown.depending_on([written], reason)
    is_expansion = unknown.variables or unknown.has_parameters
    return unknown if is_expansion else replace(NO_WORLD_SIZE, reason=reason)


def _unknown_value(option: str, written: str) -> Unknown:
    if not written:
        return Unknown(f"{option} has no value", "add the value")
    if written.startswith("--"):
        return Unknown(f"{option} is absent, but {written} may be a typing mistake of it", f"write {option}")
    if not _EXPANSION.search(written):
        return Unknown(f"{option} has the invalid value {shortened(repr(written))}", "correct the value")
    return Unknown.depending_on([written], f"{option} depends on {written}")


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} must be an integer, got {text!r}") from None
