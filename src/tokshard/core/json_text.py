"""Strict JSON: from the bytes of a file to objects, arrays, texts and numbers, and back.

What Python's parser lets pass is refused: a key twice, NaN and infinity, and sizes that no file of ours has.
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

from tokshard.errors import IntegrityError, UsageError

MAX_JSON_BYTES = 64 << 20
"""Of a file. A parser needs up to 50 bytes of memory for each byte of nested arrays: 3.2 GB for this size."""

_MAX_DIGITS = 40
_SHOWN_CHARACTERS = 80


def parse_json_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Raises:
        IntegrityError: The content has more than 64 MiB, is not UTF-8 or not a JSON object, is nested too
            deeply, repeats a key, or has a number that is not finite.
    """
    if len(content) > MAX_JSON_BYTES:
        raise IntegrityError(f"{path} must have at most {MAX_JSON_BYTES:,} bytes, got more", path=path)
    try:
        text = content.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
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


def dump_json(value: Any) -> bytes:
    r"""Return ``value`` as indented UTF-8 JSON with a final newline, keys in their given order.

    Bytes of file names that are not UTF-8 are lone surrogates in Python, and the escapes ``\udcXX`` in JSON.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def dump_readable_json(value: Any, path: str, *, hint: str) -> bytes:
    """Return ``value`` as :func:`dump_json` does, if it is small enough for :func:`parse_json_object`.

    Raises:
        UsageError: The result is larger than 64 MiB.
    """
    content = dump_json(value)
    if len(content) > MAX_JSON_BYTES:
        raise UsageError(
            f"{path} must have at most {MAX_JSON_BYTES:,} bytes, got {len(content):,}", hint=hint
        )
    return content


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Collect no garbage while JSON is read: a visit of millions of values can take a minute.

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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {name[:_SHOWN_CHARACTERS]!r}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]} is out of range")
    return number


def _bounded(digits: str) -> int:
    # We never write larger integers, and numpy and floats cannot hold them.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{digits[:_MAX_DIGITS]}... is out of range")
    return int(digits)
