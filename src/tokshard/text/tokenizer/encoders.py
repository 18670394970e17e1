"""The reference encoders, which define the tokens: one class for each library. The fast encoder must agree.

Only this module imports the library `tokenizers`. Lone surrogates cannot be encoded by any encoder
(``UnicodeEncodeError`` or ``TypeError`` for the whole batch); readers of a corpus reject them before.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer.definition import BYTES_EOD, BYTES_EOD_ID, Tokenizer
from tokshard.text.tokenizer.files import parse_object
from tokshard.text.tokenizer.huggingface import added_token_ids, declared_unknown_id
from tokshard.text.tokenizer.sentencepiece_files import sentencepiece_processor
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding, encoding_of_name
from tokshard.text.tokenizer.token_ids import parse_token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_PIECE_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""A space in the vocabulary of SentencePiece."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The tokens of some texts.

    Attributes:
        ids: All tokens, in order, uint32, shape ``[tokens]``.
        offsets: Where the tokens of each text begin and end in ``ids``, int64, shape ``[texts + 1]``.
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of a tokenizer: those that mark structure, and are not pieces of ordinary text.

    Attributes:
        names: The text of each, by id, ascending.
        unknown_id: The id of the token for unknown characters, which ordinary text may become; or None.
    """

    names: Mapping[int, str]
    unknown_id: int | None = None


class Encoder(Protocol):
    """Encodes texts. The same texts give the same tokens, whatever was encoded before."""

    name: str

    def encode(self, texts: list[str]) -> EncodedBatch:
        """Encode texts, each by itself. Raises TokenizerError if the library fails."""


def reference_encoder(tokenizer: Tokenizer, *, special_tokens: bool) -> Encoder:
    """Return the encoder that defines the tokens: the tokenizer's own library, on one thread.

    Truncation and padding that a tokenizer.json asks for are off. The caches of ``tokenizers`` hold at
    most 10,000 words (older reports of memory growth are about versions without that bound).

    Text that spells a special token becomes that token with tokenizer.json files, as in the library and in
    Megatron. With tiktoken it depends on the encoding, see :attr:`TiktokenEncoding.special_text`: it stays
    ordinary text with OpenAI's encodings (``encode_ordinary``) and Llama 3, as in the code of their authors.
    SentencePiece decides by its model (control symbols are never found in text), and the built-in tokenizer
    knows no special text. With ``special_tokens_in_text="split"`` in the identity, it is ordinary text in all
    of them.

    ``special_tokens``: whether the post-processor of a tokenizer.json applies (BOS and so on), or the ids
    that the identity of another tokenizer names are added to each text.

    Raises:
        TokenizerError: The library refuses the tokenizer.
        MissingExtraError: The library is not installed.
    """
    return _LIBRARIES[tokenizer.identity.kind](tokenizer, special_tokens=special_tokens)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens shown. Raises TokenizerError for unknown ids."""
    plain = [int(index) for index in ids]
    largest = tokenizer.identity.max_token_id
    if plain and not 0 <= min(plain) <= max(plain) <= largest:
        wrong = next(index for index in plain if not 0 <= index <= largest)
        raise TokenizerError(
            f"the token id {wrong} is not in the tokenizer, whose largest id is {largest}",
            hint="pass the tokenizer that the data was encoded with",
        )
    return _loaded(tokenizer).decode(plain)


def unknown_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> list[int]:
    """Return those of some ids that are in gaps of the vocabulary or beyond it, ascending.

    Example:
        >>> from tokshard.text.tokenizer.definition import load_tokenizer
        >>> unknown_ids(load_tokenizer(None), [300, 65, 256])
        [300]
    """
    known = range(tokenizer.identity.max_token_id + 1)
    return [index for index in sorted(set(ids)) if index not in known or not _loaded(tokenizer).has(index)]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token with its spaces, which decoders strip from the first piece.

    Raises:
        TokenizerError: The tokenizer has no such token.
    """
    text = decode(tokenizer, [token])
    piece = _loaded(tokenizer).piece(token)
    spaced = piece.replace(_PIECE_SPACE, " ")
    return spaced if spaced != piece and spaced.replace(" ", "") == text.replace(" ", "") else text


