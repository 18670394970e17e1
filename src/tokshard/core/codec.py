"""JSON of frozen dataclasses: an attribute's name is its name in JSON, its annotation is its type.

    @dataclass(frozen=True, slots=True)
    class Unit(Document):
        SCHEMA = "tokshard.unit/2"

        input: Count
        sha256: Sha256 | None = None

A field with the default None is left out where it is None, and all others are required. Types are ``int`` (64
bits), ``float`` and ``str``, also with :class:`Bounds`, ``bool``, ``Literal``, ``X | None``,
``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]``, records, unions of records that differ in their ``TAG``
(name and value of a field), and ``Any``. The same is checked when a file is read and when an object is made.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from tokshard.core.json_text import dump_json, parse_json_object, paused_garbage_collection
from tokshard.errors import IntegrityError, OlderVersionError, UsageError
from tokshard.version import __version__

INTEGER_LIMIT = 2**63
"""Integers are at least -2**63 and less than 2**63: what int64 holds."""

_SCALARS = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}
_CONTAINERS = (dict, list, tuple)
_MOST_LEVELS = 32
_SHOWN_CHARACTERS = 80

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
"""Checks a value, as JSON or as Python has it, and returns it; the text is its path."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest number of a field, and the pattern of its whole text."""

    low: float | None = None
    high: float | None = None
    pattern: str | None = None


