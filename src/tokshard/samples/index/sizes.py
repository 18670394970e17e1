"""Number of samples that a training run requests, computed from Megatron's arguments.

The numbers enter the names of cache files: a run with another value of one of these arguments looks for
other files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tokshard.core import megatron_rules
from tokshard.core.codec import Bounds, Count, Positive, Record
from tokshard.core.megatron_rules import is_at_least, known_version
from tokshard.core.options import Option, Options, declared_options, parse_count
from tokshard.errors import UsageError

MAX_SURPLUS = 1_000_000
MAX_EPOCHS = 2**31 - 1
"""The largest number of epochs of an index."""

Surplus = Annotated[float, Bounds(0, MAX_SURPLUS)]
"""Samples of an index beyond those that are requested, as a fraction of these."""

_TRAINING = "Number of samples, from the arguments of a Megatron job"
_LENGTHS = ("train_iters", "train_samples")


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
        try:
            return cls(*[*sizes, 0, 0][:3])
        except UsageError as error:
            raise ValueError(f"has an invalid size: {error}") from None


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """Arguments of a Megatron job that decide its sizes, as far as they are given.

    With ``train_samples`` alone there are ``train_samples // global_batch_size`` steps, as in Megatron with a
    constant batch size; with ``--step-batch-size-schedule`` pass ``train_iters`` also.

    Raises:
        UsageError: The number of steps or samples, or the batch size, is missing, or a value is out of range.

    Example:
        >>> TrainingOptions(train_iters=100, global_batch_size=8, eval_interval=40, eval_iters=2).sizes()
        Sizes(train=800, valid=48, test=16)
        >>> TrainingOptions(train_iters=50, global_batch_size=8, skip_train=True).words()
        ['--train-iters', '50', '--global-batch-size', '8', '--skip-train']
    """

    train_iters: Annotated[
        Count | None, Option("Train for N steps.", group=_TRAINING, requires="global_batch_size")
    ] = None
    train_samples: Annotated[
        Count | None,
        Option(
            "Train on N samples, instead of --train-iters.", group=_TRAINING, requires="global_batch_size"
        ),
    ] = None
    global_batch_size: Annotated[
        Positive | None,
        Option("Read N samples in each training step.", group=_TRAINING, requires=_LENGTHS),
    ] = None
    eval_interval: Annotated[
        Count | None,
        Option(
            "Validate every N steps.",
            default=f"{megatron_rules.EVAL_INTERVAL} with --megatron 0.15, else required",
            group=_TRAINING,
            requires=_LENGTHS,
        ),
    ] = None
    eval_iters: Annotated[
        Count | None,
        Option(
            "Read N steps in each validation.",
            default=str(megatron_rules.EVAL_ITERS),
            group=_TRAINING,
            requires=_LENGTHS,
        ),
    ] = None
    eval_global_batch_size: Annotated[
        Positive | None,
        Option(
            "Read N samples in each validation step.",
            default="as --global-batch-size",
            group=_TRAINING,
            is_rare=True,
            requires=_LENGTHS,
        ),
    ] = None
    start_eval_at_iter: Annotated[
        Count | None,
        Option("Do not validate before step N.", group=_TRAINING, is_rare=True, requires=_LENGTHS),
    ] = None
    full_validation: Annotated[
        bool, Option("Validate on exactly one epoch.", group=_TRAINING, is_rare=True, requires=_LENGTHS)
    ] = False
    skip_train: Annotated[
        bool,
        Option(
            "Size the data for a job that only validates.", group=_TRAINING, is_rare=True, requires=_LENGTHS
        ),
    ] = False

    def words(self) -> list[str]:
        """Return the arguments, as words of a launch command; without ``full_validation``."""
        given = [name for name in declared_options(TrainingOptions) if self.is_given(name)]
        return [
            word
            for name in given
            if name != "full_validation"
            for word in declared_options(TrainingOptions)[name].words(getattr(self, name))
        ]

    def sizes(self, megatron: str | None = None, *, phases: Sequence[int] = (), iteration: int = 0) -> Sizes:
        """Return the sizes that Megatron computes from these arguments.

        Args:
            megatron: The version of Megatron Core of the job; None for any from 0.16 on.
            phases: ``--phase-transition-iterations``: steps at which the run ends a phase and stops. The
                training size is that of the phase that contains ``iteration``.
            iteration: The step that the run (re)starts from.

        Raises:
            UsageError: A required argument is missing or out of range.
        """
        batch = self.global_batch_size or 1
        eval_iters = megatron_rules.EVAL_ITERS if self.eval_iters is None else self.eval_iters
        if not self.train_iters and not self.train_samples:
            raise UsageError(
                "the number of training steps or samples is required",
                hint="pass --train-iters or --train-samples",
            )
        train = self._phase_samples(batch, phases, iteration) if phases else self._samples(batch)
        test = eval_iters * (self.eval_global_batch_size or batch)
        valid = None if self.full_validation else self._validations(megatron) * test
        try:
            return Sizes(train, valid, test)
        except UsageError as error:
            raise UsageError(f"the arguments of the job request too many samples: {error}") from None

    def _validations(self, megatron: str | None) -> int:
        """Return how often the job validates."""
        interval, skips_training = self.eval_interval, self.skip_train
        if megatron is not None and not is_at_least(known_version(megatron), "0.16"):
            # 0.15 also counts the validations of training with --skip-train.
            interval = megatron_rules.EVAL_INTERVAL if interval is None else interval
            skips_training = False
        if skips_training:
            return 1
        if interval is None:
            raise UsageError(
                "the validation interval is required",
                hint="pass the job's --eval-interval "
                f"({megatron_rules.EVAL_INTERVAL} is the default of Megatron 0.15)",
            )
        if interval < 1:
            raise UsageError(f"--eval-interval must be at least 1, got {interval}")
        batch = self.global_batch_size or 1
        steps = self.train_iters or self._samples(batch) // batch
        return max(0, steps // interval + 1 - (self.start_eval_at_iter or 0) // interval)

    def _samples(self, batch: int) -> int:
        return self.train_samples or (self.train_iters or 0) * batch

    def _phase_samples(self, batch: int, phases: Sequence[int], iteration: int) -> int:
        # Megatron's phases are counted in samples of the full batch size and end with ``train_samples``,
        # without which it fails here with a comparison to None.
        if not self.train_samples:
            raise UsageError(
                "--phase-transition-iterations requires the number of training samples",
                hint="pass --train-samples",
            )
        borders = [0, *(step * batch for step in phases), self.train_samples]
        now = iteration * batch
        later = [border for border in borders if border > now]
        if not later:
            raise UsageError(
                f"training would start at sample {now:,}, after its last ({self.train_samples:,})",
                hint="pass the --iteration that the run starts from, or a larger --train-samples",
            )
        return min(later) - max(border for border in borders if border <= now)
