"""The recipe: everything besides the unit itself that determines a part's bytes, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from tokshard.dataset.plan import TokenizerIdentity

EngineName = Literal["reference", "fast"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How units become parts. It crosses processes and machines as JSON.

    Attributes:
        tokenizer: Local path of the tokenizer, or None for the built-in one.
        tokenizer_identity: The identity that the tokenizer at that path must have.
        special_tokens: Whether the tokenizer's post-processor applies (BOS and so on).
        eod_id: Id of the EOD token, or None.
        append_eod: Whether it is appended to documents.
        fields: The JSON fields or columns to encode.
        dtype: ``"uint16"`` or ``"int32"``.
        engine: The engine to use.
        fallback: Whether the reference may serve if the fast engine refuses the tokenizer.
        max_document_bytes: Longest record, in bytes.
        max_rejected: A unit stops after more rejected records than this; None for no limit.
        offsets: Whether parts hold the offset of each document.
    """

    tokenizer: str | None
    tokenizer_identity: TokenizerIdentity
    special_tokens: bool
    eod_id: int | None
    append_eod: bool
    fields: tuple[str, ...]
    dtype: str
    engine: EngineName
    fallback: bool
    max_document_bytes: int
    max_rejected: int | None
    offsets: bool

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the recipe that :meth:`to_json` wrote."""
        identity = TokenizerIdentity(**value["tokenizer_identity"])
        return cls(**{**value, "fields": tuple(value["fields"]), "tokenizer_identity": identity})
