"""Requests that plans are made from: options with a schedule of the global batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokshard.core import megatron_defaults
from tokshard.core.codec import INTEGER_LIMIT
from tokshard.errors import UsageError
from tokshard.ranks.schedule import BatchSchedule

DEFAULT_BLOCK, DEFAULT_WINDOW = 256, 4096
"""Samples of a block of the shuffle ``windows``, and blocks of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """Request for one stream.

    Attributes:
        mode: One of :data:`~tokshard.ranks.plan.MODES`.
        tail: ``"drop"`` or ``"pad"``.
        shuffle: One of :data:`~tokshard.ranks.plan.SHUFFLES`.
        seed: The seed of shuffles and bucketing; mode ``cyclic`` has none, as in Megatron.
        block: The samples of a block of the shuffle ``windows``.
        window: The blocks of a window of the shuffle ``windows``; None for the default.
        per_epoch: Whether each epoch is shuffled differently.
        sharded: In mode ``cyclic``, whether each rank has its own block of the samples.
        equal_counts: In mode ``cyclic`` without sharding, whether to cut a ragged end, where Megatron's
            ranks would take different numbers of batches, instead of refusing it.
        micro_batch_size: The samples of a micro-batch of one rank.
        schedule: The global batch size over time; None for one micro-batch of each rank.
        steps: The number of steps; None for all that the samples fill.
        epochs: How often everything is read; None for once, or in mode ``cyclic`` with ``steps`` as often
            as they need.
        consumed_samples: What all ranks had read before step 0.
        bucket_buffer: The samples of a bucketing window; None for no bucketing.
        bucket_pack: How many similar samples come together; None for one micro-batch of each rank.
        sort_key: What bucketing sorts by; None for the source's first one.
        boundaries: See :class:`~tokshard.ranks.plan.Stream`.

    Raises:
        UsageError: A number is out of range, or options exclude each other.
    """

    mode: str = "single"
    tail: str = "drop"
    shuffle: str = "none"
    seed: int = megatron_defaults.SEED
    block: int = DEFAULT_BLOCK
    window: int | None = None
    per_epoch: bool = False
    sharded: bool = True
    equal_counts: bool = False
    micro_batch_size: int = 1
    schedule: BatchSchedule | None = None
    steps: int | None = None
    epochs: int | None = None
    consumed_samples: int = 0
    bucket_buffer: int | None = None
    bucket_pack: int | None = None
    sort_key: str | None = None
    boundaries: bool = False

    def __post_init__(self) -> None:
        check_numbers(
            self,
            1,
            *("steps", "epochs", "block", "window", "micro_batch_size", "bucket_buffer", "bucket_pack"),
        )
        check_numbers(self, 0, "seed", "consumed_samples")
        if self.bucket_buffer is None and (self.bucket_pack, self.sort_key) != (None, None):
            raise UsageError(
                "bucketing requires --bucket-buffer, the number of samples sorted at a time",
                hint="pass --bucket-buffer",
            )
        if self.window is not None and self.shuffle != "windows":
            raise UsageError(
                f"--shuffle-window requires --shuffle windows, got --shuffle {self.shuffle}",
                hint="leave out --shuffle-window, or pass --shuffle windows",
            )
        if self.mode == "cyclic" and self.shuffle != "none":
            raise UsageError(
                f"mode cyclic has its own order and excludes --shuffle {self.shuffle}",
                hint="pass --mode single --shuffle samples for a seeded random order",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Request for a new plan.

    Attributes:
        train: How training is read. Validation and testing follow it in mode, tail, micro batch size and
            boundaries; they are read once, in the order of their ids or the mode's own, with a constant
            batch size.
        eval_global_batch_size: The samples of a step of validation and testing; None for the last one of
            training.
        eval_micro_batch_size: The samples of a micro-batch there; None for that of training.
        full_validation: Whether every rank reads its share of validation sample by sample, all of it:
            Megatron's ``--full-validation`` since 0.18.
        consumed_valid_samples: What all ranks had read of each validation set before, in their order; one
            number counts for all sets.

    Raises:
        UsageError: A number is out of range.
    """

    train: StreamRequest
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    full_validation: bool = False
    consumed_valid_samples: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, 1, "eval_global_batch_size", "eval_micro_batch_size")
        check_numbers(self, 0, "consumed_valid_samples")

    def of_stream(self, name: str, names: Sequence[str], ranks: int) -> StreamRequest:
        """Return how one of several streams is read.

        Args:
            name: The stream.
            names: All streams.
            ranks: The data-parallel size.

        Raises:
            UsageError: There are more or fewer counts of consumed samples than validation sets.
        """
        train = self.train
        if name == "train":
            return train
        consumed = consumed_valid_samples(name, names, self.consumed_valid_samples) or 0
        if self.full_validation and name != "test":
            return StreamRequest(
                mode="full-validation",
                schedule=BatchSchedule.constant(ranks),
                consumed_samples=consumed,
                boundaries=train.boundaries,
            )
        size = self.eval_global_batch_size
        if size is None and train.schedule is not None:
            size = train.schedule.segments[-1][1]
        return StreamRequest(
            mode=train.mode,
            tail=train.tail,
            sharded=train.sharded,
            equal_counts=train.equal_counts,
            micro_batch_size=self.eval_micro_batch_size or train.micro_batch_size,
            schedule=None if size is None else BatchSchedule.constant(size),
            consumed_samples=consumed,
            boundaries=train.boundaries,
        )


def check_numbers(options: Any, minimum: int, *names: str) -> None:
    """Check that some options are at least ``minimum``, and numbers that a plan can store.

    Raises:
        UsageError: An option is out of range.
    """
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and number < minimum:
                raise UsageError(f"{name.replace('_', ' ')} must be at least {minimum}, got {number}")
            if number is not None and number >= INTEGER_LIMIT:  # the plan could not be read again
                raise UsageError(f"{name.replace('_', ' ')} must be less than 2**63, got {number}")


def consumed_valid_samples(name: str, names: Sequence[str], counts: Sequence[int]) -> int | None:
    """Return the consumed samples of a stream, given one count for all validation sets or one for each.

    Returns:
        None if it has no count.

    Raises:
        UsageError: There are more or fewer counts than validation sets.
    """
    sets = [stream for stream in names if stream.partition(".")[0] == "valid"]
    if len(counts) not in {0, 1, len(sets)}:
        raise UsageError(
            f"consumed validation samples must be 1 number, or one for each validation set ({len(sets)}), "
            f"got {len(counts)}",
            hint="pass one count for all sets, or one for each set in order",
        )
    if name not in sets or not counts:
        return None
    return counts[sets.index(name)] if len(counts) > 1 else counts[0]
