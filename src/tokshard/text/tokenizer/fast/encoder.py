"""The fast encoder: a tokenizer.json loaded by the library `fastokens`, which only this module imports.

Loading can take more than a second. :func:`load_ahead` lets a process load the objects of both libraries
before it gets its first unit; its helper thread has ended when it returns. :func:`loading_fast` loads that of
fastokens while the process loads that of tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tokshard.core.background import Background
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer import encoders
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.text.tokenizer.encoders import EncodedBatch, Encoder, offsets_of, reference_encoder
from tokshard.text.tokenizer.fast import metaspace, structure
from tokshard.text.tokenizer.files import parse_object, parsing_once

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class FastEncoderRefusedError(TokenizerError):
    """The fast encoder must not, or cannot, encode with this tokenizer; the reference can."""


def fast_encoder_refusal(tokenizer: Tokenizer, *, special_tokens: bool) -> str | None:
    """Return why the fast encoder does not support a tokenizer, or None if it does.

    The tokenizer's file is parsed, no library is loaded; see :func:`fast_encoder` for the arguments.
    """
    examined = _examined(
        tokenizer.identity.kind, tokenizer.definition, str(tokenizer.path), special_tokens=special_tokens
    )
    return examined if isinstance(examined, str) else None


def fast_encoder(tokenizer: Tokenizer, *, special_tokens: bool) -> Encoder:
    """Return the fast encoder for a tokenizer, on one thread.

    Raises:
        FastEncoderRefusedError: The tokenizer has parts that are not known to be equal, fastokens refuses
            it, or fastokens is not installed.
    """
    ahead = _loaded_ahead.pop((tokenizer.sha256, special_tokens), None)
    loaded = _loading(tokenizer, special_tokens=special_tokens)() if ahead is None else ahead.result()
    return _FastEncoder(tokenizer, *loaded, special_tokens=special_tokens)


def has_fast_library() -> bool:
    """Return whether fastokens is installed."""
    return find_spec("fastokens") is not None


def import_library() -> ModuleType:
    """Import fastokens, for one thread in each process: worker processes run in parallel."""
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # read once, by the import
    import fastokens

    module: ModuleType = fastokens
    return module


def load_ahead(argument: str, *, special_tokens: bool = False, **settings: Any) -> None:
    """Load the objects of both libraries for a ``tokenizer.json`` before they are needed.

    Nothing is loaded for a tokenizer that the fast encoder does not support, or that only transformers reads:
    only the parent process starts transformers, once. Errors are ignored here; :func:`fast_encoder` and
    :func:`~tokshard.text.tokenizer.encoders.reference_encoder` raise them later.

    Args:
        argument: The file or its directory.
        special_tokens: Whether the post-processor applies.
        settings: Further arguments of :func:`~tokshard.text.tokenizer.definition.load_tokenizer`.
    """
    with suppress(Exception):
        with parsing_once():
            tokenizer = load_tokenizer(argument, plain=True, **settings)
            if tokenizer.identity.kind != "huggingface":
                return
            # fastokens may panic on unsupported definitions, and print that to stderr.
            load = _loading(tokenizer, special_tokens=special_tokens)
        # fastokens releases the GIL, tokenizers does not.
        with ThreadPoolExecutor(1) as thread:
            _loaded_ahead[tokenizer.sha256, special_tokens] = thread.submit(load)
            encoders.load_ahead(tokenizer)


@contextmanager
def loading_fast(tokenizer: Tokenizer, *, special_tokens: bool) -> Iterator[None]:
    """Load the fastokens object of a supported definition in a thread, for :func:`fast_encoder` in the block.

    The process must not fork in the block. A block within the block loads nothing.
    """
    key = tokenizer.sha256, special_tokens
    if key in _loaded_ahead:
        yield
        return
    # Not in the thread: the reference, whose library keeps the GIL while it loads, may be loading there.
    load = _loading(tokenizer, special_tokens=special_tokens)
    _loaded_ahead[key] = Background(load, daemon=False)
    try:
        yield
    finally:
        _loaded_ahead.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Exceptions:
    """Texts that the reference encodes, because fastokens may encode them differently.

    Attributes:
        disputed: Whether a text is one of them by its characters; None if no text is.
        counted_ids: Ids of added tokens. A text is an exception unless it has as many of them as the empty
            text.
        special_ids: The same if text that spells a special token is split.
    """

    disputed: Callable[[str], bool] | None
    counted_ids: tuple[int, ...]
    special_ids: tuple[int, ...]


_Loaded = tuple[Any, _Exceptions]  # the tokenizer of fastokens
# Objects loaded ahead and not used yet, by the SHA-256 of the definition and `special_tokens`.
_loaded_ahead: dict[tuple[str, bool], Future[_Loaded]] = {}


@lru_cache(maxsize=1)  # the choice of the encoder and its loading need the same
def _examined(
    kind: str, definition: bytes, path: str, *, special_tokens: bool
) -> str | tuple[bytes, _Exceptions]:
    """Return why the fast encoder does not support a definition, or the JSON that fastokens reads for it."""
    import orjson

    if kind != "huggingface":
        return f"the fast encoder does not support {kind} tokenizers"
    parsed = parse_object(definition, path)
    if refusal := structure.refusal(parsed, special_tokens=special_tokens):
        return f"the fast encoder does not support {refusal}"
    simplified = structure.simplified(parsed, special_tokens=special_tokens)
    added_tokens = parsed.get("added_tokens") or []
    exceptions = _Exceptions(
        structure.disputed(parsed),
        tuple(token["id"] for token in added_tokens if metaspace.is_metaspace(parsed)),
        tuple(token["id"] for token in added_tokens if token["special"]),
    )
    # fastokens keeps the vocabulary in a tree: it is built faster in order.
    return orjson.dumps(simplified, option=orjson.OPT_SORT_KEYS), exceptions


def _loading(tokenizer: Tokenizer, *, special_tokens: bool) -> Callable[[], _Loaded]:
    """Return the call that loads a tokenizer, whose definition has been examined."""
    path = str(tokenizer.path)
    examined = _examined(tokenizer.identity.kind, tokenizer.definition, path, special_tokens=special_tokens)
    _examined.cache_clear()  # as large as the definition
    if isinstance(examined, str):
        place = tokenizer.path or "the built-in tokenizer"
        raise FastEncoderRefusedError(f"cannot encode with {place}: {examined}")
    return partial(_load, *examined, path)


def _load(text: bytes, exceptions: _Exceptions, path: str) -> _Loaded:
    try:
        with encoders.panics_as_errors(f"load {path}"):
            library = import_library().Tokenizer.from_json_str(text.decode())
            library.encode_batch_flat([" "])  # its tables are built on first use
    except ImportError as error:
        raise FastEncoderRefusedError(
            "fastokens, the library of the fast encoder, is not installed"
        ) from error
    except (ValueError, TokenizerError) as error:
        raise FastEncoderRefusedError(f"fastokens cannot load {path}: {error}") from error
    return library, exceptions


class _FastEncoder:
    name = "fast"

    def __init__(
        self, tokenizer: Tokenizer, library: Any, exceptions: _Exceptions, *, special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._library = library
        self._special_tokens = special_tokens
        self._reference: Encoder | None = None
        self._disputed = exceptions.disputed
        split_ids = exceptions.special_ids if tokenizer.splits_special_tokens else ()
        counted = [ids for ids in (exceptions.counted_ids, split_ids) if ids]
        self._tables = [_table(ids, tokenizer.identity.max_token_id) for ids in counted]
        empty = self._encode_fast([""])
        self._of_template = [int(counts_of(empty, table)[0]) for table in self._tables]

    def encode(self, texts: list[str]) -> EncodedBatch:
        encoded = self._encode_fast(texts)
        outside = self._outside_domain(texts, encoded)
        if not len(outside):
            return encoded
        if self._reference is None:
            self._reference = reference_encoder(self._tokenizer, special_tokens=self._special_tokens)
        return _spliced(encoded, outside, self._reference.encode([texts[index] for index in outside]))

    def _encode_fast(self, texts: list[str]) -> EncodedBatch:
        import numpy as np

        with encoders.panics_as_errors("encode a text"):
            ids, offsets = self._library.encode_batch_flat(texts, add_special_tokens=self._special_tokens)
        return EncodedBatch(np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64))

    def _outside_domain(self, texts: list[str], encoded: EncodedBatch) -> NDArray[np.int64]:
        import numpy as np

        outside = np.zeros(len(texts), np.bool_)
        if self._disputed is not None:
            outside |= np.fromiter(map(self._disputed, texts), np.bool_, len(texts))
        for table, count in zip(self._tables, self._of_template, strict=True):
            outside |= counts_of(encoded, table) != count
        return np.flatnonzero(outside)


def counts_of(encoded: EncodedBatch, table: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of tokens of each text that are in a set, int64, shape ``[texts]``.

    ``table``: whether each id is in the set, bool, indexed by id.
    """
    import numpy as np

    positions = np.flatnonzero(table[encoded.ids])
    texts = np.searchsorted(encoded.offsets, positions, side="right") - 1
    return np.bincount(texts, minlength=len(encoded.offsets) - 1)


def _table(ids: Sequence[int], largest: int) -> NDArray[np.bool_]:
    import numpy as np

    table = np.zeros(largest + 1, np.bool_)
    table[list(ids)] = True
    return table


def _spliced(encoded: EncodedBatch, indices: NDArray[np.int64], replacement: EncodedBatch) -> EncodedBatch:
    import numpy as np

    lengths = np.diff(encoded.offsets)
    lengths[indices] = np.diff(replacement.offsets)
    pieces = []
    begin = 0
    for position, index in enumerate(indices):
        pieces.append(encoded.ids[begin : encoded.offsets[index]])
        pieces.append(replacement.ids[replacement.offsets[position] : replacement.offsets[position + 1]])
        begin = encoded.offsets[index + 1]
    pieces.append(encoded.ids[begin:])
    return EncodedBatch(np.concatenate(pieces), offsets_of(lengths))
