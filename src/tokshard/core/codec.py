"""Codec between dataclasses and JSON.

Every file format and every JSON output of the command line is a dataclass whose fields declare their JSON
names, so that renaming an attribute cannot change a format:

    @dataclass(frozen=True, slots=True)
    class Unit(Document):
        SCHEMA = "tokshard.unit/1"

        input: Annotated[int, Key("input", "Number of the input, from 0.", minimum=0)]
        sha256: Annotated[str | None, Key("sha256", "Digest of the text.", pattern=SHA256, omit_none=True)]

Decoding is strict: unknown, missing and mistyped fields are errors that name the path of the field.
JSON Schemas are generated from the same declarations (:mod:`tokshard.core.json_schema`).

Types of fields: ``int``, ``float``, ``str``, ``bool``, ``Literal``, ``X | None``, ``tuple[X, ...]``,
``tuple[X, Y]``, ``dict[str, X]``, dataclasses with keys, unions of dataclasses that differ in their ``TAG``
(the name and the value of one field), ``Any`` (JSON that another program defines, at most 32 levels), and
classes with ``JSON_TYPE``, ``to_json_value`` and ``from_json_value``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from tokshard.core.formatting import short_repr
from tokshard.core.strict_json import dump_json, parse_json_object, paused_garbage_collection
from tokshard.errors import IntegrityError, OlderVersionError, UsageError
from tokshard.version import __version__

SCHEMA_FIELD = "schema"
SHA256 = "[0-9a-f]{64}"
XXH3_128 = "[0-9a-f]{32}"
INTEGER_LIMIT = 2**63
"""Integers are at least -2**63 and less than 2**63: what int64 holds."""

_SHOWN_CHARACTERS = 80
_MOST_LEVELS = 32

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """The JSON side of one field of a dataclass.

    Attributes:
        name: The field's name in JSON.
        description: The field's meaning, for the published schema.
        minimum: The smallest allowed number.
        maximum: The largest allowed number.
        pattern: A regular expression that must match the whole text.
        omit_none: Omit the field if its value is None, instead of writing null.
    """

    name: str
    description: str
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    omit_none: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NotStored:
    """Marker of a field that is not stored in JSON, such as the directory of the file.

    The field must have a default. Decoding leaves it at the default; the reader of a document replaces it.
    """


class Field(NamedTuple):
    """A field of a dataclass as the codec sees it."""

    attribute: str
    key: Key
    type: Any


class Document:
    """Base class of dataclasses that are complete JSON documents with a schema name and version.

    Reports that only occur inside other documents have no ``SCHEMA``.

    Example:
        >>> from typing import Annotated
        >>> @dataclasses.dataclass(frozen=True)
        ... class Point(Document):
        ...     SCHEMA = "example.point/1"
        ...     x: Annotated[int, Key("x", "The abscissa.", minimum=0)]
        >>> Point(3).to_json()
        {'schema': 'example.point/1', 'x': 3}
        >>> Point.from_json({"schema": "example.point/1", "x": -3}, "p.json")
        Traceback (most recent call last):
            ...
        tokshard.errors.IntegrityError: p.json: x must be at least 0, got -3
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # Else dataclass would make one that prints all of a report, which may be pages.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Document.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return short_repr(self)

    SCHEMA: ClassVar[str]
    IS_PUBLISHED: ClassVar[bool] = True
    """False for private formats, whose schemas are not published."""
    OLDER_HINT: ClassVar[str] = "build it again with this version of tokshard"
    """The advice about a file of an earlier version, which is not read."""

    def to_json(self) -> dict[str, Any]:
        """Return the document as a JSON object, the schema first.

        Raises:
            TypeError: A value is not of its field's type.
        """
        value: dict[str, Any] = encode(self)
        return value

    def to_bytes(self) -> bytes:
        """Return the document as indented UTF-8 JSON with a final newline."""
        return dump_json(self.to_json())

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the document decoded from a parsed JSON value.

        Args:
            value: The parsed JSON.
            path: The file it was read from, for errors.

        Raises:
            OlderVersionError: An earlier version of tokshard wrote it.
            IntegrityError: The schema differs, or a field is missing, unknown or mistyped.
        """
        schema = value.get(SCHEMA_FIELD) if isinstance(value, dict) else None
        if _versions_ahead(schema, cls.SCHEMA) < 0:
            text = f"{path} was written by an earlier version of tokshard ({schema})"
            raise OlderVersionError(text, path=path, field=SCHEMA_FIELD, hint=cls.OLDER_HINT)
        return decode(cls, value, path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Self:
        """Return the document decoded from the bytes of a file; see :meth:`from_json`."""
        with paused_garbage_collection():
            return cls.from_json(parse_json_object(content, path), path)


def encode(value: Any) -> Any:
    """Return a dataclass with keys as JSON values: objects, arrays, texts, numbers.

    Raises:
        TypeError: A value is not of its field's type.
    """
    return _codec_of(type(value)).encode(value)


def decode(cls: type[T], value: Any, path: str) -> T:
    """Return the instance of a dataclass with keys decoded from a parsed JSON value.

    Args:
        cls: The dataclass.
        value: The parsed JSON.
        path: The file it was read from, for errors.

    Raises:
        IntegrityError: A field is missing, unknown or mistyped, or the class rejects the values.
    """
    try:
        decoded: T = _codec_of(cls).decode(value, "")
    except _Mismatch as mismatch:
        raise IntegrityError(
            f"{path}: {mismatch}", path=path, field=mismatch.field or None, hint=mismatch.hint
        ) from mismatch.__cause__
    return decoded


def fields_of(cls: type) -> tuple[Field, ...]:
    """Return the stored fields of a dataclass, in order.

    Raises:
        TypeError: A field has no :class:`Key`, or two share a name.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        extras = getattr(hint, "__metadata__", ())
        if any(isinstance(extra, NotStored) for extra in extras):
            continue
        keys = [extra for extra in extras if isinstance(extra, Key)]
        if len(keys) != 1:
            raise TypeError(f"{cls.__qualname__}.{field.name} has {len(keys)} keys instead of 1")
        found.append(Field(field.name, keys[0], hint.__origin__))
    names = [field.key.name for field in found] + [name for name, _ in constants_of(cls)]
    if len(set(names)) != len(names):
        raise TypeError(f"{cls.__qualname__} has two fields of the same name")
    return tuple(found)


