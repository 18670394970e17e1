"""Tokenizer objects of the libraries `tokenizers`, `tiktoken` and `fastokens`.

Loading one can take more than a second, so :func:`load_ahead` lets a process load them before it gets its
first unit. Its helper thread has ended when it returns. :func:`loading_fast` loads that of fastokens while
the process loads that of tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Self

from tokshard.core.background import Background
from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer import huggingface_library, metaspace, structure
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.text.tokenizer.disputed import disputed
from tokshard.text.tokenizer.files import parse_object, parsing_once
from tokshard.text.tokenizer.huggingface_library import LoadedTokenizer
from tokshard.text.tokenizer.structure import FastEncoderRefusedError
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding


@dataclass(frozen=True, slots=True)
class FastLibrary:
    """A tokenizer loaded by fastokens, with properties that fastokens does not expose.

    Attributes:
        disputed: Which texts the reference encodes, because of their characters; None if there are none.
        prepends: Whether the Metaspace of the file prepends its mark to texts; None without Metaspace.
    """

    library: Any
    disputed: Callable[[str], bool] | None
    added_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    prepends: bool | None


# Objects loaded ahead and not used yet, or the thread that loads one, by the SHA-256 of the definition.
_fast_ahead: dict[tuple[str, bool], FastLibrary | Background[FastLibrary]] = {}
_reference_ahead: dict[str, LoadedTokenizer] = {}
# The last definition that was examined for the fast encoder: why it is refused, or what is loaded.
_examined: dict[tuple[str, bool], str | _Prepared] = {}
# The SHA-256 of the definition whose merges were checked last: parsing it again takes as long as that.
_checked: list[str] = []


def load_ahead(argument: str, *, special_tokens: bool = False, **settings: Any) -> None:
    """Load the objects of both libraries for a ``tokenizer.json`` before they are needed.

    Nothing is loaded for a tokenizer that the fast encoder does not support, or that only transformers reads:
    only the parent process starts transformers, once. Errors are ignored here; the later call of :func:`fast`
    or :func:`huggingface` raises them.

    Args:
        argument: The file or its directory.
        special_tokens: Whether the post-processor applies.
        settings: Further arguments of :func:`~tokshard.text.tokenizer.definition.load_tokenizer`.
    """
    with suppress(Exception):
        with parsing_once():
            tokenizer = load_tokenizer(argument, plain=True, **settings)
            if tokenizer.kind != "huggingface":
                return
            # fastokens may panic on unsupported definitions, and print that to stderr.
            prepared = _take_prepared(tokenizer, special_tokens=special_tokens)
        key = tokenizer.sha256, special_tokens

        def load_fast() -> None:
            with suppress(Exception):
                _fast_ahead[key] = prepared.load(str(tokenizer.path))

        # fastokens releases the GIL, tokenizers does not.
        thread = Thread(target=load_fast)
        thread.start()
        try:
            _reference_ahead[tokenizer.sha256] = huggingface(tokenizer)
        finally:
            thread.join()


@contextmanager
def loading_fast(tokenizer: Tokenizer, *, special_tokens: bool) -> Iterator[None]:
    """Load the fastokens object of a supported definition in a thread, for :func:`fast` in the block.

    The process must not fork in the block. A block within the block loads nothing.
    """
    key = tokenizer.sha256, special_tokens
    if key in _fast_ahead:
        yield
        return
    # Not in the thread: the reference, whose library keeps the GIL while it loads, may be loaded meanwhile.
    prepared = _take_prepared(tokenizer, special_tokens=special_tokens)
    _fast_ahead[key] = Background(partial(prepared.load, str(tokenizer.path)), daemon=False)
    try:
        yield
    finally:
        _fast_ahead.pop(key, None)


def fast(tokenizer: Tokenizer, *, special_tokens: bool) -> FastLibrary:
    """Return the fastokens object of a tokenizer with a supported definition."""
    key = tokenizer.sha256, special_tokens
    made = _fast_ahead.pop(key, None)
    if made is not None:
        return made.result() if isinstance(made, Background) else made
    return _take_prepared(tokenizer, special_tokens=special_tokens).load(str(tokenizer.path))


def fast_refusal(tokenizer: Tokenizer, *, special_tokens: bool) -> str | None:
    """Return which part of a ``tokenizer.json`` the fast encoder does not support; None if there is none."""
    examined = _examine(tokenizer, special_tokens=special_tokens)
    return examined if isinstance(examined, str) else None


def _take_prepared(tokenizer: Tokenizer, *, special_tokens: bool) -> _Prepared:
    examined = _examine(tokenizer, special_tokens=special_tokens)
    _examined.clear()  # as large as the definition
    if isinstance(examined, str):
        raise FastEncoderRefusedError(f"cannot encode with {tokenizer.path}: {examined}")
    _checked[:] = [tokenizer.sha256]  # definitions with a continuing subword prefix are refused
    return examined


def _examine(tokenizer: Tokenizer, *, special_tokens: bool) -> str | _Prepared:
    key = tokenizer.sha256, special_tokens
    if key not in _examined:
        definition = parse_object(tokenizer.definition, str(tokenizer.path))
        refusal = structure.refusal(definition, special_tokens=special_tokens)
        examined = refusal or _Prepared.of(definition, special_tokens=special_tokens)
        _examined.clear()
        _examined[key] = examined
    return _examined[key]


def huggingface(tokenizer: Tokenizer) -> LoadedTokenizer:
    """Return the tokenizer as loaded by ``tokenizers``, without truncation and padding."""
    if (made := _reference_ahead.pop(tokenizer.sha256, None)) is not None:
        return made
    path = str(tokenizer.path)
    if tokenizer.sha256 not in _checked:
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


@dataclass(frozen=True, slots=True)
class _Prepared:
    text: bytes  # the definition as fastokens reads it, JSON
    disputed: Callable[[str], bool] | None
    added_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    prepends: bool | None

    @classmethod
    def of(cls, definition: dict[str, Any], *, special_tokens: bool) -> Self:
        import orjson

        simplified = structure.simplified(definition, special_tokens=special_tokens)
        added_tokens = definition.get("added_tokens") or []
        return cls(
            # fastokens keeps the vocabulary in a tree: it is built faster in order.
            text=orjson.dumps(simplified, option=orjson.OPT_SORT_KEYS),
            disputed=disputed(simplified),
            added_ids=tuple(token["id"] for token in added_tokens),
            special_ids=tuple(token["id"] for token in added_tokens if token["special"]),
            prepends=metaspace.prepends(definition) if metaspace.is_metaspace(definition) else None,
        )

    def load(self, path: str) -> FastLibrary:
        # The worker processes run in parallel. The variable is read once, when the library is imported.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        try:
            with panics_as_errors(f"load {path}"):
                import fastokens

                library = fastokens.Tokenizer.from_json_str(self.text.decode())
                library.encode_batch_flat([" "])  # its tables are built on first use
        except ImportError as error:
            raise FastEncoderRefusedError(
                "fastokens, the library of the fast encoder, is not installed"
            ) from error
        except (ValueError, TokenizerError) as error:
            raise FastEncoderRefusedError(f"fastokens cannot load {path}: {error}") from error
        return FastLibrary(library, self.disputed, self.added_ids, self.special_ids, self.prepends)


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
    # The library aborts the process on some merges without the continuing subword prefix.
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
