"""Records that cannot become documents, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokshard.core.formatting import count, listed
from tokshard.errors import BAD_RECORD_EXCERPT_CHARACTERS

TextCheck = Callable[[str], None]
"""It raises UnusableRecordError for texts that a tokenizer cannot encode."""

_TOP_REASONS = 3
REASONS: dict[str, str] = {
    "invalid-json": "The line is not valid JSON.",
    "truncated-record": "The last line of the input is incomplete: no newline, and not valid JSON.",
    "not-object": "The line is valid JSON, but not an object.",
    "field-missing": "The record does not have the field.",
    "field-null": "The field, or an object that contains it, is null.",
    "field-type": "The field is neither a string nor a list of strings (of token ids: not a list).",
    "item-type": "The field is a list with an item that is not a string (of token ids: not an integer).",
    "chat-messages": "The field is a list of chat messages, which are not supported yet.",
    "invalid-utf8": "The record is not valid UTF-8.",
    "utf-16": "The line is encoded as UTF-16; JSON lines must be UTF-8.",
    "byte-order-mark": "The line begins with a byte order mark (U+FEFF) and is not the first of the file.",
    "nul-byte": "The line contains NUL bytes, as after a crash of the program or machine that wrote it.",
    "lone-surrogate": "The field contains half of a surrogate pair, which is not a character.",
    "token-ids": "A token id is not in the vocabulary, or the text for a null tokenizer is not ids.",
    "key-missing": "The record does not have the field of --holdout-key, or it is null.",
    "key-type": "The field of --holdout-key is neither a string nor an integer of 64 bits.",
    "too-deep": "The line nests arrays and objects too deeply.",
    "too-many-values": "The list of a row of a table has more than 2,000,000 items.",
    "too-long": "The record is larger than --max-document-bytes.",
    "corrupt-stream": "The compressed stream is truncated or damaged here; the rest of the input is lost.",
}
"""Stable reason codes of rejected records, with their meanings."""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    r"""A record that cannot become a document.

    Attributes:
        offset: Its byte offset in the input's decompressed stream; in a table its row number in the file.
        line: Its 1-based line number within the unit, counting blank lines; in a table its row number.
        reason: A key of :data:`REASONS`.
        excerpt: Its first 60 characters; bytes that are not UTF-8 as ``\xff``. Untrusted data: escape it
            before printing.
        hint: The hint if it is the first record of its input; empty if there is none, or if another record
            of its batch was rejected before it.
    """

    offset: int
    line: int
    reason: str
    detail: str
    excerpt: str
    hint: str = ""


class UnusableRecordError(Exception):
    """Reason why a record cannot become a document.

    Args:
        reason: A key of :data:`REASONS`.
        detail: The problem, with the field and the value.
        hint: Returns the hint if this is the first record of its input; slow.
    """

    def __init__(self, reason: str, detail: str, hint: Callable[[], str] = str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.hint = hint


def top_reasons(rejected: Mapping[str, int]) -> str:
    """Return the most frequent reasons with their counts, as text.

    Example:
        >>> top_reasons({"field-missing": 1200, "nul-byte": 3})
        '1,200 field-missing, 3 nul-byte'
    """
    ordered = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{count(number)} {reason}" for reason, number in ordered], _TOP_REASONS)


def too_long(what: str, size_bytes: int, max_document_bytes: int) -> UnusableRecordError:
    """Return the error for a line or the text of a row that is larger than the limit."""
    return UnusableRecordError(
        "too-long", f"{what} must be at most {count(max_document_bytes)} bytes, got {count(size_bytes)}"
    )


def excerpt_of(data: bytes) -> str:
    """Return the first characters of a record's bytes, at most 60."""
    # UTF-8 has at most 4 bytes per character, so a character cut here is not in the excerpt.
    prefix = data[: 4 * BAD_RECORD_EXCERPT_CHARACTERS]
    return prefix.decode("utf-8", "backslashreplace")[:BAD_RECORD_EXCERPT_CHARACTERS]
