"""Objects of the library fastokens, which may begin to load before anything else of a tokenizer is known.

Its tables take longer to build than anything else at the start of a small job. This module imports little.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import Any

from tokshard.core.background import Background
from tokshard.errors import TokenizerError
from tokshard.tokenizer.derived import MIN_DEFINITION_BYTES, read_derived
from tokshard.tokenizer.files import read_file

Key = tuple[str, bool]
"""The SHA-256 of a definition, and whether its post-processor applies."""

_begun: dict[Key, Background[Any]] = {}


def subject(key: Key) -> tuple[Any, ...]:
    """Return the subject of what is kept of a definition for the fast encoder; see ``derived``."""
    return "fast encoder", *key


def begin(path: str, *, special_tokens: bool) -> None:
    """Begin to load a large definition in a thread, if an earlier run has prepared this very file.

    The process must not fork before :func:`load` has returned the object.
    """
    try:
        content = read_file(path)
    except TokenizerError:  # whoever needs the file raises it
        return
    if len(content) < MIN_DEFINITION_BYTES:
        return
    key = hashlib.sha256(content).hexdigest(), special_tokens
    kept = read_derived(subject(key), None)
    if kept is not None and kept[0]["refusal"] is None:
        _begun[key] = Background(partial(_load, kept[1]), daemon=False)


def load(text: bytes, key: Key) -> Any:
    """Return the object of a prepared definition, or the one that :func:`begin` has begun to load."""
    begun = _begun.pop(key, None)
    return _load(text) if begun is None else begun.result()


def forget() -> None:
    """Forget what :func:`begin` has begun and nobody has taken."""
    _begun.clear()


def _load(text: bytes) -> Any:
    # The worker processes run in parallel. The variable is read once, when the library is imported.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    import fastokens

    library = fastokens.Tokenizer.from_json_str(text.decode())
    library.encode_batch_flat([" "])  # its tables are built on first use
    return library
