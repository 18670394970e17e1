"""Reading of a tokenizer's files."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from tokshard.core.json_text import paused_garbage_collection
from tokshard.errors import TokenizerError
from tokshard.storage.reading import open_file

ACCEPTED_FILES: Final = (
    "a tokenizer.json, its directory, vocab.json with merges.txt, NAME.tiktoken, NAME.model or "
    "hf:ORGANIZATION/NAME"
)
"""What a tokenizer can be loaded from, for hints; docs/reference/tokenizers.md has the details."""

# The largest published file has 35 MB. A parser needs up to 3.2 GB for nested arrays of 64 MiB.
MAX_DEFINITION_BYTES: Final = 64 << 20


def read_file(path: str) -> bytes:
    """Return the content of a tokenizer's file; raise TokenizerError if it cannot be read."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise TokenizerError(f"the tokenizer {path} is not a file", hint=f"pass {ACCEPTED_FILES}")
        if status.st_size > MAX_DEFINITION_BYTES:
            raise TokenizerError(
                f"the tokenizer {path} has {status.st_size} bytes, more than {MAX_DEFINITION_BYTES}",
                hint=f"pass {ACCEPTED_FILES}",
            )
        with open_file(path) as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise TokenizerError(
            f"cannot read the tokenizer {path!r}: {getattr(error, 'strerror', error)}",
            hint=f"pass {ACCEPTED_FILES}",
        ) from error


def is_model_file(path: str) -> bool:
    """Return whether a file has a name like ``tokenizer.model`` or ``tokenizer.model.v3``."""
    return re.search(r"\.model(\.v\w+)?$", path) is not None


def read_object(path: str) -> dict[str, Any]:
    """Return the JSON object in a file beside a tokenizer; raise TokenizerError if it is none."""
    hint = "correct the file, or pass the tokenizer's file in a directory of its own"
    try:
        # Not orjson: files that transformers writes may contain Infinity and NaN, which only Python reads.
        content = read_file(path)
        with paused_garbage_collection():
            parsed = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"the tokenizer's file {path} is not JSON: {error}", hint=hint) from error
    if not isinstance(parsed, dict):
        raise TokenizerError(f"the tokenizer's file {path} is not a JSON object", hint=hint)
    return parsed


def token_text(token: Any) -> str | None:
    """Return the text of a token, as the files beside a tokenizer name it; None if it is none."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def parse_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object of a tokenizer's files; raise TokenizerError if it is none."""
    return as_object(parse_json(content, path), path)


def as_object(value: Any, path: str) -> dict[str, Any]:
    """Return the parsed content of a file; raise TokenizerError if it is not a JSON object."""
    if not isinstance(value, dict):
        raise TokenizerError(f"the tokenizer's file {path} is not a JSON object")
    return value


_last_parsed: ContextVar[list[tuple[bytes, Any]] | None] = ContextVar("last_parsed", default=None)


@contextmanager
def parsing_once() -> Iterator[None]:
    """Parse the same content only once in the block (150,000 tokens: 0.1 s); nobody may change the result."""
    token = _last_parsed.set([])
    try:
        yield
    finally:
        _last_parsed.reset(token)


def parse_json(content: bytes, path: str) -> Any:
    """Parse a tokenizer's file; raise TokenizerError if it is not JSON."""
    last = _last_parsed.get()
    if last and last[0][0] is content:
        return last[0][1]
    parsed = _parse_json(content, path)
    if last is not None:
        last[:] = [(content, parsed)]
    return parsed


def _parse_json(content: bytes, path: str) -> Any:
    import orjson

    try:
        with paused_garbage_collection():
            return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TokenizerError(
            f"the tokenizer's file {path} is not JSON: {error}",
            hint=f"pass {ACCEPTED_FILES}",
        ) from error
