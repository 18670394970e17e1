"""The reference encoder, which defines the tokens: text in, token ids out. The fast encoder must agree.

Lone surrogates cannot be encoded by any encoder (``UnicodeEncodeError`` or ``TypeError`` for the whole
batch); readers of a corpus reject them before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from tokshard.errors import TokenizerError
from tokshard.text.tokenizer import libraries
from tokshard.text.tokenizer.definition import BYTES_EOD, BYTES_EOD_ID, Tokenizer
from tokshard.text.tokenizer.sentencepiece_files import sentencepiece_processor
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding, encoding_of_name
from tokshard.text.tokenizer.token_ids import parse_token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The tokens of some texts.

    Attributes:
        ids: All tokens, in order, uint32, shape ``[tokens]``.
        offsets: Where the tokens of each text begin and end in ``ids``, int64, shape ``[texts + 1]``.
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


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
    match tokenizer.kind:
        case "bytes":
            return _BytesEncoder()
        case "null":
            return _NullEncoder(tokenizer.vocab_size)
        case "huggingface":
            return _HuggingFaceEncoder(tokenizer, special_tokens=special_tokens)
        case "tiktoken":
            return _TiktokenEncoder(tokenizer, special_tokens=special_tokens)
        case "sentencepiece":
            return _SentencePieceEncoder(tokenizer, special_tokens=special_tokens)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens shown. Raises TokenizerError for unknown ids."""
    plain = [int(index) for index in ids]
    if plain and not 0 <= min(plain) <= max(plain) <= tokenizer.max_token_id:
        wrong = next(index for index in plain if not 0 <= index <= tokenizer.max_token_id)
        raise TokenizerError(
            f"the token id {wrong} is not in the tokenizer, whose largest id is {tokenizer.max_token_id}",
            hint="pass the tokenizer that the data was encoded with",
        )
    if tokenizer.kind == "null":
        return " ".join(map(str, plain))
    if tokenizer.kind == "bytes":
        pieces = (BYTES_EOD.encode() if index == BYTES_EOD_ID else bytes((index,)) for index in plain)
        return b"".join(pieces).decode("utf-8", "replace")
    library = _library(tokenizer)
    if tokenizer.kind in {"huggingface", "sentencepiece"}:
        return str(library.decode(plain))
    return b"".join(_tiktoken_pieces(library, plain)).decode("utf-8", "replace")


def unknown_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> list[int]:
    """Return those of some ids that are in gaps of the vocabulary or beyond it, ascending.

    Example:
        >>> from tokshard.text.tokenizer.definition import load_tokenizer
        >>> unknown_ids(load_tokenizer(None), [300, 65, 256])
        [300]
    """
    return [index for index in sorted(set(ids)) if not _has_token(tokenizer, index)]


def _has_token(tokenizer: Tokenizer, index: int) -> bool:
    if not 0 <= index <= tokenizer.max_token_id:
        return False
    if tokenizer.kind == "huggingface":
        return _library(tokenizer).token(index) is not None
    if tokenizer.kind == "tiktoken":
        try:
            _library(tokenizer).decode_single_token_bytes(index)
        except KeyError:
            return False
    return True


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token with its spaces, which decoders strip from the first piece.

    Raises:
        TokenizerError: The tokenizer has no such token.
    """
    text = decode(tokenizer, [token])
    piece = ""
    if tokenizer.kind == "huggingface":
        piece = _library(tokenizer).token(token) or ""
    elif tokenizer.kind == "sentencepiece":
        piece = _library(tokenizer).id_to_piece(token)
    spaced = piece.replace(_PIECE_SPACE, " ")
    return spaced if spaced != piece and spaced.replace(" ", "") == text.replace(" ", "") else text


_PIECE_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""A space in the vocabulary of SentencePiece."""


@lru_cache(maxsize=1)
def _library(tokenizer: Tokenizer) -> Any:
    # Loading takes up to a second, and one tokenizer is used at a time.
    if tokenizer.kind == "huggingface":
        return libraries.huggingface(tokenizer)
    if tokenizer.kind == "tiktoken":
        return libraries.tiktoken(_encoding(tokenizer), str(tokenizer.path))
    return sentencepiece_processor(tokenizer.definition, str(tokenizer.path))


