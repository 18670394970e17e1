"""Strict JSON: a limit in bytes, a limit on numbers, no duplicate keys, NaN or invalid UTF-8.

Manifests and plans may be truncated, edited or hostile. Every defect is an
:class:`~tokshard.errors.IntegrityError`.
"""

from __future__ import annotations

import gc
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any, NoReturn

from tokshard.errors import IntegrityError

# A parser needs up to 50 bytes of memory for each byte of nested arrays: 3.2 GB for a file of this size.
MAX_JSON_BYTES = 64 << 20

_MAX_DIGITS = 40
_SHOWN_CHARACTERS = 80


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
        IntegrityError: The content is too large, is nested too deeply, is not UTF-8 or not a JSON object, or
            repeats a key.
    """
    if len(content) > MAX_JSON_BYTES:
        raise IntegrityError(f"{path} must have at most {MAX_JSON_BYTES:,} bytes, got more", path=path)
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except RecursionError as error:
        raise IntegrityError(f"{path} is nested too deeply", path=path) from error
    except ValueError as error:
        raise IntegrityError(f"{path} is not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path} is not a JSON object", path=path)
    return value


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Collect no garbage while JSON is parsed and decoded: a visit of millions of values can take a minute.

    An error that ends the block keeps no values alive.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    except Exception as error:
        for chained in filter(None, (error, error.__context__)):
            clear_frames(chained.__traceback__)
        raise
    finally:
        if collects:
            gc.enable()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {name[:_SHOWN_CHARACTERS]!r}")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]} is out of range")
    return number


def _bounded(digits: str) -> int:
    # We never write larger integers, and numpy and floats cannot hold them.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{digits[:_MAX_DIGITS]}... is out of range")
    return int(digits)
