"""The numbers of an index, as products record them; :mod:`tokshard.samples.index.epochs` computes them."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.core.codec import Count, Positive, Record
from tokshard.samples.index.packing import PackedEpoch, Packing


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan(Record):
    """The numbers of an index, which determine its arrays together with lengths and a seed.

    Attributes:
        sequences: Sequences of the split.
        tokens_per_epoch: Tokens of one epoch.
        epochs: Number of epochs.
        sequence_length: Tokens of a sample, without the extra token.
        num_samples: Samples requested. Null for one epoch.
        extra_token: Whether each sample has one more token, so that every token has the next one as its
            label.
        drop_last_partial: Whether tokens that do not fill a sample are dropped. Otherwise they are a padded
            sample.
        samples: Samples of all epochs, usually more than requested.
        separate_final_epoch: Whether the last epoch is shuffled separately, after all others.
        samples_before_final: Samples that end before the last epoch. 0 for one epoch.
        packed: Numbers of an epoch of packed samples. Absent for concatenated documents.
    """

    sequences: Count
    tokens_per_epoch: Count
    epochs: Count
    sequence_length: Positive
    num_samples: Count | None
    extra_token: bool
    drop_last_partial: bool
    samples: Count
    separate_final_epoch: bool
    samples_before_final: Count
    packed: PackedEpoch | None = None

    @property
    def tokens(self) -> int:
        """The tokens of all epochs."""
        return self.epochs * self.tokens_per_epoch

    @property
    def documents(self) -> int:
        """The entries of the document index; packed samples have one more, read only as the last label."""
        if self.packed is not None:
            return self.epochs * self.packed.documents + 1
        return self.epochs * self.sequences

    @property
    def packing(self) -> Packing | None:
        """The packing of its documents; None if they are concatenated."""
        return None if self.packed is None else self.packed.packing

    @property
    def sample_tokens(self) -> int:
        """The tokens of a sample, including the extra one."""
        return self.sequence_length + self.extra_token

    @property
    def has_padding(self) -> bool:
        """True if samples may have fewer tokens than the others."""
        return self.packed is not None or not self.drop_last_partial

    @property
    def exact_samples(self) -> int:
        """The number of samples in exact arithmetic.

        It differs from ``samples`` if the partial sample is kept and the single precision of Megatron's
        sum loses one or adds samples of nothing but padding.
        """
        if self.packed is not None:
            return self.samples
        usable = self.tokens - self.extra_token
        return (
            usable // self.sequence_length if self.drop_last_partial else -(-usable // self.sequence_length)
        )

    def samples_of_epochs(self, epochs: int) -> int:
        """Return the number of whole samples in a number of epochs.

        Example:
            >>> from tokshard.samples.index.epochs import plan_epochs
            >>> plan = plan_epochs(sequences=4, tokens_per_epoch=100, sequence_length=8, num_samples=None)
            >>> plan.samples_of_epochs(1), plan.samples_of_epochs(2)
            (12, 24)
        """
        if self.packed is not None:
            return epochs * self.packed.samples
        return (epochs * self.tokens_per_epoch - self.extra_token) // self.sequence_length

    def epochs_of(self, samples: int) -> float:
        """Return the epochs that the tokens of some samples are; for packed samples, the samples."""
        if self.packed is not None:
            return samples / self.packed.samples
        return samples * self.sequence_length / self.tokens_per_epoch