Count = Annotated[int, Bounds(0)]
Positive = Annotated[int, Bounds(1)]
Amount = Annotated[float, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
Sha256 = Annotated[str, Bounds(pattern="[0-9a-f]{64}")]
Xxh3 = Annotated[str, Bounds(pattern="[0-9a-f]{32}")]
Md5 = Annotated[str, Bounds(pattern="[0-9a-f]{32}")]


class Record:
    """Base class of the dataclasses that JSON is made of."""

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        try:
            for name, read in _shape_of(kind).readers.items():
                read(getattr(self, name), name)
        except _Mismatch as mismatch:
            raise UsageError(str(mismatch)) from mismatch
        self._validate()

    def _validate(self) -> None:
        """Raise UsageError or ValueError if the fields do not fit together."""


class Document(Record):
    """A record that is a file or an output, with the name and version of its schema.

    Example:
        >>> @dataclass(frozen=True)
        ... class Point(Document):
        ...     SCHEMA = "example.point/2"
        ...     x: Count
        >>> Point(3).to_json()
        {'schema': 'example.point/2', 'x': 3}
        >>> Point.from_bytes(b'{"schema": "example.point/2", "x": -3}', "p.json")
        Traceback (most recent call last):
            ...
        tokshard.errors.IntegrityError: p.json: x must be at least 0, got -3
    """

    __slots__ = ()

    SCHEMA: ClassVar[str]
    OLDER_HINT: ClassVar[str] = "build it again with this version of tokshard"
    """The advice about a file of an earlier version, which is not read."""

    def __init_subclass__(cls) -> None:
        # Else dataclass would make one that prints all of a report, which may be pages.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Document.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        from tokshard.core.formatting import short_repr  # the loader needs no words

        return short_repr(self)

    def to_json(self) -> dict[str, Any]:
        """Return the document as a JSON object, the schema first."""
        value: dict[str, Any] = encode(self)
        return value

    def to_bytes(self) -> bytes:
        """Return the document as indented UTF-8 JSON with a final newline."""
        return dump_json(self.to_json())

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the document of a parsed JSON value; see :func:`decode`.

        Raises:
            OlderVersionError: An earlier version of tokshard wrote it.
        """
        schema = value.get("schema") if isinstance(value, dict) else None
        if _versions_ahead(schema, cls.SCHEMA) < 0:
            text = f"{path} was written by an earlier version of tokshard ({schema})"
            raise OlderVersionError(text, path=path, field="schema", hint=cls.OLDER_HINT)
        return decode(cls, value, path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Self:
        """Return the document in the bytes of a file; see :meth:`from_json`."""
        with paused_garbage_collection():
            return cls.from_json(parse_json_object(content, path), path)


def encode(value: Any) -> Any:
    """Return a record as JSON values: objects, arrays, texts and numbers."""
    if isinstance(value, Record):
        kind: Any = type(value)
        shape = _shape_of(kind)
        items = ((name, getattr(value, name)) for name in shape.readers)
        return shape.constants | {
            name: item if type(item) in _SCALARS else encode(item)
            for name, item in items
            if item is not None or name in shape.required
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return {name: encode(item) for name, item in value.items()} if isinstance(value, dict) else value


def decode(cls: type[T], value: Any, path: str) -> T:
    """Return the record of class ``cls`` that a parsed JSON value is.

    Raises:
        IntegrityError: A field is missing, unknown or mistyped, or the class refuses the values. It names
            ``path`` and the field.
    """
    try:
        kind: Any = cls
        record: T = _reader(kind)(value, "")
    except _Mismatch as mismatch:
        raise IntegrityError(
            f"{path}: {mismatch}", path=path, field=mismatch.field or None, hint=mismatch.hint
        ) from mismatch.__cause__
    return record


def checker(hint: Any) -> Reader:
    """Return the check of an option of a type, which raises UsageError; for other types than here, none."""
    try:
        read = _reader(hint)
    except TypeError:
        return lambda value, _: value

    def check(value: Any, name: str) -> Any:
        try:
            return read(value, name)
        except _Mismatch as mismatch:
            # The command line has no names for the positions in an array.
            problem = str(mismatch).removeprefix(mismatch.field)
            raise UsageError(re.sub(r"\[[0-9]+\]", "", mismatch.field) + problem) from mismatch

    return check


class _Mismatch(Exception):  # noqa: N818 - becomes an IntegrityError with the path of the file
    def __init__(self, problem: str, field: str, hint: str | None = None) -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.field = field
        self.hint = hint


class _Shape(typing.NamedTuple):
    constants: dict[str, str]
    readers: dict[str, Reader]
    required: frozenset[str]


@functools.cache
def _shape_of(cls: Any) -> _Shape:
    hints = typing.get_type_hints(cls, include_extras=True)
    # Fields that are no arguments of the constructor are not stored.
    fields = [field for field in dataclasses.fields(cls) if field.init]
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    return _Shape(
        constants_of(cls), readers, frozenset(field.name for field in fields if field.default is not None)
    )


def constants_of(cls: Any) -> dict[str, str]:
    """Return the fields whose values the class fixes: its schema, its tag and its algorithm."""
    schema = {"schema": cls.SCHEMA} if hasattr(cls, "SCHEMA") else {}
    algorithm = {"algorithm": cls.ALGORITHM} if hasattr(cls, "ALGORITHM") else {}
    return schema | dict([cls.TAG] if hasattr(cls, "TAG") else []) | algorithm


@functools.cache
def _reader(hint: Any, bounds: Bounds = Bounds()) -> Reader:
    origin, items = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(items[0], next((item for item in items if isinstance(item, Bounds)), Bounds()))
    if hint in _SCALARS:
        return _scalar(hint, bounds)
    if origin in {Union, types.UnionType}:
        others = tuple(item for item in items if item is not types.NoneType)
        one = _reader(others[0]) if len(others) == 1 else functools.partial(_tagged, others)
        return lambda value, where: None if value is None and others != items else one(value, where)
    kinds = {Literal: _choice, tuple: _array, dict: _table}
    if origin in kinds:
        return functools.partial(kinds[origin], items)
    if hint is Any:
        return _foreign
    if isinstance(hint, type) and issubclass(hint, Record):
        return functools.partial(_record, hint)
    raise TypeError(f"{hint!r} is not a type of JSON")


def _scalar(kind: type, bounds: Bounds) -> Reader:
    kinds = (int, float) if kind is float else (kind,)
    low = bounds.low if bounds.low is not None else -INTEGER_LIMIT if kind is int else -math.inf
    high = bounds.high if bounds.high is not None else INTEGER_LIMIT - 1 if kind is int else math.inf
    matches = re.compile(bounds.pattern).fullmatch if bounds.pattern is not None else None

    def read(value: Any, where: str) -> Any:
        if type(value) not in kinds or (kind is float and not math.isfinite(value)):
            raise _Mismatch(f"must be {_SCALARS[kind]}, got {shown(value)}", where)
        if kind is str:
            if matches and not matches(value):
                raise _Mismatch(f"must match {bounds.pattern}, got {shown(value)}", where)
        elif not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise _Mismatch(f"must be {bound}, got {shown(value)}", where)
        return value

    return read


def _choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    wanted = ", ".join(map(str, choices))
    raise _Mismatch(f"must be {'one of ' if len(choices) > 1 else ''}{wanted}, got {shown(value)}", where)


def _array(items: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _Mismatch(f"must be an array, got {shown(value)}", where)
    if items[-1] is Ellipsis:
        read = _reader(items[0])
        return tuple([read(entry, f"{where}[{i}]") for i, entry in enumerate(value)])
    if len(value) != len(items):
        raise _Mismatch(f"must have {len(items)} items, got {len(value)}", where)
    return tuple(_reader(item)(value[i], f"{where}[{i}]") for i, item in enumerate(items))


def _table(items: tuple[Any, ...], value: Any, where: str) -> Any:
    read = _reader(items[1])
    return {name: read(entry, _join(where, name)) for name, entry in _object(value, where).items()}


def _foreign(value: Any, where: str) -> Any:
    """Check JSON of any types: Python could not print or compare a deep value."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, _CONTAINERS)
        ]
        if not inner:
            return value
        level = [item for items in inner for item in items]
    raise _Mismatch(f"must be nested at most {_MOST_LEVELS} levels deep", where)


