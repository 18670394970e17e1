"""Epochs of a dataset that a number of samples needs, and the samples in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tokshard.core.codec import Key
from tokshard.errors import InputError, UsageError

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

# Megatron shuffles the last epoch by itself when fewer than this share of its samples is asked for.
SEPARATE_FINAL_EPOCH_SHARE = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """All numbers of a dataset's index; the arrays follow from these, the lengths and a seed.

    Attributes:
        extra_token: Whether a sample holds one more token, so that each token has the next as its label.
        drop_last_partial: Whether tokens that do not fill a sample are dropped; otherwise they make a
            sample that is padded.
        samples: The samples of all epochs, mostly more than were asked for.
        separate_final_epoch: Whether the last epoch is shuffled by itself, after all others.
    """

    sequences: Annotated[int, Key("sequences", "Sequences of the split.", minimum=0)]
    tokens_per_epoch: Annotated[int, Key("tokens_per_epoch", "Tokens of these sequences.", minimum=0)]
    epochs: Annotated[int, Key("epochs", "Times that each sequence is read.", minimum=0)]
    sequence_length: Annotated[
        int, Key("sequence_length", "Tokens of a sample, without the extra one.", minimum=1)
    ]
    num_samples: Annotated[
        int | None, Key("num_samples", "Samples asked for; null for one epoch.", minimum=0)
    ]
    extra_token: Annotated[bool, Key("extra_token", "Whether samples have one more token, the last label.")]
    drop_last_partial: Annotated[
        bool, Key("drop_last_partial", "Whether tokens that fill no sample are dropped.")
    ]
    samples: Annotated[int, Key("samples", "Samples of all epochs.", minimum=0)]
    separate_final_epoch: Annotated[
        bool, Key("separate_final_epoch", "Whether the last epoch is shuffled by itself.")
    ]
    samples_before_final: Annotated[
        int,
        Key("samples_before_final", "Samples that end before the last epoch; 0 for one epoch.", minimum=0),
    ]

    @property
    def tokens(self) -> int:
        """The tokens of all epochs."""
        return self.epochs * self.tokens_per_epoch

    @property
    def documents(self) -> int:
        """The entries of the document index."""
        return self.epochs * self.sequences

    @property
    def sample_tokens(self) -> int:
        """The tokens of a sample with its extra one."""
        return self.sequence_length + self.extra_token

    @property
    def exact_samples(self) -> int:
        """The samples as integers give them.

        It differs from ``samples`` where the partial sample is kept and the single precision of
        Megatron's sum loses one or adds some that hold nothing but padding.
        """
        usable = self.tokens - self.extra_token
        return (
            usable // self.sequence_length if self.drop_last_partial else -(-usable // self.sequence_length)
        )

    def samples_of_epochs(self, epochs: int) -> int:
        """Return the whole samples of a number of epochs.

        Example:
            >>> plan = plan_epochs(sequences=4, tokens_per_epoch=100, sequence_length=8, num_samples=None)
            >>> plan.samples_of_epochs(1), plan.samples_of_epochs(2)
            (12, 24)
        """
        return (epochs * self.tokens_per_epoch - self.extra_token) // self.sequence_length


def plan_epochs(
    *,
    sequences: int,
    tokens_per_epoch: int,
    sequence_length: int,
    num_samples: int | None,
    extra_token: bool = True,
    drop_last_partial: bool = True,
) -> EpochPlan:
    """Return the smallest number of epochs that gives the samples asked for, and what follows from it.

    Args:
        sequences: The sequences of the split.
        tokens_per_epoch: The tokens of these sequences together.
        sequence_length: The tokens of a sample, without the extra one.
        num_samples: The samples asked for; None for one epoch; 0 gives one epoch too.
        extra_token: Megatron's ``add_extra_token_to_sequence``.
        drop_last_partial: False keeps the last, partial sample, which Megatron can do for validation.

    Raises:
        UsageError: An argument is out of range, or one epoch was asked for and fills no sample.
        InputError: The split holds no sequence or no token, which would keep Megatron busy for ever, or
            it exceeds what the index can number.

    Example:
        >>> plan = plan_epochs(sequences=10, tokens_per_epoch=1000, sequence_length=64, num_samples=20)
        >>> plan.epochs, plan.samples, plan.separate_final_epoch
        (2, 31, True)
    """
    _check_arguments(sequence_length, num_samples, extra_token)
    _check_split(sequences, tokens_per_epoch)
    extra = int(extra_token)
    wanted = 0 if num_samples is None else num_samples * sequence_length + extra
    epochs = max(1, -(-wanted // tokens_per_epoch))
    _check_limits(sequences, tokens_per_epoch, epochs)
    before, separate = 0, False
    if num_samples is not None and epochs > 1:
        before = ((epochs - 1) * tokens_per_epoch - extra) // sequence_length
        whole_epoch = (tokens_per_epoch - extra) // sequence_length
        separate = num_samples - before < int(SEPARATE_FINAL_EPOCH_SHARE * whole_epoch)
    usable = epochs * tokens_per_epoch - extra
    samples = usable // sequence_length if drop_last_partial else _single_precision(usable, sequence_length)
    plan = EpochPlan(
        sequences=sequences,
        tokens_per_epoch=tokens_per_epoch,
        epochs=epochs,
        sequence_length=sequence_length,
        num_samples=num_samples,
        extra_token=extra_token,
        drop_last_partial=drop_last_partial,
        samples=samples,
        separate_final_epoch=separate,
        samples_before_final=before,
    )
    _check_samples(plan)
    return plan


def warnings_of(plan: EpochPlan) -> list[str]:
    """Return the warnings about a legal plan, one sentence each.

    Example:
        >>> warnings_of(plan_epochs(sequences=4, tokens_per_epoch=100, sequence_length=512, num_samples=1))
        ['one epoch has 100 tokens, less than a sample of 512: samples repeat sequences within themselves']
    """
    found = []
    one_epoch = plan.tokens_per_epoch
    if plan.samples == 0:
        found.append(
            f"the split has {one_epoch} tokens and gives no sample, "
            f"because a sample needs {plan.sample_tokens}"
        )
    elif one_epoch < plan.sequence_length and plan.epochs > 1:
        found.append(
            f"one epoch has {one_epoch} tokens, less than a sample of {plan.sequence_length}: "
            "samples repeat sequences within themselves"
        )
    if plan.samples != plan.exact_samples:
        found.append(
            f"the last partial sample is kept, and Megatron counts {plan.samples} samples in single "
            f"precision where there are {plan.exact_samples}; its deferred index loading counts "
            f"{_double_precision(plan)} and would look for other files of a blend"
        )
    return found


def _single_precision(usable: int, sequence_length: int) -> int:
    # From an int64 and not from a Python int, which numpy would round twice, by way of float64.
    numerator, denominator = (np.int64(number).astype(np.float32) for number in (usable, sequence_length))
    return int(np.ceil(numerator / denominator))


def _double_precision(plan: EpochPlan) -> int:
    return int(np.ceil(float(plan.tokens - plan.extra_token) / plan.sequence_length))


def _check_arguments(sequence_length: int, num_samples: int | None, extra_token: bool) -> None:  # noqa: FBT001 - a part of the arguments
    if not 1 <= sequence_length <= MAX_INT32 - extra_token:
        raise UsageError(
            f"the sequence length is {sequence_length}, but it must be from 1 to {MAX_INT32 - extra_token}"
        )
    if num_samples is not None and num_samples < 0:
        raise UsageError(f"{num_samples} samples were asked for", hint="ask for 0 or more, or for one epoch")


def _check_split(sequences: int, tokens_per_epoch: int) -> None:
    if sequences == 0:
        raise InputError(
            "the split holds no sequence: its share of the dataset rounds to nothing",
            hint="give it a larger share, or none at all (0) so that it is not built",
        )
    if tokens_per_epoch == 0:
        raise InputError(
            f"the {sequences} sequences of the split hold no token",
            hint="the share of the split falls on empty sequences: give it a larger one, or none at all (0)",
        )


def _check_limits(sequences: int, tokens_per_epoch: int, epochs: int) -> None:
    if sequences > MAX_INT32:
        raise InputError(
            f"the split holds {sequences} sequences, but the document index numbers them with int32, "
            f"up to {MAX_INT32}",
            hint="cut the dataset in several, and blend them",
        )
    if epochs > MAX_INT32 or epochs * max(sequences, tokens_per_epoch) > MAX_INT64:
        raise InputError(
            f"{epochs} epochs of {tokens_per_epoch} tokens would be needed, more than an index can number",
            hint="ask for fewer samples",
        )


def _check_samples(plan: EpochPlan) -> None:
    if plan.samples == 0 and plan.num_samples is None:
        raise UsageError(
            f"one epoch of the split has {plan.tokens_per_epoch} tokens and gives no sample: "
            f"a sample needs {plan.sample_tokens}",
            hint="use a shorter sequence length, a larger share, or ask for a number of samples",
        )
    if plan.separate_final_epoch and plan.samples < plan.samples_before_final:
        raise InputError(
            f"Megatron counts {plan.samples} samples in single precision, fewer than the "
            f"{plan.samples_before_final} before the last epoch, and would read outside its index",
            hint="drop the last partial sample of validation",
        )
