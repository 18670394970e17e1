"""The identity of a tokenizer, as every product records it, and its comparison.

Data of two tokenizers must not meet in one job: equal ids mean different text. The identity is that of the
tokenizer's definition (vocabulary, merges, added tokens, normalizer, pre-tokenizer, post-processor, and what
files beside it change), not of file bytes: a file that was saved again has the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tokshard.core.codec import Bounds, Count, Record, Sha256

TokenizerKind = Literal["bytes", "huggingface", "tiktoken", "sentencepiece", "null"]


@dataclass(frozen=True, slots=True)
class TokenizerIdentity(Record):
    """The identity of a tokenizer, independent of the location and form of its files.

    Attributes:
        kind: Library that runs the tokenizer.
        name: Name of the encoding. Null if the files alone define the tokenizer.
        sha256: SHA-256 of the tokenizer's file. Absent if ``definition_sha256`` is present.
        vocab_size: Number of tokens, added tokens included.
        max_token_id: Largest token id. -1 if there are no tokens.
        eod_id: Id of the EOD token. Null if there is none.
        eod_token: Text of the EOD token. Null if there is none.
        definition_sha256: SHA-256 of the tokenizer's definition: vocabulary, merges, added tokens and rules.
            A file that was saved again has the same. Absent in files of versions that did not record it.
        prefix_ids: Ids that ``--special-tokens`` adds before each text. Absent if they are unknown.
        suffix_ids: Ids that ``--special-tokens`` adds after each text. Absent if they are unknown.
        transformers: Version of transformers that read the tokenizer's directory. Absent if it was not
            needed.
        special_tokens_in_text: Treatment of text that spells a special token: ``split`` into ordinary
            tokens. Absent if the tokenizer's library decides.
    """

    kind: TokenizerKind
    name: str | None
    sha256: Sha256 | None = field(default=None, kw_only=True)
    vocab_size: Count
    max_token_id: Annotated[int, Bounds(-1)]
    eod_id: Count | None
    eod_token: str | None
    definition_sha256: Sha256 | None = None
    prefix_ids: tuple[int, ...] | None = None
    suffix_ids: tuple[int, ...] | None = None
    transformers: str | None = None
    special_tokens_in_text: Literal["split"] | None = None

    @property
    def template_ids(self) -> tuple[int, ...]:
        """All ids that ``--special-tokens`` adds to each text; empty if they are not known."""
        return (*(self.prefix_ids or ()), *(self.suffix_ids or ()))

    @property
    def digest(self) -> str:
        """The digest that names it in reports."""
        return self.definition_sha256 or self.sha256 or ""


def tokenizer_name(identity: TokenizerIdentity | None) -> str:
    """Return a short name: the kind, the name if there is one, and the beginning of the digest.

    The identity is None for datasets whose tokenizer is unknown or that were merged from several.
    """
    from tokshard.core.formatting import visible  # the loader needs no words

    if identity is None:
        return "unknown or mixed"
    parts = (identity.kind, identity.name, identity.digest[:12])
    return visible(" ".join(str(part) for part in parts if part))


Verdict = Literal["same", "different", "not-checked"]


@dataclass(frozen=True, slots=True)
class TokenizerComparison:
    """The comparison of two tokenizers.

    Attributes:
        verdict: ``"not-checked"`` if an identity is unknown, or if their definitions cannot be compared
            (two libraries, or digests of different versions of tokshard) and nothing else differs.
        details: What differs, or why nothing could be compared; phrases for a message.
    """

    verdict: Verdict
    details: tuple[str, ...] = ()


def compare(first: TokenizerIdentity | None, second: TokenizerIdentity | None) -> TokenizerComparison:
    """Compare two tokenizers.

    Example:
        >>> one = TokenizerIdentity("bytes", None, 257, 256, 256, "<|endoftext|>", "0" * 64)
        >>> compare(one, one).verdict, compare(one, None).verdict
        ('same', 'not-checked')
    """
    if first is None or second is None:
        return TokenizerComparison("not-checked", ("the tokenizer is unknown",))
    properties = [("EOD ids", first.eod_id, second.eod_id)]
    # A run that appends no EOD token needs none.
    properties = [] if None in properties[0] else properties
    equal = _equal_definitions(first, second)
    if not equal:
        sizes = ("vocabulary sizes", first.vocab_size, second.vocab_size)
        properties = [sizes, ("largest ids", first.max_token_id, second.max_token_id), *properties]
    details = [f"{what} {was} and {now}" for what, was, now in properties if was != now]
    if equal is False:
        details.insert(0, f"definitions {first.digest[:12]} and {second.digest[:12]}")
    if details:
        return TokenizerComparison("different", tuple(details))
    if equal:
        return TokenizerComparison("same")
    if first.kind != second.kind:
        reason = f"definitions of {first.kind} and {second.kind} tokenizers cannot be compared"
    else:
        reason = "an older version of tokshard recorded another digest"
    return TokenizerComparison("not-checked", (reason,))


def _equal_definitions(first: TokenizerIdentity, second: TokenizerIdentity) -> bool | None:
    if first.kind != second.kind:
        return None
    if first.sha256 is not None and first.sha256 == second.sha256:
        return True
    if first.definition_sha256 is None or second.definition_sha256 is None:
        return None
    return first.definition_sha256 == second.definition_sha256


def compare_definitions(
    first: TokenizerIdentity | None, second: TokenizerIdentity | None
) -> TokenizerComparison:
    """Compare two tokenizers without their EOD tokens, for uses in which documents do not end."""
    if first is not None and second is not None:
        second = replace(second, eod_id=first.eod_id)
    return compare(first, second)
