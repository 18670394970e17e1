"""Number of samples that a training run requests, computed from Megatron's arguments.

The numbers enter the names of cache files: a run with another value of one of these arguments looks for
other files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tokshard.core import megatron_defaults
from tokshard.core.codec import Count, Record
from tokshard.core.megatron_versions import is_at_least, known_version
from tokshard.core.option_values import parse_count
from tokshard.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sizes(Record):
    """The samples requested in each split.

    0 is an ordinary size: a split of size 0 is built, with one epoch, if it has any sequences.

    Attributes:
        train: Training samples. Null for exactly one epoch.
        valid: Validation samples. Null for exactly one epoch.
        test: Test samples. Null for exactly one epoch.
    """

    train: Count | None
    valid: Count | None
    test: Count | None

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Return the sizes of a text: ``TRAIN[,VALID[,TEST]]``, each a count or ``none``.

        Raises:
            ValueError: It is not such a text.

        Example:
            >>> Sizes.parse("10M,2k"), Sizes.parse("none")
            (Sizes(train=10000000, valid=2000, test=0), Sizes(train=None, valid=0, test=0))
        """
        words = [word.strip() for word in text.split(",")]
        if len(words) > 3:
            raise ValueError(f"must be at most three sizes (train,valid,test), got {text!r}")
        if any(re.fullmatch("0[0-9]+", word) for word in words[1:]):
            raise ValueError(
                f"must be the sizes of the splits, got {text!r}; write 1000000 or 1M for a million"
            )
        sizes = [None if word.lower() == "none" else parse_count(word) for word in words]
        train, valid, test = [*sizes, 0, 0][:3]
        return cls(train, valid, test)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingArguments:
    """The arguments of a Megatron training run that determine its sizes, with Megatron's names.

    Attributes:
        global_batch_size: Samples per step; with ``step_batch_size_schedule`` (from 0.18) Megatron uses
            micro batch size times data-parallel size here.
        train_iters: Steps. If only ``train_samples`` is set, it is ``train_samples //
            global_batch_size``, as in Megatron with a constant batch size; with a schedule set both.
        train_samples: Samples; if set (and not 0), the size of the training split.
        eval_interval: Steps between two validations. It may be None with ``full_validation`` or
            ``skip_train``, and for Megatron 0.15, where it is 1000 by default.
        eval_iters: Steps of one validation, and of testing.
        eval_global_batch_size: Samples per validation step; None for ``global_batch_size``.
        start_eval_at_iter: The first step at which validation may run.
        full_validation: Whether validation is one epoch.
        skip_train: Whether the run only validates: once, not at intervals.
        phase_transition_iterations: Steps at which the run ends a phase and stops; the training size is
            that of the phase that contains ``iteration``.
        iteration: The step that the run (re)starts from.
    """

    global_batch_size: int
    train_iters: int | None = None
    train_samples: int | None = None
    eval_interval: int | None = None
    eval_iters: int = megatron_defaults.EVAL_ITERS
    eval_global_batch_size: int | None = None
    start_eval_at_iter: int | None = None
    full_validation: bool = False
    skip_train: bool = False
    phase_transition_iterations: tuple[int, ...] = ()
    iteration: int = 0


def training_sizes(arguments: TrainingArguments, megatron: str | None = None) -> Sizes:
    """Return the sizes that Megatron computes from these arguments.

    Args:
        arguments: The arguments of the job.
        megatron: The version of Megatron Core of the job; None for any from 0.16 on.

    Raises:
        UsageError: A required argument is missing or out of range.

    Example:
        >>> training_sizes(TrainingArguments(train_iters=100, global_batch_size=8, eval_interval=40,
        ...                                  eval_iters=2))
        Sizes(train=800, valid=48, test=16)
    """
    if megatron is not None and not is_at_least(known_version(megatron), "0.16"):
        arguments = _arguments_of_015(arguments)
    _check(arguments)
    batch = arguments.eval_global_batch_size or arguments.global_batch_size
    valid = None if arguments.full_validation else _validation_steps(arguments) * batch
    train = _phase_samples(arguments) if arguments.phase_transition_iterations else _train_samples(arguments)
    return Sizes(train=train, valid=valid, test=arguments.eval_iters * batch)


def _arguments_of_015(arguments: TrainingArguments) -> TrainingArguments:
    # It counts the validations of training with --skip-train, too.
    interval = arguments.eval_interval
    return replace(
        arguments,
        eval_interval=megatron_defaults.EVAL_INTERVAL if interval is None else interval,
        skip_train=False,
    )


def _check(arguments: TrainingArguments) -> None:
    if not arguments.train_iters and not arguments.train_samples:
        raise UsageError(
            "the number of training steps or samples is required",
            hint="pass --train-iters or --train-samples",
        )
    positive = ["global_batch_size", "eval_global_batch_size"]
    if not arguments.full_validation and not arguments.skip_train:
        positive.append("eval_interval")
        if arguments.eval_interval is None:
            raise UsageError(
                "the validation interval is required",
                hint="pass the job's --eval-interval "
                f"({megatron_defaults.EVAL_INTERVAL} is the default of Megatron 0.15)",
            )
    natural = ["train_iters", "train_samples", "eval_iters", "start_eval_at_iter", "iteration"]
    for name in positive + natural:
        value, least = getattr(arguments, name), int(name in positive)
        if value is not None and value < least:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} must be at least {least}, got {value}")


def _train_samples(arguments: TrainingArguments) -> int:
    return arguments.train_samples or (arguments.train_iters or 0) * arguments.global_batch_size


def _validation_steps(arguments: TrainingArguments) -> int:
    if arguments.skip_train:
        return arguments.eval_iters
    steps = arguments.train_iters or _train_samples(arguments) // arguments.global_batch_size
    interval = arguments.eval_interval or 1
    points = steps // interval + 1 - (arguments.start_eval_at_iter or 0) // interval
    return max(0, points) * arguments.eval_iters


def _phase_samples(arguments: TrainingArguments) -> int:
    # Megatron's phases are counted in samples of the full batch size and end with ``train_samples``,
    # without which it fails here with a comparison to None.
    if not arguments.train_samples:
        raise UsageError(
            "--phase-transition-iterations requires the number of training samples",
            hint="pass --train-samples",
        )
    batch = arguments.global_batch_size
    borders = [0, *(step * batch for step in arguments.phase_transition_iterations), arguments.train_samples]
    now = arguments.iteration * batch
    later = [border for border in borders if border > now]
    if not later:
        raise UsageError(
            f"training would start at sample {now:,}, after its last ({arguments.train_samples:,})",
            hint="pass the --iteration that the run starts from, or a larger --train-samples",
        )
    return min(later) - max(border for border in borders if border <= now)