def _encoding(tokenizer: Tokenizer) -> TiktokenEncoding:
    return encoding_of_name(tokenizer.definition, str(tokenizer.name), str(tokenizer.path))


def _tiktoken_pieces(library: Any, ids: Iterable[int]) -> Iterator[bytes]:
    for index in ids:
        try:
            yield library.decode_single_token_bytes(index)
        except KeyError:  # a gap in the vocabulary
            yield b"\xef\xbf\xbd"


def _batch(ids: list[NDArray[np.uint32]]) -> EncodedBatch:
    import numpy as np

    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.concatenate(ids) if ids else np.empty(0, np.uint32)
    return EncodedBatch(flat, offsets_of(lengths))


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of texts with some numbers of tokens, int64, shape ``[texts + 1]``."""
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


# The reference encoders


class _BytesEncoder:
    name = "reference"

    def encode(self, texts: list[str]) -> EncodedBatch:
        import numpy as np

        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32)
        return EncodedBatch(ids, offsets_of(lengths))


class _NullEncoder:
    name = "reference"

    def __init__(self, size: int) -> None:
        self._size = size

    def encode(self, texts: list[str]) -> EncodedBatch:
        import numpy as np

        try:
            return _batch([np.array(parse_token_ids(text, self._size), np.uint32) for text in texts])
        except ValueError as error:
            raise TokenizerError(str(error)) from None


class _HuggingFaceEncoder:
    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        self._library = libraries.huggingface(tokenizer)
        if tokenizer.splits_special_tokens:
            self._library.split_special_tokens()
        self._path = tokenizer.path
        self._special_tokens = special_tokens

    def encode(self, texts: list[str]) -> EncodedBatch:
        with libraries.panics_as_errors("encode a text"):
            try:
                ids, lengths = self._library.encode(texts, special_tokens=self._special_tokens)
            except Exception as error:
                if type(error) is not Exception:  # a text that cannot be encoded by any tokenizer
                    raise
                raise TokenizerError(
                    f"tokenizers cannot encode a text with {self._path}: {error}",
                    hint="add its unknown token to the vocabulary, or fetch the file again if it is damaged",
                ) from error
        return EncodedBatch(ids, offsets_of(lengths))


class _Template:
    """The ids before and after each text, for libraries that do not add them."""

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        identity = tokenizer.identity
        self._prefix = (special_tokens and identity.prefix_ids) or ()
        self._suffix = (special_tokens and identity.suffix_ids) or ()

    def applied(self, ids: list[NDArray[np.uint32]]) -> list[NDArray[np.uint32]]:
        import numpy as np

        if not self._prefix and not self._suffix:
            return ids
        prefix, suffix = np.array(self._prefix, np.uint32), np.array(self._suffix, np.uint32)
        return [np.concatenate((prefix, each, suffix)) for each in ids]


class _TiktokenEncoder:
    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        encoding = _encoding(tokenizer)
        self._library = libraries.tiktoken(encoding, str(tokenizer.path))
        is_found = encoding.special_text and not tokenizer.splits_special_tokens
        self._allowed: Any = "all" if is_found else set()
        self._template = _Template(tokenizer, special_tokens=special_tokens)

    def encode(self, texts: list[str]) -> EncodedBatch:
        encode = self._library.encode_to_numpy
        with libraries.panics_as_errors("encode a text"):
            ids = [encode(text, allowed_special=self._allowed, disallowed_special=()) for text in texts]
        return _batch(self._template.applied(ids))


class _SentencePieceEncoder:
    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        self._library = sentencepiece_processor(tokenizer.definition, str(tokenizer.path))
        self._template = _Template(tokenizer, special_tokens=special_tokens)

    def encode(self, texts: list[str]) -> EncodedBatch:
        import numpy as np

        ids = [np.array(each, np.uint32) for each in self._library.encode(texts, num_threads=1)]
        return _batch(self._template.applied(ids))
