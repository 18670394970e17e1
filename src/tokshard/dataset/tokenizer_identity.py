"""The identity of a tokenizer, as every product records it, and its comparison.

Data of two tokenizers must not meet in one job: equal ids mean different text. The identity is that of the
tokenizer's definition (vocabulary, merges, added tokens, normalizer, pre-tokenizer, post-processor, and what
files beside it change), not of file bytes: a file that was saved again has the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tokshard.core.codec import SHA256, Key

TokenizerKind = Literal["bytes", "huggingface", "tiktoken", "sentencepiece", "null"]


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """The identity of a tokenizer, independent of the location and the form of its files."""

    kind: Annotated[TokenizerKind, Key("kind", "Library that runs it.")]
    name: Annotated[str | None, Key("name", "Name of the encoding, if the file alone does not define it.")]
    sha256: Annotated[
        str | None,
        Key(
            "sha256",
            "SHA-256 of the tokenizer file; only in files of versions that did not record definition_sha256.",
            pattern=SHA256,
            omit_none=True,
        ),
    ] = field(default=None, kw_only=True)
    vocab_size: Annotated[int, Key("vocab_size", "Tokens, added ones included.", minimum=0)]
    max_token_id: Annotated[int, Key("max_token_id", "The largest token id.", minimum=-1)]
    eod_id: Annotated[int | None, Key("eod_id", "The id of the EOD token.", minimum=0)]
    eod_token: Annotated[str | None, Key("eod_token", "The text of the EOD token.")]
    definition_sha256: Annotated[
        str | None,
        Key(
            "definition_sha256",
            "SHA-256 of the canonical definition; the same for files that were saved again.",
            pattern=SHA256,
            omit_none=True,
        ),
    ] = None
    prefix_ids: Annotated[
        tuple[int, ...] | None,
        Key(
            "prefix_ids",
            "Ids that --special-tokens adds before each text; absent if not known.",
            omit_none=True,
        ),
    ] = None
    suffix_ids: Annotated[
        tuple[int, ...] | None,
        Key(
            "suffix_ids",
            "Ids that --special-tokens adds after each text; absent if not known.",
            omit_none=True,
        ),
    ] = None
    transformers: Annotated[
        str | None,
        Key(
            "transformers",
            "Version of transformers that read the tokenizer's directory; absent if none was needed.",
            omit_none=True,
        ),
    ] = None

    @property
    def template_ids(self) -> tuple[int, ...]:
        """All ids that ``--special-tokens`` adds to each text; empty if they are not known."""
        return (*(self.prefix_ids or ()), *(self.suffix_ids or ()))

    @property
    def digest(self) -> str:
        """The digest that names it in reports."""
        return self.definition_sha256 or self.sha256 or ""


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
