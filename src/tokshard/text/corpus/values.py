"""The fields of a record that are read, and their values: text, token ids, and the key of the holdout.

All values of a batch are checked together (:meth:`RecordFields.plain`). If one of them is unusual, they are
checked one by one (:meth:`RecordFields.usable`), which finds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tokshard.core.formatting import count
from tokshard.text.corpus.fields import (
    IDS_HINT,
    INTEGERS_HINT,
    TEXT_HINT,
    FieldPath,
    is_chat,
    is_token_ids,
    json_type,
    quoted,
)
from tokshard.text.corpus.rejection import TextCheck, UnusableRecordError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""The smallest and the largest integer that is a key: JSON parsers disagree about others."""

# A union would be made in each call.
_TEXT = (str, bytes)


class RecordFields(NamedTuple):
    """The fields of a record that are read.

    Attributes:
        texts: The fields of text.
        key: The field of the key of the holdout, or None.
        vocab_size: If the fields contain token ids, all must be below it. If None, they contain text.
    """

    texts: tuple[FieldPath, ...] = ()
    key: FieldPath | None = None
    vocab_size: int | None = None

    @classmethod
    def parse(cls, texts: Iterable[str], key: str | None = None, vocab_size: int | None = None) -> Self:
        """Return the fields with these names."""
        return cls(
            tuple(map(FieldPath.parse, texts)), None if key is None else FieldPath.parse(key), vocab_size
        )

    @property
    def all(self) -> tuple[FieldPath, ...]:
        """All fields, the fields of text first."""
        return self.texts if self.key is None else (*self.texts, self.key)

    def plain(self, columns: Sequence[list[Any]]) -> tuple[tuple[list[Any], ...], list[bytes] | None] | None:
        """Return the texts and keys of records with one text, or one row of ids, in each field; else None.

        ``columns``: the values of each field of :attr:`all`.
        """
        texts = columns[: len(self.texts)]
        if self.vocab_size is not None:
            arrays = [ids_of_lists(column, self.vocab_size) for column in texts]
            texts = [column for column in arrays if column is not None]
        if len(texts) < len(self.texts):
            return None
        if self.vocab_size is None and not all({str}.issuperset(map(type, column)) for column in texts):
            return None
        if self.key is None:
            return tuple(texts), None
        keys = _plain_keys(columns[-1])
        return None if keys is None else (tuple(texts), keys)

    def usable(
        self,
        value_at: Callable[[FieldPath], Any],
        check: TextCheck | None,
        key_hint: Callable[[], str] = str,
        *,
        is_unicode: bool = True,
    ) -> tuple[list[Any], bytes | None]:
        """Return the value of each text field of a record, and its key; else raise UnusableRecordError.

        Args:
            value_at: Returns the value of a field. Strings may be bytes that are not known to be UTF-8.
            check: Raises UnusableRecordError for texts that the tokenizer cannot encode.
            key_hint: Returns the hint if there is no key.
            is_unicode: Whether no string has a lone surrogate, so that texts need not be searched for one.
        """
        values = [self._usable(value_at(path), path.name) for path in self.texts]
        if not is_unicode:
            for path, value in zip(self.texts, values, strict=True):
                for text in texts_in(value):
                    _decoded(text, path.name)
        if check is not None:
            for value in values:
                for text in texts_in(value):
                    check(text)
        if self.key is None:
            return values, None
        try:
            key = value_at(self.key)
        except UnusableRecordError as error:
            raise UnusableRecordError("key-missing", error.detail, key_hint) from None
        return values, _encoded_key(key, self.key.name)

    def _usable(self, value: Any, field: str) -> Any:
        if value is None:
            raise UnusableRecordError("field-null", f"field {quoted(field)} is null")
        if self.vocab_size is not None:
            return _usable_ids(value, field, self.vocab_size)
        return usable_text(value, field)


def texts_in(value: Any) -> list[Any]:
    """Return the sequences in a value of a field: the items of a list, or the value itself."""
    return value if isinstance(value, list) else [value]


