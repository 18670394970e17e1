"""JSON Schemas (2020-12) of the documents that the codec reads and writes."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import tokshard
from tokshard.core.codec import SCHEMA_FIELD, Document, Key, constants_of, fields_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def documents() -> dict[str, type[Document]]:
    """Return every document class of tokshard by its schema name; imports all modules.

    Raises:
        TypeError: Two classes have one schema name.
    """
    for module in pkgutil.walk_packages(tokshard.__path__, "tokshard."):
        importlib.import_module(module.name)
    found: dict[str, type[Document]] = {}
    for cls in _subclasses(Document):
        # With slots, a dataclass is a copy of the class as written, and both are subclasses.
        cls = getattr(sys.modules[cls.__module__], cls.__name__, cls)  # noqa: PLW2901
        if not cls.__dict__.get("SCHEMA", "").startswith("tokshard."):
            continue  # no schema of its own, or a class of another program
        if found.setdefault(cls.SCHEMA, cls) is not cls:
            raise TypeError(f"{cls} and {found[cls.SCHEMA]} have the same schema name")
    return dict(sorted(found.items()))


def _subclasses(cls: type[Document]) -> Iterator[type[Document]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


_CONSTANTS = {SCHEMA_FIELD: "Name and version of this schema."}


def file_name(schema: str) -> str:
    """Return the file name of a schema.

    Example:
        >>> file_name("tokshard.dataset/1")
        'dataset-1.json'
    """
    return schema.removeprefix("tokshard.").replace("/", "-") + ".json"


def json_schema(cls: type[Document]) -> dict[str, Any]:
    """Return the JSON Schema of a document class, with the schemas of its parts in ``$defs``."""
    parts: dict[str, Any] = {}
    schema = _record(cls, parts)
    return {
        "$schema": DIALECT,
        "title": cls.SCHEMA,
        "description": _summary(cls),
        **schema,
        **({"$defs": dict(sorted(parts.items()))} if parts else {}),
    }


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().split("\n", 1)[0]


def _record(cls: Any, parts: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {
        name: {"description": _CONSTANTS.get(name, "Discriminator of the union."), "const": value}
        for name, value in constants_of(cls)
    }
    required = list(properties)
    for field in fields_of(cls):
        properties[field.key.name] = {
            "description": field.key.description,
            **_schema(field.type, field.key, parts),
        }
        if not field.key.omit_none:
            required.append(field.key.name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema(hint: Any, key: Key | None, parts: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - as in the codec
    origin, items = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _schema(items[0], key, parts)
    if hint is Any:
        return {}
    if hint in _TYPES:
        return _scalar(hint, key)
    if origin is Literal:
        return {"enum": list(items)}
    if origin in {Union, types.UnionType}:
        return _union(items, key, parts)
    if origin is tuple:
        if len(items) == 2 and items[1] is Ellipsis:
            return {"type": "array", "items": _schema(items[0], key, parts)}
        return {
            "type": "array",
            "prefixItems": [_schema(item, key, parts) for item in items],
            "items": False,
            "minItems": len(items),
        }
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(items[1], key, parts)}
    if hasattr(hint, "JSON_TYPE"):
        return _schema(hint.JSON_TYPE, None, parts)
    if hint.__name__ not in parts:
        parts[hint.__name__] = {}  # a part may contain itself
        parts[hint.__name__] = {"description": _summary(hint), **_record(hint, parts)}
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _scalar(kind: type, key: Key | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[kind]}
    if key is None:
        return schema
    if kind is str:
        return {**schema, **({"pattern": f"^(?:{key.pattern})$"} if key.pattern else {})}
    limits = {"minimum": key.minimum, "maximum": key.maximum}
    return {**schema, **{name: limit for name, limit in limits.items() if limit is not None}}


def _union(items: tuple[Any, ...], key: Key | None, parts: dict[str, Any]) -> dict[str, Any]:
    others = [item for item in items if item is not types.NoneType]
    choices = [_schema(item, key, parts) for item in others]
    if len(others) < len(items):
        choices.append({"type": "null"})
    return {"anyOf": choices}
