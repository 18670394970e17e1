"""The parameters of Megatron's dataset builder that decide the bytes and names of what it builds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED
from tokshard.gpt_index.sizes import Sizes
from tokshard.gpt_index.splits import DEFAULT_SPLIT, Split, parse_split

DEFAULT_SURPLUS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderConfig:
    """What a training run tells Megatron's builder, beside the blend itself.

    Attributes:
        sequence_length: The tokens of a sample.
        sizes: The samples asked for in each split; None for one epoch. The training size may be None,
            too, where the recipe says how many samples there are (tokens, epochs).
        split: The shares of the splits; not used where each split has sources of its own.
        tokenizer: The tokenizer's identifiers, which enter the hashes.
        seed: The seed of all shuffles.
        surplus: How much more is built of each source than its weight asks for, as a fraction.
        old_sizes: Whether sizes are those of Megatron Core up to 0.12: ``ceil(size * weight * 1.005)``
            for the sources and for the blend, whatever the surplus.
        path_as: Pairs (path here, path at training time). The second replaces the first where it is the
            beginning of a prefix; what comes out enters the hashes.
        extra_token: Whether each sample has one token more, so that every token has its next as label.
        drop_last_partial: Whether validation drops its last, incomplete sample.

    Raises:
        UsageError: The surplus is negative or no number.
    """

    sequence_length: int
    sizes: Sizes
    tokenizer: dict[str, Any]
    split: Split = field(default_factory=lambda: parse_split(DEFAULT_SPLIT))
    seed: int = DEFAULT_SEED
    surplus: float = DEFAULT_SURPLUS
    old_sizes: bool = False
    path_as: tuple[tuple[str, str], ...] = ()
    extra_token: bool = True
    drop_last_partial: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.surplus < math.inf:
            raise UsageError(f"the surplus is {self.surplus:g}", hint="use a fraction such as 0.005")

    def size_of(self, split_name: str) -> int | None:
        """Return the samples asked for in a split."""
        size: int | None = getattr(self.sizes, split_name)
        return size

    def training_path(self, prefix: str) -> str:
        """Return the prefix as the training run will name it, which enters the hashes.

        Example:
            >>> from tokshard.gpt_index.seed import DEFAULT_SEED
        from tokshard.gpt_index.sizes import Sizes
            >>> config = BuilderConfig(sequence_length=8, sizes=Sizes(1, 0, 0), tokenizer={},
            ...                        path_as=(("out", "/data/v1"),))
            >>> config.training_path("out/web"), config.training_path("output/web")
            ('/data/v1/web', 'output/web')
        """
        return PathMapping(self.path_as).map(prefix)