def usable_text(value: Any, field: str) -> str | list[str]:
    """Return a value if it is text or a list of texts; else raise UnusableRecordError."""
    if isinstance(value, _TEXT):
        return _decoded(value, field) if isinstance(value, bytes) else value
    if not isinstance(value, list):
        raise UnusableRecordError(
            "field-type",
            f"field {quoted(field)} must be a string or a list of strings, got {json_type(value)}",
        )
    if is_chat(value):
        raise UnusableRecordError(
            "chat-messages",
            f"field {quoted(field)} contains chat messages, which are not supported yet",
        )
    for number, item in enumerate(value):
        if not isinstance(item, _TEXT):
            raise UnusableRecordError(
                "item-type",
                f"item {number} of field {quoted(field)} must be a string, got {json_type(item)}",
                lambda: IDS_HINT if is_token_ids(value) else "",
            )
    return [_decoded(item, field) if isinstance(item, bytes) else item for item in value]


def _decoded(value: str | bytes, field: str) -> str:
    """Return a text if it is Unicode without lone surrogates."""
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        value.encode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableRecordError(
            "invalid-utf8", f"field {quoted(field)}: invalid UTF-8 at byte {error.start}: {error.reason}"
        ) from None
    except UnicodeEncodeError as error:
        raise UnusableRecordError(
            "lone-surrogate",
            f"field {quoted(field)} contains the lone surrogate U+{ord(error.object[error.start]):04X} "
            f"at character {error.start}",
        ) from None
    return value


# Token ids


def ids_of_lists(values: list[Any], vocab_size: int) -> list[Any] | None:
    """Return lists of token ids as arrays, uint32 [tokens]; None if a value or an id is not usable.

    Arrays are returned as they are.
    """
    if {np.ndarray}.issuperset(map(type, values)):
        return values
    if not {list}.issuperset(map(type, values)):
        return None
    items = list(chain.from_iterable(values))
    if not {int}.issuperset(map(type, items)):
        return None
    try:
        ids = np.array(items, np.int64)
    except OverflowError:
        return None
    return divided_ids(ids, accumulate(map(len, values), initial=0), vocab_size)


def divided_ids(
    ids: NDArray[np.integer[Any]], offsets: Iterable[int], vocab_size: int
) -> list[NDArray[np.uint32]] | None:
    """Return the token ids between offsets, each uint32 [tokens]; None if an id is not in the vocabulary."""
    if ((ids < 0) | (ids >= vocab_size)).any():
        return None
    converted = ids.astype(np.uint32)
    return [converted[begin:end] for begin, end in pairwise(offsets)]


def _usable_ids(value: Any, field: str, vocab_size: int) -> Any:
    """Return a value if it is a list of token ids, as an array; else raise UnusableRecordError."""
    if (ids := ids_of_lists([value], vocab_size)) is not None:
        return ids[0]
    if not isinstance(value, list):
        raise UnusableRecordError(
            "field-type",
            f"field {quoted(field)} must be a list of token ids, got {json_type(value)}",
            lambda: TEXT_HINT if isinstance(value, str) else "",
        )
    number, item = next(
        (number, item)
        for number, item in enumerate(value)
        if type(item) is not int or not 0 <= item < vocab_size
    )
    name = f"item {number} of field {quoted(field)}"
    if type(item) is int:
        raise UnusableRecordError(
            "token-ids", f"{name} must be a token id below {count(vocab_size)}, got {item}"
        )
    is_number = type(item) is float or (isinstance(item, str) and item.isdigit())
    shown = repr(item) if is_number else json_type(item)
    hint = TEXT_HINT if isinstance(item, str) else ""
    if is_number:
        hint = INTEGERS_HINT
    raise UnusableRecordError("item-type", f"{name} must be a token id, got {shown}", lambda: hint)


# Keys of the holdout


def _plain_keys(values: Sequence[Any]) -> list[bytes] | None:
    """Return the keys in a column, or None if a value is not usable."""
    try:
        if {str, int}.issuperset(map(type, values)):
            return [str(value).encode() for value in values]
    except UnicodeEncodeError:
        return None
    return None


def _encoded_key(value: Any, field: str) -> bytes:
    """Return a key as UTF-8, the digits of an integer; raise UnusableRecordError if a value is no key."""
    if value is None:
        raise UnusableRecordError("key-missing", f"field {quoted(field)} is null")
    if isinstance(value, _TEXT):
        return _decoded(value, field).encode("utf-8")
    if type(value) is int and MIN_INTEGER <= value <= MAX_INTEGER:
        return b"%d" % value
    raise UnusableRecordError(
        "key-type",
        f"field {quoted(field)} must be a string or an integer of 64 bits, got {json_type(value)}",
    )
