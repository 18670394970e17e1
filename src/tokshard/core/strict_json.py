"""Strict JSON: limits on size, structure and numbers; no duplicate keys, NaN or invalid UTF-8.

Manifests and plans may be truncated, edited or hostile. Every defect is an
:class:`~tokshard.errors.IntegrityError`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from tokshard.core.json_limits import JsonLimits
from tokshard.errors import IntegrityError

MAX_JSON_BYTES = 64 << 20
# A file of 64 MiB that this program writes, which is indented, has less of both.
JSON_LIMITS = JsonLimits(containers=1_000_000, values=5_000_000, depth=32)


_MAX_DIGITS = 40


def dump_json(value: Any) -> bytes:
    r"""Return ``value`` as indented UTF-8 JSON with a final newline, keys in their given order.

    File names may contain bytes that are not UTF-8; Python represents them as lone surrogates, which are
    written as the escapes ``\udcXX`` and restored on reading.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def json_excess(content: bytes) -> str | None:
    """Return the limit that the bytes of a JSON file exceed, as the end of a sentence; None if they do not.

    Example:
        >>> json_excess(b"[" * 33)
        'must be nested at most 32 levels deep'
    """
    if len(content) > MAX_JSON_BYTES:
        return f"must have at most {MAX_JSON_BYTES:,} bytes, got {len(content):,}"
    excess = JSON_LIMITS.excess(content)
    return f"must {excess.message}" if excess else None


def parse_json_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Args:
        content: The bytes of the file, at most 64 MiB.
        path: The file's name, for errors.

    Raises:
        IntegrityError: The content is too large, has too many values or levels, is not UTF-8 or not a JSON
            object, or repeats a key.
    """
    if excess := json_excess(content):
        raise IntegrityError(f"{path} {excess}", path=path)
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
