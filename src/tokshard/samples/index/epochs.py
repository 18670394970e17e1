"""Epochs needed for a number of samples, and the number of samples in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokshard.errors import InputError, UsageError
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.packing import PackedEpoch

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

# Megatron shuffles the last epoch separately if less than this share of its samples is requested.
SEPARATE_FINAL_EPOCH_SHARE = 0.80


@dataclass(frozen=True, slots=True)
class SplitSize:
    """The size of one epoch of a split.

    Attributes:
        sequences: The number of sequences.
        tokens: Their tokens.
        packed: The numbers of its packed samples; None for concatenated documents.
    """

    sequences: int
    tokens: int
    packed: PackedEpoch | None = None


def plan_epochs(
    *,
    sequences: int,
    tokens_per_epoch: int,
    sequence_length: int,
    num_samples: int | None,
    extra_token: bool = True,
    drop_last_partial: bool = True,
    packed: PackedEpoch | None = None,
) -> EpochPlan:
    """Return the smallest number of epochs with enough samples, and the numbers that follow from it.

    Args:
        sequences: The sequences of the split.
        tokens_per_epoch: The total number of tokens of these sequences.
        sequence_length: The tokens of a sample, without the extra one.
        num_samples: The samples requested; None or 0 for one epoch.
        extra_token: Megatron's ``add_extra_token_to_sequence``.
        drop_last_partial: False keeps the partial last sample, which Megatron can do for validation.
        packed: The numbers of an epoch of packed samples; None for concatenated documents. All packed
            samples are kept.

    Raises:
        UsageError: An argument is out of range, or one epoch is requested and has not a single sample.
        InputError: The split has no sequence or no token (Megatron would loop forever), or it is larger than
            the index can address.

    Example:
        >>> plan = plan_epochs(sequences=10, tokens_per_epoch=1000, sequence_length=64, num_samples=20)
        >>> plan.epochs, plan.samples, plan.separate_final_epoch
        (2, 31, True)
    """
    _check_arguments(sequence_length, num_samples, extra_token)
    _check_split(sequences, tokens_per_epoch)
    if packed is not None:
        return _plan_packed(sequences, tokens_per_epoch, sequence_length, num_samples, packed, extra_token)
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


def _plan_packed(
    sequences: int,
    tokens_per_epoch: int,
    sequence_length: int,
    num_samples: int | None,
    packed: PackedEpoch,
    extra_token: bool,  # noqa: FBT001 - a part of the arguments
) -> EpochPlan:
    epochs = max(1, -(-(num_samples or 0) // packed.samples))
    _check_limits(sequences, tokens_per_epoch, epochs)
    return EpochPlan(
        sequences=sequences,
        tokens_per_epoch=tokens_per_epoch,
        epochs=epochs,
        sequence_length=sequence_length,
        num_samples=num_samples,
        extra_token=extra_token,
        drop_last_partial=True,
        samples=epochs * packed.samples,
        separate_final_epoch=epochs > 1,
        samples_before_final=(epochs - 1) * packed.samples,
        packed=packed,
    )


def warnings_of(plan: EpochPlan) -> list[str]:
    """Return the warnings about a legal plan, one sentence each.

    Example:
        >>> warnings_of(plan_epochs(sequences=4, tokens_per_epoch=100, sequence_length=512, num_samples=1))
        ['one epoch has 100 tokens, fewer than a sample of 512: sequences repeat within samples']
    """
    found = []
    one_epoch = plan.tokens_per_epoch
    if plan.samples == 0:
        found.append(
            f"the split has no samples: one epoch has {one_epoch:,} tokens, and a sample needs "
            f"{plan.sample_tokens:,}"
        )
    elif one_epoch < plan.sequence_length and plan.epochs > 1 and plan.packed is None:
        found.append(
            f"one epoch has {one_epoch:,} tokens, fewer than a sample of {plan.sequence_length:,}: "
            "sequences repeat within samples"
        )
    if plan.samples != plan.exact_samples:
        found.append(
            f"the partial last sample is kept, and Megatron computes {plan.samples:,} samples in single "
            f"precision instead of {plan.exact_samples:,}; its deferred index loading computes "
            f"{_double_precision(plan):,} and would look for other files of a blend"
        )
    return found


def _single_precision(usable: int, sequence_length: int) -> int:
    # From int64: numpy would round a Python int twice, through float64.
    numerator, denominator = (np.int64(number).astype(np.float32) for number in (usable, sequence_length))
    return int(np.ceil(numerator / denominator))


def _double_precision(plan: EpochPlan) -> int:
    return int(np.ceil(float(plan.tokens - plan.extra_token) / plan.sequence_length))


def _check_arguments(sequence_length: int, num_samples: int | None, extra_token: bool) -> None:  # noqa: FBT001 - a part of the arguments
    if not 1 <= sequence_length <= MAX_INT32 - extra_token:
        raise UsageError(
            f"sequence_length must be from 1 to {MAX_INT32 - extra_token}, got {sequence_length}"
        )
    if num_samples is not None and num_samples < 0:
        raise UsageError(f"num_samples must be at least 0, or None for one epoch, got {num_samples}")


def _check_split(sequences: int, tokens_per_epoch: int) -> None:
    if sequences == 0:
        raise InputError(
            "the split has no sequences: its share of the dataset rounds to 0",
            hint="pass a larger share for the split in --split, or 0 to skip it",
        )
    if tokens_per_epoch == 0:
        raise InputError(
            f"the {sequences:,} sequences of the split have no tokens",
            hint="pass a larger share for the split in --split, or 0 to skip it",
        )


def _check_limits(sequences: int, tokens_per_epoch: int, epochs: int) -> None:
    if sequences > MAX_INT32:
        raise InputError(
            f"the split must have at most {MAX_INT32:,} sequences (the document index is int32), "
            f"got {sequences:,}",
            hint="divide the dataset into several, and blend them",
        )
    if epochs > MAX_INT32 or epochs * max(sequences, tokens_per_epoch) > MAX_INT64:
        raise InputError(
            f"{epochs:,} epochs of {tokens_per_epoch:,} tokens exceed the range of the index",
            hint="request fewer samples with --num-samples",
        )


def _check_samples(plan: EpochPlan) -> None:
    if plan.samples == 0 and plan.num_samples is None:
        raise UsageError(
            f"the split has no samples: one epoch has {plan.tokens_per_epoch:,} tokens, and a sample needs "
            f"{plan.sample_tokens:,}",
            hint="pass a smaller --seq-length or a larger share in --split, or add data",
        )
    if plan.separate_final_epoch and plan.samples < plan.samples_before_final:
        raise InputError(
            f"Megatron computes {plan.samples:,} samples in single precision, fewer than the "
            f"{plan.samples_before_final:,} before the last epoch, and would read outside its index",
            hint="drop the partial last sample of validation",
        )
