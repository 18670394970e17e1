r"""Field paths: names of top-level and nested fields, their values, and advice for a wrong name.

A dot separates the keys of a path: ``meta.text`` is the key ``text`` of the object ``meta``. A number is the
index of an item where the value is a list, and a key where it is an object: ``messages.0.content``. A
backslash makes the dot or backslash after it part of the key: ``meta\.text`` is the top-level key
``meta.text``. The meaning of a name never depends on the records.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, Self

from tokshard.core.formatting import counted, visible
from tokshard.text.corpus.rejection import UnusableRecordError

_CHARACTERS = re.compile(r"\\[.\\]|.", re.DOTALL)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_SHOWN_FIELDS = 12
_SHOWN_CHARACTERS = 60
_DEEPEST = 4
# A record with more fields than this gets its suggestion from the first ones.
_CONSIDERED_FIELDS = 1000
_COMMON_NAMES = ("text", "content", "body", "raw_content", "page_content", "document", "article", "passage")
_CHAT_KEYS = (frozenset({"role", "content"}), frozenset({"from", "value"}))

CHAT_HINT = (
    "render each conversation to one string field, for example with apply_chat_template(messages, "
    "tokenize=False) of transformers, and pass that field with --field"
)
MIXED_HINT = (
    "tokenize text and token ids in separate runs: the first record decides which of them a field contains "
    "(of a pipe, --vocab-size)"
)


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Path of a field in a record.

    Attributes:
        name: The path as the user wrote it.
        keys: The keys from the record down.
    """

    name: str
    keys: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> Self:
        r"""Return the path that a name describes.

        Example:
            >>> FieldPath.parse("meta.text").keys, FieldPath.parse(r"meta\.text").keys
            (('meta', 'text'), ('meta.text',))
        """
        keys = [""]
        for character in _CHARACTERS.findall(name):
            if character == ".":
                keys.append("")
            else:
                keys[-1] += character[-1]
        return cls(name, tuple(keys))

    @property
    def file_name(self) -> str:
        """The keys joined by dots, for the names of outputs."""
        return ".".join(self.keys)

    def value(self, record: dict[str, Any]) -> str | list[str]:
        """Return the value in a record if it is usable; else raise UnusableRecordError."""
        return usable_value(self.find(record), self.name)

    def find(self, record: dict[str, Any]) -> Any:
        """Return the value in a record, None inside of null; raise UnusableRecordError if it is missing."""
        value: Any = record
        for depth, key in enumerate(self.keys):
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and (index := index_of(key)) is not None:
                if index >= len(value):
                    raise missing_item(name_of(self.keys[: depth + 1]), len(value))
                value = value[index]
            elif value is None:
                break
            else:
                raise self._missing(record)
        return value

    def _missing(self, record: dict[str, Any]) -> UnusableRecordError:
        names = _listed(name for name, _ in _fields_of(record))
        found = f"fields: {names}" if names else "the record has no fields"
        return UnusableRecordError(
            "field-missing",
            f"field {quoted(self.name)} not found ({found})",
            lambda: _hint_for_record(self, record),
        )


class FieldNames(NamedTuple):
    """The fields of a record that are read.

    Attributes:
        texts: The fields of text.
        key: The field of the key of the holdout; None for none.
        vocab_size: If the fields contain token ids, all must be below it. If None, they contain text.
    """

    texts: Sequence[str] = ()
    key: str | None = None
    vocab_size: int | None = None


class FieldPaths(NamedTuple):
    """The paths of the fields of a record that are read; see :class:`FieldNames`."""

    texts: tuple[FieldPath, ...]
    key: FieldPath | None
    vocab_size: int | None = None

    @classmethod
    def parse(cls, names: FieldNames) -> FieldPaths:
        """Return the paths that names describe."""
        return cls(
            tuple(map(FieldPath.parse, names.texts)),
            None if names.key is None else FieldPath.parse(names.key),
            names.vocab_size,
        )

    @property
    def all(self) -> tuple[FieldPath, ...]:
        """All paths, those of texts first."""
        return self.texts if self.key is None else (*self.texts, self.key)


def values_of(paths: Sequence[FieldPath], records: Iterator[Any]) -> tuple[list[Any], ...]:
    """Return the values of each path in all records, without checks of the values.

    Raises:
        LookupError, TypeError: A field is missing from a record.
    """
    if any(len(path.keys) > 1 for path in paths):
        loaded = list(records)
        return tuple(list(_descend(path, loaded)) for path in paths)
    names = [path.keys[0] for path in paths]
    if len(names) == 1:
        return (list(map(itemgetter(names[0]), records)),)
    return tuple(map(list, zip(*map(itemgetter(*names), records), strict=True)))


def _descend(path: FieldPath, records: list[Any]) -> Iterator[Any]:
    values: Iterator[Any] = map(itemgetter(path.keys[0]), records)
    for key in path.keys[1:]:
        values = map(_step(key), values)
    return values


def _step(key: str) -> Callable[[Any], Any]:
    index = index_of(key)
    if index is None:
        return itemgetter(key)
    return lambda value: value[index] if type(value) is list else value[key]


def usable_value(value: Any, field: str) -> str | list[str]:
    """Return a field's value if it is text or a list of texts; else raise UnusableRecordError."""
    if isinstance(value, str):
        return value
    if value is None:
        raise UnusableRecordError("field-null", f"field {quoted(field)} is null")
    if not isinstance(value, list):
        raise UnusableRecordError(
            "field-type",
            f"field {quoted(field)} must be a string or a list of strings, got {json_type(value)}",
        )
    if _is_chat(value):
        raise UnusableRecordError(
            "chat-messages",
            f"field {quoted(field)} contains chat messages, which are not supported yet",
        )
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise UnusableRecordError(
                "item-type",
                f"item {number} of field {quoted(field)} must be a string, got {json_type(item)}",
                lambda: MIXED_HINT if is_token_ids(value) else "",
            )
    return value


