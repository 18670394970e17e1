"""Tokenizer objects of the libraries `tokenizers` and `tiktoken`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer import huggingface_library
from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.files import parse_object
from tokshard.text.tokenizer.huggingface_library import LoadedTokenizer
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding

# Objects loaded ahead and not used yet, by the SHA-256 of the definition.
_loaded_ahead: dict[str, LoadedTokenizer] = {}
# The library aborts the process on some merges without the continuing subword prefix.
_HAS_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


def load_ahead(tokenizer: Tokenizer) -> None:
    """Load the object of ``tokenizers`` for the next call of :func:`huggingface`."""
    _loaded_ahead[tokenizer.sha256] = huggingface(tokenizer)


def huggingface(tokenizer: Tokenizer) -> LoadedTokenizer:
    """Return the tokenizer as loaded by ``tokenizers``, without truncation and padding."""
    if (made := _loaded_ahead.pop(tokenizer.sha256, None)) is not None:
        return made
    path = str(tokenizer.path)
    if _HAS_SUBWORD_PREFIX.search(tokenizer.definition):
        _check_subword_prefix(parse_object(tokenizer.definition, path), path)
    return load_huggingface(tokenizer.definition, path)


def tiktoken(encoding: TiktokenEncoding, path: str) -> Any:
    """Return the ``tiktoken`` object of an encoding, which was read from ``path``."""
    try:
        import tiktoken as library
    except ImportError as error:
        raise MissingExtraError(f"the tiktoken tokenizer {path}", "tiktoken") from error
    with panics_as_errors(f"load {path}"):
        try:
            return library.Encoding(
                encoding.name,
                pat_str=encoding.pattern,
                mergeable_ranks=dict(encoding.ranks),
                special_tokens=dict(encoding.special_tokens),
            )
        except (ValueError, OverflowError) as error:
            raise TokenizerError(f"tiktoken cannot load {path}: {error}") from error


@contextmanager
def panics_as_errors(action: str) -> Iterator[None]:
    """Convert a panic of Rust code, which is not an ``Exception``, to a TokenizerError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"cannot {action}: the library crashed: {error}") from None


def load_huggingface(content: bytes, path: str) -> LoadedTokenizer:
    """Load the content of a ``tokenizer.json``; raise TokenizerError if the library refuses it."""
    with panics_as_errors(f"load {path}"):
        try:
            return huggingface_library.load(content)
        except Exception as error:  # the library raises no specific class
            raise TokenizerError(
                f"tokenizers cannot load {path}: {error}",
                hint="fetch the file again if it is damaged, or install the newest tokenizers below 1",
            ) from error


def _check_subword_prefix(definition: dict[str, Any], path: str) -> None:
    model = definition["model"]
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or not str(pair[-1]).startswith(prefix):
            raise TokenizerError(
                f"merge {merge!r} of {path} must begin with the continuing subword prefix {prefix!r}",
                hint="fetch the file again: it is damaged",
            )
