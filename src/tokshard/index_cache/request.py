"""What index is wanted: one split of one dataset, with everything that decides its bytes and its name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from tokshard.errors import UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED, check_seed
from tokshard.gpt_index.splits import SPLITS, Split
from tokshard.index_cache.description import GPTDatasetDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """One index to build or to find.

    Attributes:
        prefix: The path prefix of the dataset here.
        training_path: The path prefix as the training job will give it, which enters the hash.
        split_name: ``"train"``, ``"valid"`` or ``"test"``.
        split: The shares of all splits.
        num_samples: The samples asked for, or None for one epoch.
        sequence_length: Tokens of a sample, without the extra one.
        seed: Megatron's ``--seed``.
        tokenizer: The tokenizer's identifiers.
        extra_token: Megatron's ``add_extra_token_to_sequence``. It does not enter the hash.
        drop_last_partial: Megatron's ``drop_last_partial_validation_sequence``, which has a meaning for
            validation only. It does not enter the hash.

    Raises:
        UsageError: The split has no such name, or the seed cannot be one.
    """

    prefix: str
    training_path: str
    split_name: str
    split: Split
    num_samples: int | None
    sequence_length: int
    seed: int = DEFAULT_SEED
    tokenizer: dict[str, Any] | None
    extra_token: bool = True
    drop_last_partial: bool = True

    def __post_init__(self) -> None:
        if self.split_name not in SPLITS:
            raise UsageError(f"there is no split {self.split_name!r}", hint=f"use one of {', '.join(SPLITS)}")
        check_seed(self.seed)

    @property
    def is_built(self) -> bool:
        """Whether Megatron builds this split at all: one without a share is left out."""
        return self.split.matrix[SPLITS.index(self.split_name)] is not None

    @property
    def drops_last_partial(self) -> bool:
        """Whether tokens that do not fill a sample are dropped; only validation can keep them."""
        return self.drop_last_partial or self.split_name != "valid"

    def sequences(self, count: int) -> range | None:
        """Return which of a dataset's sequences belong to the split; None if it is not built."""
        return self.split.ranges(count)[SPLITS.index(self.split_name)]

    def description(self) -> GPTDatasetDescription:
        """Return what the name of the cache files depends on."""
        return GPTDatasetDescription(
            dataset_path=self.training_path,
            num_samples=self.num_samples,
            index_split=self.split_name,
            random_seed=self.seed,
            sequence_length=self.sequence_length,
            split=self.split.text,
            split_matrix=self.split.matrix_json(),
            tokenizer=self.tokenizer,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the request as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the request that :meth:`to_json` described."""
        return cls(**{**value, "split": Split.from_json(value["split"])})
