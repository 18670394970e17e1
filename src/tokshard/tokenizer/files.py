"""Reading of a tokenizer's files."""

from __future__ import annotations

import gc
import os
import stat
from typing import Any, Final

from tokshard.errors import TokenizerError

MAX_DEFINITION_BYTES: Final = 512 << 20  # the largest published file has 35 MB; more is a wrong file


def read_file(path: str) -> bytes:
    """Return the content of a tokenizer's file; raise TokenizerError if it cannot be read."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise TokenizerError(f"the tokenizer {path} is not a file")
        if status.st_size > MAX_DEFINITION_BYTES:
            raise TokenizerError(
                f"the tokenizer {path} has {status.st_size} bytes, more than {MAX_DEFINITION_BYTES}",
                hint="pass a tokenizer.json, NAME.tiktoken or NAME.model",
            )
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise TokenizerError(
            f"cannot read the tokenizer {path!r}: {getattr(error, 'strerror', error)}",
            hint="pass a tokenizer.json, its directory, NAME.tiktoken, NAME.model or hf:ID",
        ) from error


def parse_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object of a tokenizer's files; raise TokenizerError if it is none."""
    import orjson

    # Half of the time would go to collecting garbage among the small lists of merges, which are none.
    collects = gc.isenabled()
    gc.disable()
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TokenizerError(
            f"the tokenizer's file {path} is not JSON: {error}",
            hint="pass a tokenizer.json, its directory, NAME.tiktoken or NAME.model",
        ) from error
    finally:
        if collects:
            gc.enable()
    if not isinstance(value, dict):
        raise TokenizerError(f"the tokenizer's file {path} is not a JSON object")
    return value