def refuse_surrogates(text: str, field: str) -> None:
    """Raise UnusableRecordError if a text cannot be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableRecordError(
            "lone-surrogate",
            f"field {quoted(field)} contains the lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}",
        ) from None


def decoded(value: bytes, field: str) -> str:
    """Return a text of a table; raise UnusableRecordError if it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableRecordError(
            "invalid-utf8", f"field {quoted(field)}: invalid UTF-8 at byte {error.start}: {error.reason}"
        ) from None


def index_of(key: str) -> int | None:
    """Return the index of a list that a key can be, or None."""
    return int(key) if _INDEX.fullmatch(key) else None


def missing_item(name: str, length: int) -> UnusableRecordError:
    """Return the error for an item that a list of some length does not have."""
    return UnusableRecordError(
        "field-missing", f"field {quoted(name)} not found (the list has {counted(length, 'item')})"
    )


def json_type(value: Any) -> str:
    """Return the JSON type of a value, with its article.

    Example:
        >>> json_type(True), json_type({})
        ('a boolean', 'an object')
    """
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def is_chat_message(keys: Sequence[str]) -> bool:
    """Return whether an object with these keys is a message of a conversation."""
    return any(wanted.issubset(keys) for wanted in _CHAT_KEYS)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and is_chat_message(list(value[0]))
    )


def is_token_ids(value: Any) -> bool:
    """Return whether a value is a list of integers that is not empty."""
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


# Names


def quoted(name: str) -> str:
    r"""Return a name in quotes, cut after some characters, without control characters.

    Example:
        >>> print(quoted("a\n"))
        "a\n"
    """
    return f'"{_shortened(name)}"'


def name_of(keys: Sequence[str]) -> str:
    r"""Return the name of a path, the inverse of :meth:`FieldPath.parse`.

    Example:
        >>> print(name_of(["a.b", "c"]))
        a\.b.c
    """
    return ".".join(key.replace("\\", r"\\").replace(".", r"\.") for key in keys)


def _shortened(name: str) -> str:
    if len(name) <= _SHOWN_CHARACTERS and name.isprintable():
        return name
    cut = name if len(name) <= _SHOWN_CHARACTERS else name[: _SHOWN_CHARACTERS - 3] + "..."
    return visible(cut)


def _listed(names: Iterator[str]) -> str:
    shown = [_shortened(name) for name in islice(names, _SHOWN_FIELDS + 1)]
    return ", ".join(shown[:_SHOWN_FIELDS]) + (", ..." if len(shown) > _SHOWN_FIELDS else "")


def _fields_of(record: dict[str, Any], above: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        name = above + name_of([key])
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _fields_of(value, f"{name}.", depth + 1)
        else:
            yield name, value


# Advice


def missing_column(path: FieldPath, names: Sequence[str]) -> str:
    """Return the sentence about a column that is not among those of a table."""
    columns = f"columns: {_listed(iter(names))}" if names else "the table has no columns"
    return f"column {quoted(path.name)} not found ({columns})"


def hint_for_column(path: FieldPath, texts: Sequence[str]) -> str:
    """Return the hint for a missing column of text, with the names of columns of text."""
    candidates = [name for name in texts if _can_be_typed(name)]
    best = _best(path, candidates)
    if best is not None:
        return f"pass --field {shlex.quote(best)}"
    if candidates:
        return f"choose a text column with --field: {_listed(iter(candidates))}"
    return "add a column of strings to the table"


def hint_for_key(names: Sequence[str]) -> str:
    """Return the hint for a missing key, with the names of fields of strings or integers."""
    candidates = [name for name in names[:_CONSIDERED_FIELDS] if _can_be_typed(name)]
    if candidates:
        return f"choose a field with --holdout-key: {_listed(iter(candidates))}"
    return "add a field of keys to the input"


def _hint_for_record(path: FieldPath, record: dict[str, Any]) -> str:
    fields = list(islice(_fields_of(record), _CONSIDERED_FIELDS))
    sizes = {name: _text_size(value) for name, value in fields if _can_be_typed(name)}
    texts = [name for name, size in sizes.items() if size >= 0]
    best = _best(path, texts)
    if best is None and any(_is_chat(value) for _, value in fields):
        return CHAT_HINT
    if texts:
        return f"pass --field {shlex.quote(best or max(texts, key=lambda name: sizes[name]))}"
    names = [name for name, value in fields if is_token_ids(value) and _can_be_typed(name)]
    return f"pass --field {shlex.quote(names[0])}" if names else ""


def key_candidates(record: dict[str, Any]) -> list[str]:
    """Return the names of the fields of a record that can be keys."""
    return [name for name, value in _fields_of(record) if type(value) in {str, int}]


def _best(path: FieldPath, names: Sequence[str]) -> str | None:
    # A dot that should have been escaped, a near miss, a usual name.
    if (literal := name_of([path.file_name])) in names:
        return literal
    lower = {name.lower(): name for name in reversed(names)}
    if near := difflib.get_close_matches(path.name.lower(), list(lower), 1, 0.75):
        return lower[near[0]]
    by_last_key = {FieldPath.parse(name).keys[-1].lower(): name for name in reversed(names)}
    return next((by_last_key[name] for name in _COMMON_NAMES if name in by_last_key), None)


def _text_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return sum(map(len, value))
    return -1


def _can_be_typed(name: str) -> bool:
    return 0 < len(name) <= 200 and visible(name) == name and all(FieldPath.parse(name).keys)
