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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import itemgetter
from typing import Any, Self

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
IDS_HINT = (
    "tokenize text and token ids in separate runs, or if all records contain token ids, pass --vocab-size N "
    "and --eod ID"
)
INTEGERS_HINT = "write the token ids as integers"
TEXT_HINT = (
    "tokenize text and token ids in separate runs, or if all records contain text, leave out --vocab-size"
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
                raise UnusableRecordError(
                    "field-missing", not_found(self, record), lambda: hint_for_field(self, record)
                )
        return value


def values_of(paths: Sequence[FieldPath], records: Iterable[Any]) -> list[list[Any]]:
    """Return the values of each path in all records, without checks of the values.

    Raises:
        LookupError, TypeError: A field is missing from a record.
    """
    # One path needs no list: each record is freed as soon as it is read.
    records = records if len(paths) == 1 else list(records)
    return [list(_values_at(path, records)) for path in paths]


def _values_at(path: FieldPath, records: Iterable[Any]) -> Iterable[Any]:
    values: Iterable[Any] = map(itemgetter(path.keys[0]), records)
    return reduce(_step, path.keys[1:], values)


def _step(values: Iterable[Any], key: str) -> Iterable[Any]:
    index = index_of(key)
    if index is None:
        return map(itemgetter(key), values)
    return (value[index] if type(value) is list else value[key] for value in values)


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


def is_chat(value: Any) -> bool:
    """Return whether a value is a conversation."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and any(keys <= first.keys() for keys in _CHAT_KEYS)


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


def _listed(names: Iterable[str]) -> str:
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


def not_found(path: FieldPath, record: dict[str, Any], what: str = "field", owner: str = "record") -> str:
    """Return the sentence about a field that is not in a record, or a column that is not in a table."""
    names = _listed(name for name, _ in _fields_of(record))
    present = f"{what}s: {names}" if names else f"the {owner} has no {what}s"
    return f"{what} {quoted(path.name)} not found ({present})"


def hint_for_key(record: dict[str, Any]) -> str:
    """Return the hint for a record without the key of the holdout."""
    names = [name for name, value in _typable(record) if type(value) in {str, int}]
    if names:
        return f"choose a field with --holdout-key: {_listed(names)}"
    return "add a field of keys to the input"


def hint_for_field(path: FieldPath | None, record: dict[str, Any], otherwise: str = "") -> str:
    """Return the hint for a record without a field of text, or a table without a column of text.

    ``path``: the missing field; None for one of another type. ``otherwise``: the hint for a table in which no
    column can be text; a record gets the longest of its texts, a table all names.
    """
    fields = _typable(record)
    sizes = {name: size for name, value in fields if (size := _text_size(value)) >= 0}
    best = None if path is None else _best(path, list(sizes))
    if best is None and sizes and otherwise:
        return f"choose a text column with --field: {_listed(sizes)}"
    if best is None and any(is_chat(value) for _, value in fields):
        return CHAT_HINT
    if sizes:
        return f"pass --field {shlex.quote(best or max(sizes, key=sizes.__getitem__))}"
    ids = [name for name, value in fields if path is not None and is_token_ids(value)]
    return f"pass --field {shlex.quote(ids[0])}" if ids else otherwise


def _typable(record: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the first fields of a record, without names that a user could not type."""
    fields = islice(_fields_of(record), _CONSIDERED_FIELDS)
    return [
        (name, value)
        for name, value in fields
        if 0 < len(name) <= 200 and visible(name) == name and all(FieldPath.parse(name).keys)
    ]


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
