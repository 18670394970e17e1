"""Options of ``tokshard blend``, and the parameters of Megatron's dataset builder that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from tokshard.core.codec import Key
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED
from tokshard.gpt_index.sizes import Sizes
from tokshard.gpt_index.splits import DEFAULT_SPLIT, Split, parse_split

DEFAULT_SURPLUS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderConfig:
    """Parameters of Megatron's dataset builder that decide the bytes and names of what it builds.

    Attributes:
        sequence_length: The tokens of a sample.
        sizes: The samples asked for in each split; None for one epoch. The training size may be None,
            too, where the recipe says how many samples there are (tokens, epochs).
        tokenizer: The tokenizer's identifiers, which enter the hashes.
        split: The split string; not used where each split has sources of its own.
        seed: The seed of all shuffles.
        surplus: The samples built of each source beyond those that its weight asks for, as a fraction.
        extra_token: Whether each sample has one token more, so that every token has its next as label.
        drop_last_partial: Whether validation drops its last, incomplete sample.
        path_as: Pairs (path here, path at training time). The second replaces the first where it is the
            beginning of a prefix; the result enters the hashes.

    Raises:
        UsageError: A number is out of range, or the split string is invalid.
    """

    sequence_length: Annotated[int, Key("sequence_length", "Tokens of a sample.", minimum=1)]
    sizes: Annotated[Sizes, Key("sizes", "Samples asked for in each split; null for one epoch.")]
    tokenizer: Annotated[Any, Key("tokenizer", "Megatron's identifiers of the tokenizer.")]
    split: Annotated[str, Key("split", "Split string.")] = DEFAULT_SPLIT
    seed: Annotated[int, Key("seed", "Seed of all shuffles.", minimum=0)] = DEFAULT_SEED
    surplus: Annotated[
        float, Key("surplus", "Samples built beyond those asked for, as a fraction.", minimum=0)
    ] = DEFAULT_SURPLUS
    extra_token: Annotated[
        bool, Key("extra_token", "Whether each sample has one more token, the last label.")
    ] = True
    drop_last_partial: Annotated[
        bool, Key("drop_last_partial", "Whether validation drops its last, incomplete sample.")
    ] = True
    path_as: Annotated[
        tuple[tuple[str, str], ...], Key("path_as", "Pairs of a path here and at training time.")
    ] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.surplus < math.inf:
            raise UsageError(f"the surplus is {self.surplus:g}", hint="use a fraction such as 0.005")
        object.__setattr__(self, "surplus", float(self.surplus))  # an int would be another text in JSON
        self.shares  # noqa: B018 - raises for an invalid split string

    @property
    def shares(self) -> Split:
        """The shares of the splits."""
        return parse_split(self.split)

    def size_of(self, split_name: str) -> int | None:
        """Return the samples asked for in a split."""
        size: int | None = getattr(self.sizes, split_name)
        return size

    def training_path(self, prefix: str) -> str:
        """Return the prefix as the training run will name it, which enters the hashes.

        Example:
            >>> config = BuilderConfig(sequence_length=8, sizes=Sizes(1, 0, 0), tokenizer={},
            ...                        path_as=(("out", "/data/v1"),))
            >>> config.training_path("out/web"), config.training_path("output/web")
            ('/data/v1/web', 'output/web')
        """
        return PathMapping(self.path_as).map(prefix)
