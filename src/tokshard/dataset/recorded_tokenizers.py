"""Tokenizers as products record them: the one of a dataset, and mismatches that the user allowed.

:mod:`tokshard.dataset.tokenizer_agreement` finds the mismatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tokshard.core.codec import Count, Record
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, tokenizer_name

SHOWN_NAMES = 3
"""The datasets that messages about one tokenizer name."""

MismatchKind = Literal["tokenizer", "eod", "vocabulary"]


@dataclass(frozen=True, slots=True)
class MismatchSide(Record):
    """One side of a mismatch: datasets of one tokenizer, or the job.

    Attributes:
        identity: Tokenizer. Null if it is unknown.
        eod_id: Id of the EOD token that ends documents. Null if it is unknown.
        names: Path prefixes of the datasets, at most 10, or the name of the job's tokenizer.
        count: Number of datasets. 0 for the job.
    """

    identity: TokenizerIdentity | None
    eod_id: Count | None
    names: tuple[str, ...]
    count: Count

    @property
    def label(self) -> str:
        """The datasets or the job, with the tokenizer."""
        from tokshard.core.formatting import counted  # the loader needs no words

        shown = self.names[:SHOWN_NAMES]
        more = f" and {self.count - len(shown):,} more" if self.count > len(shown) else ""
        name = ", ".join(shown) + more if self.count else f"the job's tokenizer {self.names[0]}"
        if self.identity is None:
            return name
        return f"{name} ({tokenizer_name(self.identity)}, {counted(self.identity.vocab_size, 'token')})"


@dataclass(frozen=True, slots=True)
class TokenizerMismatch(Record):
    """Two sides whose tokens do not fit together.

    Attributes:
        kind: ``tokenizer``: the tokenizers differ. ``eod``: documents end with different EOD tokens.
            ``vocabulary``: the first side has ids beyond the vocabulary of the second.
        first: One side.
        second: The other side.
        detail: Difference, in words.
    """

    kind: MismatchKind
    first: MismatchSide
    second: MismatchSide
    detail: str

    @property
    def message(self) -> str:
        """One sentence that names both sides with their tokenizers."""
        first, second = self.first.label, self.second.label
        if self.kind == "vocabulary":
            return f"{first} contains {self.detail} of {second}"
        if self.kind == "eod":
            return f"{first} and {second} end documents with different EOD tokens: {self.detail}"
        if not self.first.count:
            return f"{first} is not the tokenizer of {second}: {self.detail}"
        return f"{first} and {second} were encoded with different tokenizers: {self.detail}"


@dataclass(frozen=True, slots=True)
class DatasetTokenizer(Record):
    """The tokenizer of a dataset, and how its documents were encoded.

    Attributes:
        identity: Tokenizer. Absent if it is unknown or mixed.
        append_eod: Whether the EOD token ends each document. Absent if it is unknown or mixed.
        special_tokens: Whether the tokenizer's post-processor was applied. Absent if it is unknown or mixed.
        eod_id: Id of the EOD token that ends documents. Absent if it is unknown or if none ends them.
        mismatches: Mismatches inside the dataset, from its manifest. Absent if there are none.
        merged: Different tokenizers of the datasets that were merged into this one. Absent if there is only
            one, or if nothing is known of them.
    """

    identity: TokenizerIdentity | None = None
    append_eod: bool | None = None
    special_tokens: bool | None = None
    eod_id: Count | None = None
    mismatches: tuple[TokenizerMismatch, ...] | None = None
    merged: tuple[DatasetTokenizer, ...] | None = None

    @property
    def parts(self) -> tuple[DatasetTokenizer, ...]:
        """The tokenizers of its documents: itself, or those of the datasets that it was merged from."""
        if self.merged:
            return self.merged
        if self.identity is not None or not self.mismatches:
            return (replace(self, mismatches=None),)
        # An earlier version has merged them: others are unknown.
        sides = (side for found in self.mismatches for side in (found.first, found.second))
        return (
            *dict.fromkeys(DatasetTokenizer(side.identity, eod_id=side.eod_id) for side in sides),
            _UNKNOWN,
        )

    @property
    def adds_special_tokens(self) -> bool | None:
        """Whether documents have special tokens such as BOS; None if unknown."""
        if not self.special_tokens or self.identity is None:
            return self.special_tokens
        return (self.identity.prefix_ids, self.identity.suffix_ids) != ((), ())

    @property
    def splits_special_tokens(self) -> bool | None:
        """Whether text that spells a special token was encoded as ordinary text; None if unknown."""
        return None if self.identity is None else self.identity.special_tokens_in_text == "split"


_UNKNOWN = DatasetTokenizer()


def allowed_warnings(mismatches: Iterable[TokenizerMismatch] | None) -> tuple[str, ...]:
    """Return the warnings by which reports repeat mismatches that were allowed."""
    return tuple(f"allowed by --allow-tokenizer-mismatch: {found.message}" for found in mismatches or ())