def constants_of(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the constant fields of a class: the schema, and the tag of a union member."""
    schema: str | None = getattr(cls, "SCHEMA", None)
    if schema is not None:
        yield SCHEMA_FIELD, schema
    tag: tuple[str, str] | None = getattr(cls, "TAG", None)
    if tag is not None:
        yield tag


class _Mismatch(Exception):  # noqa: N818 - becomes an IntegrityError with the path of the file
    def __init__(self, problem: str, field: str, hint: str | None = None) -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.field = field
        self.hint = hint


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any, str], Any]


def _codec_of(hint: Any, key: Key | None = None) -> _Codec:
    return _made_codec(hint, key)


@functools.cache
def _made_codec(hint: Any, key: Key | None) -> _Codec:  # noqa: PLR0911 - one return for each kind of type
    origin = get_origin(hint)
    if origin is Annotated:
        return _codec_of(get_args(hint)[0], key)
    if hint is Any:
        return _Codec(_as_it_is, _foreign)
    if hint in _SCALARS:
        return _scalar(hint, key)
    if origin is Literal:
        return _literal(get_args(hint))
    if origin in {Union, types.UnionType}:
        return _union(get_args(hint), key)
    if origin is tuple:
        return _array(get_args(hint), key)
    if origin is dict:
        return _object(get_args(hint)[1], key)
    if hasattr(hint, "JSON_TYPE"):
        return _converted(hint)
    if dataclasses.is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"{hint!r} cannot be represented in JSON")


_SCALARS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _scalar(kind: type, key: Key | None) -> _Codec:
    matches = re.compile(key.pattern).fullmatch if key and key.pattern else None
    low = -INTEGER_LIMIT if kind is int else -math.inf
    high = INTEGER_LIMIT - 1 if kind is int else math.inf
    if key and key.minimum is not None:
        low = key.minimum
    if key and key.maximum is not None:
        high = key.maximum
    wanted = (int, float) if kind is float else (kind,)

    def to_json(value: Any) -> Any:
        if type(value) not in wanted or (kind is float and not math.isfinite(value)):
            raise TypeError(f"{value!r} is not {_SCALARS[kind]}")
        return value

    def from_json(value: Any, field: str) -> Any:
        if type(value) not in wanted:
            raise _Mismatch(f"must be {_SCALARS[kind]}, got {shown(value)}", field)
        if kind is str:
            if matches and not matches(value):
                raise _Mismatch(f"must match {key.pattern if key else ''}, got {shown(value)}", field)
        elif kind is not bool:
            if value < low:
                raise _Mismatch(f"must be at least {low}, got {shown(value)}", field)
            if value > high:
                raise _Mismatch(f"must be at most {high}, got {shown(value)}", field)
        return float(value) if kind is float else value

    return _Codec(to_json, from_json)


def _literal(choices: tuple[Any, ...]) -> _Codec:
    def to_json(value: Any) -> Any:
        if value not in choices:
            raise TypeError(f"{value!r} must be one of {choices}")
        return value

    def from_json(value: Any, field: str) -> Any:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return choice
        hint = _NEWER if any(_versions_ahead(value, choice) > 0 for choice in choices) else None
        raise _Mismatch(f"must be one of {', '.join(map(str, choices))}, got {shown(value)}", field, hint)

    return _Codec(to_json, from_json)


def _union(members: tuple[Any, ...], key: Key | None) -> _Codec:
    others = tuple(member for member in members if member is not types.NoneType)
    nullable = len(others) < len(members)
    codec = _codec_of(others[0], key) if len(others) == 1 else _tagged(others)
    if not nullable:
        return codec
    return _Codec(
        lambda value: None if value is None else codec.encode(value),
        lambda value, field: None if value is None else codec.decode(value, field),
    )


def _tagged(members: tuple[Any, ...]) -> _Codec:
    names = {member.TAG[0] for member in members}
    if len(names) != 1 or len({member.TAG for member in members}) != len(members):
        raise TypeError(f"union members must have tags with the same name and different values: {members}")
    name = names.pop()
    by_tag = {member.TAG[1]: _codec_of(member) for member in members}

    def to_json(value: Any) -> Any:
        if type(value) not in members:
            raise TypeError(f"{value!r} is none of {', '.join(member.__name__ for member in members)}")
        return encode(value)

    def from_json(value: Any, field: str) -> Any:
        _check_object(value, field)
        if name not in value:
            raise _Mismatch("is missing", _join(field, name))
        tag = value[name]
        if not isinstance(tag, str) or tag not in by_tag:
            raise _Mismatch(f"must be one of {', '.join(by_tag)}, got {shown(tag)}", _join(field, name))
        return by_tag[tag].decode(value, field)

    return _Codec(to_json, from_json)


def _array(items: tuple[Any, ...], key: Key | None) -> _Codec:
    if len(items) == 2 and items[1] is Ellipsis:
        item = _codec_of(items[0], key)

        def from_json(value: Any, field: str) -> Any:
            _check_array(value, field)
            return tuple([item.decode(entry, f"{field}[{i}]") for i, entry in enumerate(value)])

        return _Codec(lambda value: [item.encode(entry) for entry in value], from_json)
    codecs = [_codec_of(kind, key) for kind in items]

    def from_json_fixed(value: Any, field: str) -> Any:
        _check_array(value, field)
        if len(value) != len(codecs):
            raise _Mismatch(f"must have {len(codecs)} items, got {len(value)}", field)
        return tuple(
            codec.decode(entry, f"{field}[{i}]")
            for i, (codec, entry) in enumerate(zip(codecs, value, strict=True))
        )

    return _Codec(
        lambda value: [codec.encode(entry) for codec, entry in zip(codecs, value, strict=True)],
        from_json_fixed,
    )


def _object(kind: Any, key: Key | None) -> _Codec:
    item = _codec_of(kind, key)

    def from_json(value: Any, field: str) -> Any:
        _check_object(value, field)
        return {name: item.decode(entry, _join(field, name)) for name, entry in value.items()}

    return _Codec(lambda value: {name: item.encode(entry) for name, entry in value.items()}, from_json)


def _converted(cls: Any) -> _Codec:
    inner = _codec_of(cls.JSON_TYPE)

    def from_json(value: Any, field: str) -> Any:
        return _built(cls.from_json_value, (inner.decode(value, field),), {}, field)

    return _Codec(lambda value: inner.encode(value.to_json_value()), from_json)


def _record(cls: Any) -> _Codec:
    fields = [(field, _codec_of(field.type, field.key)) for field in fields_of(cls)]
    constants = tuple(constants_of(cls))
    known = {name for name, _ in constants} | {field.key.name for field, _ in fields}

    def to_json(value: Any) -> Any:
        if type(value) is not cls:
            raise TypeError(f"{value!r} is not a {cls.__name__}")
        result: dict[str, Any] = dict(constants)
        for field, codec in fields:
            attribute = getattr(value, field.attribute)
            if attribute is None and field.key.omit_none:
                continue
            try:
                result[field.key.name] = codec.encode(attribute)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}.{field.attribute}: {error}") from error
        return result

    def from_json(value: Any, where: str) -> Any:
        _check_object(value, where)
        _check_names(value, constants, known, where)
        arguments = {}
        for field, codec in fields:
            name = field.key.name
            if name in value:
                arguments[field.attribute] = codec.decode(value[name], _join(where, name))
            elif field.key.omit_none:
                arguments[field.attribute] = None
            else:
                raise _Mismatch("is missing", _join(where, name))
        return _built(cls, (), arguments, where)

    return _Codec(to_json, from_json)


def _built(make: Callable[..., Any], words: tuple[Any, ...], names: dict[str, Any], field: str) -> Any:
    # An error of the constructor means that the file is invalid.
    try:
        return make(*words, **names)
    except IntegrityError:
        raise
    except (UsageError, ValueError, OverflowError) as error:
        raise _Mismatch(f"is invalid: {error}" if field else str(error), field) from error


def _check_names(
    value: dict[str, Any], constants: tuple[tuple[str, str], ...], known: set[str], where: str
) -> None:
    for name, constant in constants:
        _check_constant(value, name, constant, where)
    for name in value:
        if name not in known:
            raise _Mismatch("is unknown", _join(where, name[:_SHOWN_CHARACTERS]))


def _check_constant(value: dict[str, Any], name: str, constant: str, where: str) -> None:
    if value.get(name) == constant:
        return
    if name != SCHEMA_FIELD:
        raise _Mismatch(f"must be {constant}, got {shown(value.get(name))}", _join(where, name))
    raise _Mismatch(
        f"must be {constant!r}, got {shown(value.get(name))}",
        _join(where, name),
        hint=_NEWER if _versions_ahead(value.get(name), constant) > 0 else None,
    )


_NEWER = "upgrade tokshard: a newer version may have written this file"


def _versions_ahead(schema: Any, constant: Any) -> int:
    """Return the version of a schema minus that of a constant; 0 if it is of another name."""
    name, _, version = str(constant).rpartition("/")
    if not (name and version.isdecimal()):
        return 0
    match = re.fullmatch(rf"{re.escape(name)}/(\d{{1,9}})", schema) if isinstance(schema, str) else None
    return int(match[1]) - int(version) if match else 0


def _check_object(value: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise _Mismatch(f"must be an object, got {shown(value)}", field)


def _check_array(value: Any, field: str) -> None:
    if not isinstance(value, list):
        raise _Mismatch(f"must be an array, got {shown(value)}", field)


def _as_it_is(value: Any) -> Any:
    return value


def _foreign(value: Any, field: str) -> Any:
    """Return JSON of any types; a deep value, which Python could not print or compare, is a mismatch."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        containers = [outer for outer in level if isinstance(outer, dict | list)]
        if not containers:
            return value
        level = [
            inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    raise _Mismatch(f"must be nested at most {_MOST_LEVELS} levels deep", field)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def shown(value: Any) -> str:
    """Return a JSON value for an error message, truncated to 80 characters."""
    # repr needs the stack of a deep value, and the memory of a large one.
    represented = reprlib.repr if isinstance(value, dict | list) else repr
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else represented(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote a file."""

    name: Annotated[str, Key("name", "Name of the program.")] = "tokshard"
    version: Annotated[str, Key("version", "Version of the program.")] = __version__
