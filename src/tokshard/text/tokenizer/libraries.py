"""Tokenizer objects of the libraries `tokenizers`, which only this module imports, and `tiktoken`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.files import parse_object
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LoadedTokenizer:
    """A tokenizer loaded by the library, without truncation and padding."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def split_special_tokens(self) -> None:
        """Encode text that spells a special token as ordinary text from now on."""
        self._library.encode_special_tokens = True

    def encode(
        self, texts: list[str], *, special_tokens: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all texts, in order, and the number of ids of each text.

        Runs on one thread. ``special_tokens``: whether the post-processor applies.
        """
        import numpy as np

        encodings = self._library.encode_batch_fast(texts, add_special_tokens=special_tokens)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        return str(self._library.decode(ids, skip_special_tokens=False))

    def token(self, token_id: int) -> str | None:
        """Return the name of a token in the vocabulary; None if there is no such token."""
        found: str | None = self._library.id_to_token(token_id)
        return found

    def pieces(self, text: str) -> list[str]:
        """Return the normalized pieces of a text that the model gets, added tokens left out.

        Only for a tokenizer with :data:`~tokshard.text.tokenizer.huggingface.EMPTY_MODEL`.
        """
        library, pieces = self._library, []
        for between in self._between_added_tokens(text):
            normalized = library.normalizer.normalize_str(between) if library.normalizer else between
            split = library.pre_tokenizer.pre_tokenize_str(normalized) if library.pre_tokenizer else None
            pieces += [normalized] if split is None else [piece for piece, _ in split]
        return pieces

    def _between_added_tokens(self, text: str) -> Iterator[str]:
        end = 0
        # With a model, its tokens after a dropped character have wrong offsets.
        for begin, stop in self._library.encode(text, add_special_tokens=False).offsets:
            yield text[end:begin]
            end = stop
        yield text[end:]


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
    """Load the content of a ``tokenizer.json``; raise TokenizerError if the library refuses it.

    Example:
        >>> definition = b'{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"}}'
        >>> ids, lengths = load_huggingface(definition, "a.json").encode(["a", "b"], special_tokens=False)
        >>> ids.tolist(), lengths.tolist()
        ([0, 1], [1, 1])
    """
    # The worker processes run in parallel: threads in each would compete with them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with panics_as_errors(f"load {path}"):
        try:
            import tokenizers

            library = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises no specific class
            raise TokenizerError(
                f"tokenizers cannot load {path}: {error}",
                hint="fetch the file again if it is damaged, or install the newest tokenizers below 1",
            ) from error
    library.no_truncation()
    library.no_padding()
    return LoadedTokenizer(library)


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
