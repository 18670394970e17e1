"""The tokens of a tokenizer, as they are known before its library is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer.

    Attributes:
        ids: The id of each token.
        added: Tokens that are not from the model: the EOD token is searched among them first.
        size: Number of tokens; may exceed that of ``ids``, where pieces repeat.
        declared_eod: The EOD token that the tokenizer's files name.
        name: The encoding, for kinds whose file does not define the tokenizer alone; else None.
        prefix_ids: Ids before each text with ``--special-tokens`` (BOS); None if they are unknown.
        suffix_ids: The same after each text.
        unknown_id: Id of the token that stands for text outside the vocabulary; None if the vocabulary can
            represent every text, or has no such token.
        drops_characters: Whether the model drops characters outside the vocabulary.
    """

    ids: Mapping[str, int]
    added: Collection[str]
    size: int
    declared_eod: str | None = None
    name: str | None = None
    prefix_ids: tuple[int, ...] | None = None
    suffix_ids: tuple[int, ...] | None = None
    unknown_id: int | None = None
    drops_characters: bool = False
