"""Strict JSON: limits on size, depth and numbers; no duplicate keys, NaN or invalid UTF-8.

Manifests and plans may be truncated, edited or hostile. Every defect is an
:class:`~tokshard.errors.IntegrityError`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from tokshard.errors import IntegrityError

MAX_JSON_BYTES = 64 << 20
MAX_JSON_DEPTH = 32
_MAX_DIGITS = 40


def dump_json(value: Any) -> bytes:
    r"""Return ``value`` as indented UTF-8 JSON with a final newline, keys in their given order.

    File names may contain bytes that are not UTF-8; Python represents them as lone surrogates, which are
    written as the escapes ``\udcXX`` and restored on reading.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def parse_json_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Args:
        content: The bytes of the file, at most 64 MiB.
        path: The file's name, for errors.

    Raises:
        IntegrityError: The content is too large, too deep, not UTF-8 or not a JSON object, or repeats a key.
    """
    if len(content) > MAX_JSON_BYTES:
        raise IntegrityError(
            f"{path} must have at most {MAX_JSON_BYTES:,} bytes, got {len(content):,}", path=path
        )
    if _depth(content) > MAX_JSON_DEPTH:
        raise IntegrityError(f"{path} must be nested at most {MAX_JSON_DEPTH} levels deep", path=path)
    try:
        text = content.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path} is not a JSON object", path=path)
    return value


def _depth(content: bytes) -> int:
    # Counted without parsing, which would recurse.
    depth = deepest = 0
    for character in _STRING.sub(b"", content).translate(None, delete=_NOT_BRACKETS):
        depth += 1 if character in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


# Possessive, and with an optional end, so that no content takes more than linear time or any memory: a
# string without an end is taken for the rest of the file, where the parser stops, too.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"duplicate key {name!r}")
        result[name] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


def _bounded(digits: str) -> int:
    # We never write larger integers, and numpy and floats cannot hold them.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{digits[:_MAX_DIGITS]}... is out of range")
    return int(digits)