def _tagged(members: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(value) in members:
        return value
    name, by_tag = members[0].TAG[0], {member.TAG[1]: member for member in members}
    if name not in _object(value, where):
        raise _Mismatch("is missing", _join(where, name))
    return _record(by_tag[_choice(tuple(by_tag), value[name], _join(where, name))], value, where)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Mismatch(f"must be an object, got {shown(value)}", where)
    return value


def _record(cls: Any, value: Any, where: str) -> Any:
    if type(value) is cls:
        return value
    shape, found = _shape_of(cls), _object(value, where)
    for name, constant in shape.constants.items():
        if found.get(name) != constant:
            hint = _NEWER if _versions_ahead(found.get(name), constant) > 0 else None
            raise _Mismatch(f"must be {constant!r}, got {shown(found.get(name))}", _join(where, name), hint)
    for name in found:
        if name not in shape.readers and name not in shape.constants:
            raise _Mismatch("is unknown", _join(where, name[:_SHOWN_CHARACTERS]))
    # Not by the constructor, which would check all fields once more.
    record = object.__new__(cls)
    for name, read in shape.readers.items():
        if name not in found and name in shape.required:
            raise _Mismatch("is missing", _join(where, name))
        item = read(found[name], _join(where, name)) if name in found else None
        object.__setattr__(record, name, item)
    try:
        record._validate()
    except IntegrityError:
        raise
    except (UsageError, ValueError, OverflowError) as error:
        raise _Mismatch(f"is invalid: {error}" if where else str(error), where) from error
    return record


_NEWER = "upgrade tokshard: a newer version may have written this file"


def _versions_ahead(found: Any, wanted: Any) -> int:
    """Return the version of a name minus that of the wanted one; 0 for other names."""
    name, _, version = str(wanted).rpartition("/")
    match = re.fullmatch(rf"{re.escape(name)}/([1-9][0-9]{{0,8}})", found) if isinstance(found, str) else None
    return int(match[1]) - int(version) if match and name and version.isdecimal() else 0


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def shown(value: Any) -> str:
    """Return a JSON value for an error message, truncated to 80 characters."""
    # repr needs the stack of a deep value, and the memory of a large one.
    represented = reprlib.repr if isinstance(value, _CONTAINERS) else repr
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else represented(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Tool(Record):
    """The program that wrote a file.

    Attributes:
        name: Name of the program.
        version: Version of the program.
    """

    name: str
    version: str


TOOL = Tool("tokshard", __version__)
