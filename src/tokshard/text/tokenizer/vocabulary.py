"""The tokens of a tokenizer, as they are known before its library is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

from tokshard.dataset.tokenizer_identity import TokenizerKind


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer, and how its files were read.

    Attributes:
        kind: The library that runs it.
        definition: The content that this library loads.
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
        digest: SHA-256 of the canonical form of the definition; None if the definition has only one form.
        setting: The setting because of which transformers read the files; None if transformers did not.
        transformers: The version of transformers that did.
        splits_special_tokens: Whether text that spells a special token is ordinary text by its settings.
    """

    kind: TokenizerKind
    definition: bytes = field(repr=False)
    ids: Mapping[str, int]
    added: Collection[str]
    size: int
    _: KW_ONLY
    declared_eod: str | None = None
    name: str | None = None
    prefix_ids: tuple[int, ...] | None = None
    suffix_ids: tuple[int, ...] | None = None
    unknown_id: int | None = None
    drops_characters: bool = False
    digest: str | None = None
    setting: str | None = None
    transformers: str | None = None
    splits_special_tokens: bool = False