def special_tokens_of(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the special tokens of a tokenizer.

    They are the added tokens with ``"special": true`` of a ``tokenizer.json``, the special tokens of a
    tiktoken encoding, or the control symbols of a SentencePiece model.

    Raises:
        MissingExtraError: The library that reads a SentencePiece model is not installed.

    Example:
        >>> from tokshard.text.tokenizer.definition import load_tokenizer
        >>> special_tokens_of(load_tokenizer(None))
        SpecialTokens(names={256: '<|endoftext|>'}, unknown_id=None)
    """
    return _LIBRARIES[tokenizer.identity.kind].special_tokens(tokenizer)


@lru_cache(maxsize=1)
def _loaded(tokenizer: Tokenizer) -> _LoadedTokenizer:
    # Loading takes up to a second, and one tokenizer is used at a time.
    return _LIBRARIES[tokenizer.identity.kind](tokenizer)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of texts with some numbers of tokens, int64, shape ``[texts + 1]``."""
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@contextmanager
def panics_as_errors(action: str) -> Iterator[None]:
    """Convert a panic of Rust code, which is not an ``Exception``, to a TokenizerError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"cannot {action}: the library crashed: {error}") from None


# The libraries


class _LoadedTokenizer(ABC):
    """A tokenizer as its library loads it."""

    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        self._path = str(tokenizer.path)
        self._prefix = (special_tokens and tokenizer.identity.prefix_ids) or ()
        self._suffix = (special_tokens and tokenizer.identity.suffix_ids) or ()

    def encode(self, texts: list[str]) -> EncodedBatch:
        """See :class:`Encoder`."""
        import numpy as np

        with panics_as_errors("encode a text"):
            ids = [np.asarray(text_ids, np.uint32) for text_ids in self._ids(texts)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        if self._prefix or self._suffix:
            prefix = np.array(self._prefix, np.uint32)
            suffix = np.array(self._suffix, np.uint32)
            ids = [piece for text_ids in ids for piece in (prefix, text_ids, suffix)]
            lengths += len(prefix) + len(suffix)
        return EncodedBatch(np.concatenate([np.empty(0, np.uint32), *ids]), offsets_of(lengths))

    def _ids(self, texts: list[str]) -> Iterable[ArrayLike]:
        """Return the ids of each text, for :meth:`encode`."""
        raise NotImplementedError

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Return the text of ids up to the largest one of the vocabulary."""

    def has(self, _index: int) -> bool:
        """Return whether an id up to the largest one belongs to a token."""
        return True

    def piece(self, _index: int) -> str:
        """Return the name of a token in the vocabulary; empty if it does not show the spaces."""
        return ""

    @staticmethod
    def special_tokens(_tokenizer: Tokenizer) -> SpecialTokens:
        """See :func:`special_tokens_of`."""
        return SpecialTokens({})


class _Bytes(_LoadedTokenizer):
    def encode(self, texts: list[str]) -> EncodedBatch:
        import numpy as np

        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        # All at once: an array for each text takes three times as long.
        ids = np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32)
        return EncodedBatch(ids, offsets_of(lengths))

    def decode(self, ids: list[int]) -> str:
        pieces = (BYTES_EOD.encode() if index == BYTES_EOD_ID else bytes((index,)) for index in ids)
        return b"".join(pieces).decode("utf-8", "replace")

    @staticmethod
    def special_tokens(_tokenizer: Tokenizer) -> SpecialTokens:
        return SpecialTokens({BYTES_EOD_ID: BYTES_EOD})


class _TokenIds(_LoadedTokenizer):
    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        super().__init__(tokenizer, special_tokens=special_tokens)
        self._size = tokenizer.identity.vocab_size

    def _ids(self, texts: list[str]) -> Iterable[ArrayLike]:
        try:
            return [parse_token_ids(text, self._size) for text in texts]
        except ValueError as error:
            raise TokenizerError(str(error)) from None

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class _Tiktoken(_LoadedTokenizer):
    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        super().__init__(tokenizer, special_tokens=special_tokens)
        encoding = _encoding_of(tokenizer)
        is_found = encoding.special_text and not tokenizer.splits_special_tokens
        self._allowed: Any = "all" if is_found else set()
        try:
            import tiktoken
        except ImportError as error:
            raise MissingExtraError(f"the tiktoken tokenizer {self._path}", "tiktoken") from error
        with panics_as_errors(f"load {self._path}"):
            try:
                self._library = tiktoken.Encoding(
                    encoding.name,
                    pat_str=encoding.pattern,
                    mergeable_ranks=dict(encoding.ranks),
                    special_tokens=dict(encoding.special_tokens),
                )
            except (ValueError, OverflowError) as error:
                raise TokenizerError(f"tiktoken cannot load {self._path}: {error}") from error

    def _ids(self, texts: list[str]) -> Iterable[ArrayLike]:
        encode = self._library.encode_to_numpy
        return (encode(text, allowed_special=self._allowed, disallowed_special=()) for text in texts)

    def decode(self, ids: list[int]) -> str:
        replacement = "\N{REPLACEMENT CHARACTER}".encode()
        pieces = ((replacement if token is None else token) for token in map(self._token, ids))
        return b"".join(pieces).decode("utf-8", "replace")

    def has(self, index: int) -> bool:
        return self._token(index) is not None

    def _token(self, index: int) -> bytes | None:
        try:
            return self._library.decode_single_token_bytes(index)
        except KeyError:  # a gap in the vocabulary
            return None

    @staticmethod
    def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
        return SpecialTokens(_ascending(_encoding_of(tokenizer).special_tokens))


