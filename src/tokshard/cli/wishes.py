"""From the options of ``build-indices`` to one request for each index."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.index_cache.options import neutral_identifiers

if TYPE_CHECKING:
    from tokshard.blending.options import BuilderConfig
    from tokshard.gpt_index.splits import Split
    from tokshard.index_cache.description import JobSettings
    from tokshard.index_cache.request import IndexRequest

SizeOfSplit = Mapping[str, int | None]


class EpochSamples(NamedTuple):
    """How many training samples some epochs of a dataset have.

    Attributes:
        prefix: The dataset.
        sequence_length: Tokens of a sample.
        epochs: How many epochs.
        samples: How many samples they have.
    """

    prefix: str
    sequence_length: int
    epochs: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is wanted of some datasets: all combinations of sequence lengths and sizes.

    Attributes:
        prefixes: The datasets, as this machine names them.
        sequence_lengths: None given means that of ``like``.
        split: The split string, or None for that of ``like``, or Megatron's.
        seed: The seed, or None for that of ``like``, or Megatron's.
        extra_token: Megatron's ``add_extra_token_to_sequence``.
        drop_last_partial: Megatron's ``drop_last_partial_validation_sequence``.
        sizes: Samples of the splits.
        epochs: Sizes told as epochs of the training split.
        surplus: How much more is built, as a fraction.
        like: What an existing cache tells of its job, for all that the options do not say, or None.
        identifiers: The tokenizer's identifiers, or None for neutral ones.
        path_as: Pairs (path here, path at training time).

    Raises:
        UsageError: Something is missing, or cannot be meant.
    """

    prefixes: tuple[str, ...]
    sequence_lengths: tuple[int, ...]
    split: str | None
    seed: int | None
    extra_token: bool
    drop_last_partial: bool
    sizes: tuple[Sizes, ...]
    epochs: tuple[int, ...]
    surplus: float | None
    like: JobSettings | None
    identifiers: dict[str, Any] | None
    path_as: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.sequence_lengths and self.like is None:
            raise UsageError("the sequence length is not given", hint="for example --seq-length 4096")
        if not self.sizes and not self.epochs and not (self.like and self.like.num_samples):
            raise UsageError(
                "it is not said how many samples are wanted",
                hint="give --num-samples 10M,20k (none is one epoch), --epochs 1, or the arguments of the "
                "job: --train-iters, --global-batch-size, --eval-interval, --eval-iters",
            )
        if any(epochs < 1 for epochs in self.epochs):
            raise UsageError(f"--epochs is {min(self.epochs)}, but it cannot be less than 1")

    @property
    def uses_default_split(self) -> bool:
        """Whether nobody said how the data is split."""
        return self.split is None and self.like is None

    @property
    def unsized_splits(self) -> tuple[str, ...]:
        """The splits that the job of ``like`` has, and whose sizes nobody tells."""
        if self.like is None or self.like.split is None or self.sizes or self.epochs:
            return ()
        from tokshard.gpt_index.splits import SPLITS

        split = self._split("train")
        shares = zip(SPLITS, split.matrix, strict=True) if split else ()
        return tuple(name for name, share in shares if share and name not in self.like.num_samples)

    def requests(self) -> list[IndexRequest]:
        """Return one request for each index.

        Raises:
            UsageError: A number or the split string cannot be meant, or no index is wanted.
            InputError: A dataset that is needed to count epochs cannot be read.
        """
        requests = [
            request
            for prefix in self.prefixes
            for length in self._lengths()
            for size in self._sizes(prefix, length)
            for request in self._requests(prefix, length, size)
        ]
        if not any(request.is_built for request in requests):
            raise UsageError(
                "nothing is to be built: no split has a share, or the job of --like has data for each split",
                hint="give --split; or use tokshard blend with the job's --train-data-path and so on",
            )
        return requests

    def samples_of_epochs(self) -> list[EpochSamples]:
        """Return the training samples that each number of epochs means, of each dataset and length."""
        return [
            EpochSamples(prefix, length, epochs, self._train_samples(prefix, length, epochs))
            for prefix in self.prefixes
            for length in self._lengths()
            for epochs in self.epochs
        ]

    def _lengths(self) -> tuple[int, ...]:
        return self.sequence_lengths or ((self.like.sequence_length,) if self.like else ())

    def _requests(self, prefix: str, length: int, size: SizeOfSplit) -> Iterator[IndexRequest]:
        from tokshard.index_cache.request import IndexRequest

        config = self._config(prefix, length)
        for name, samples in size.items():
            split = self._split(name)
            if split is None:
                continue
            yield IndexRequest(
                prefix=prefix,
                training_path=config.training_path(prefix),
                split_name=name,
                split=split,
                num_samples=None if samples is None else math.ceil(samples * (1 + config.surplus)),
                sequence_length=length,
                seed=config.seed,
                tokenizer=config.tokenizer,
                extra_token=config.extra_token,
                drop_last_partial=config.drop_last_partial,
            )

    def _config(self, prefix: str, length: int) -> BuilderConfig:
        from tokshard.blending.options import BuilderConfig
        from tokshard.gpt_index.seed import DEFAULT_SEED

        default_seed = self.like.random_seed if self.like else DEFAULT_SEED
        return BuilderConfig(
            sequence_length=length,
            sizes=Sizes(None, None, None),
            tokenizer=self.identifiers if self.identifiers is not None else neutral_identifiers(prefix),
            seed=default_seed if self.seed is None else self.seed,
            surplus=self.surplus or 0.0,
            path_as=self.path_as,
            extra_token=self.extra_token,
            drop_last_partial=self.drop_last_partial,
        )

    def _split(self, name: str) -> Split | None:
        """Return how the data is split; None where the job has no such split of this data."""
        from tokshard.gpt_index.splits import DEFAULT_SPLIT, parse_split, whole_split

        if self.split is None and self.like is not None and self.like.split is None:
            return whole_split(name) if name in self.like.num_samples else None
        return parse_split(self.split or (self.like and self.like.split) or DEFAULT_SPLIT)

    def _sizes(self, prefix: str, length: int) -> Iterator[SizeOfSplit]:
        for sizes in self.sizes:
            yield {"train": sizes.train, "valid": sizes.valid, "test": sizes.test}
        for epochs in self.epochs:
            yield {"train": self._train_samples(prefix, length, epochs), "valid": 0, "test": 0}
        if self.like is not None and not self.sizes and not self.epochs:
            yield self.like.num_samples

    def _train_samples(self, prefix: str, length: int, epochs: int) -> int:
        from tokshard.dataset.reader import IndexedDataset
        from tokshard.gpt_index.epochs import plan_epochs

        lengths = IndexedDataset(prefix).sequence_lengths
        split = self._split("train")
        part = (split.ranges(len(lengths))[0] if split else None) or range(0)
        plan = plan_epochs(
            sequences=len(part),
            tokens_per_epoch=int(lengths[part.start : part.stop].sum(dtype="int64")),
            sequence_length=length,
            num_samples=None,
            extra_token=self.extra_token,
        )
        return plan.samples_of_epochs(epochs)
