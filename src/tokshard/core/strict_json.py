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

    The names of files may hold bytes that are not UTF-8; Python has lone surrogates for them, which
    become the escapes ``\udcXX`` and come back as they were.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def parse_json_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Args:
        content: The bytes of the file, at most 64 MiB.
        path: The file's name, for errors.

    Raises:
        IntegrityError: It is too large, too deep, not UTF-8, not JSON, not an object, or has a key twice.
    """
    if len(content) > MAX_JSON_BYTES:
        raise IntegrityError(f"{path} is larger than {MAX_JSON_BYTES} bytes", path=path)
    if _depth(content) > MAX_JSON_DEPTH:
        raise IntegrityError(f"{path} is nested deeper than {MAX_JSON_DEPTH} levels", path=path)
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
            raise ValueError(f"the key {name!r} occurs twice")
        result[name] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _bounded(digits: str) -> int:
    # Nothing that we write counts further, and numpy and floats end somewhere beyond.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{digits[:_MAX_DIGITS]}... is too large a number")
    return int(digits)