class _SentencePiece(_LoadedTokenizer):
    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        super().__init__(tokenizer, special_tokens=special_tokens)
        self._library = sentencepiece_processor(tokenizer.definition, self._path)

    def _ids(self, texts: list[str]) -> Iterable[ArrayLike]:
        ids: list[ArrayLike] = self._library.encode(texts, num_threads=1)
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(self._library.decode(ids))

    def piece(self, index: int) -> str:
        return str(self._library.id_to_piece(index))

    @staticmethod
    def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
        processor = sentencepiece_processor(tokenizer.definition, str(tokenizer.path))
        control = [index for index in range(processor.vocab_size()) if processor.is_control(index)]
        unknown = processor.unk_id()
        names = {index: processor.id_to_piece(index) for index in control}
        return SpecialTokens(names, unknown if unknown >= 0 else None)


class _HuggingFace(_LoadedTokenizer):
    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        super().__init__(tokenizer)
        self._special_tokens = special_tokens  # by the library, which has the post-processor
        self._library = _loaded_ahead.pop(tokenizer.sha256, None) or _load(tokenizer)
        if tokenizer.splits_special_tokens:
            self._library.encode_special_tokens = True

    def _ids(self, texts: list[str]) -> Iterable[ArrayLike]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=self._special_tokens)
        except Exception as error:
            if type(error) is not Exception:  # a text that cannot be encoded by any tokenizer
                raise
            raise TokenizerError(
                f"tokenizers cannot encode a text with {self._path}: {error}",
                hint="add its unknown token to the vocabulary, or fetch the file again if it is damaged",
            ) from error
        return (encoding.ids for encoding in encodings)

    def decode(self, ids: list[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=False))

    def has(self, index: int) -> bool:
        return self._library.id_to_token(index) is not None

    def piece(self, index: int) -> str:
        return self._library.id_to_token(index) or ""

    @staticmethod
    def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
        parsed = parse_object(tokenizer.definition, str(tokenizer.path))
        model = parsed["model"]
        added = parsed.get("added_tokens") or []
        added_ids = added_token_ids(model, [token["content"] for token in added])
        ids = model["vocab"] if isinstance(model["vocab"], dict) else {}  # Unigram: by id
        names = {token["content"] for token in added if token.get("special") and token["content"]}
        unknown = declared_unknown_id(model, {**ids, **added_ids})
        return SpecialTokens(_ascending({name: added_ids[name] for name in names}), unknown)


_LIBRARIES: Final[Mapping[str, type[_LoadedTokenizer]]] = {
    "bytes": _Bytes,
    "null": _TokenIds,
    "huggingface": _HuggingFace,
    "tiktoken": _Tiktoken,
    "sentencepiece": _SentencePiece,
}


def _encoding_of(tokenizer: Tokenizer) -> TiktokenEncoding:
    return encoding_of_name(tokenizer.definition, str(tokenizer.identity.name), str(tokenizer.path))


def _ascending(ids: Mapping[str, int]) -> dict[int, str]:
    return {index: name for name, index in sorted(ids.items(), key=lambda item: item[1])}


# Loading by tokenizers

# Objects loaded ahead and not used yet, by the SHA-256 of the definition.
_loaded_ahead: dict[str, Any] = {}
# The library aborts the process on some merges without the continuing subword prefix.
_HAS_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


def load_ahead(tokenizer: Tokenizer) -> None:
    """Load the object of ``tokenizers`` for the next encoder of the same definition."""
    _loaded_ahead[tokenizer.sha256] = _load(tokenizer)


def _load(tokenizer: Tokenizer) -> Any:
    path = str(tokenizer.path)
    if _HAS_SUBWORD_PREFIX.search(tokenizer.definition):
        _check_subword_prefix(parse_object(tokenizer.definition, path), path)
    return load_huggingface(tokenizer.definition, path)


def load_huggingface(content: bytes, path: str) -> Any:
    """Return the object of ``tokenizers`` for a ``tokenizer.json``, without truncation and padding.

    Raises:
        TokenizerError: The library refuses the content.
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
    return library


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
