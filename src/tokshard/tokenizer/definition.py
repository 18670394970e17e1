"""Tokenizers: finding one, reading what it is, and choosing its end-of-document token.

This runs at the start of every command, so it parses the definition itself and loads no tokenizer
library for ``tokenizer.json`` files (a vocabulary of 150,000 tokens takes about 0.3 s).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Final

from tokshard.dataset.tokenizer_identity import TokenizerIdentity, TokenizerKind
from tokshard.errors import TokenizerError
from tokshard.tokenizer import canonical
from tokshard.tokenizer.eod import choose_eod, declared_eod
from tokshard.tokenizer.files import parse_object, read_file
from tokshard.tokenizer.huggingface import huggingface_vocabulary
from tokshard.tokenizer.location import locate_tokenizer
from tokshard.tokenizer.sentencepiece_files import sentencepiece_vocabulary
from tokshard.tokenizer.tiktoken_files import TIKTOKEN_ENCODINGS, tiktoken_ranks, tiktoken_vocabulary
from tokshard.tokenizer.token_ids import NULL_PREFIX, null_eod, null_vocabulary_size
from tokshard.tokenizer.vocabulary import Vocabulary

BYTES_EOD: Final = "<|endoftext|>"
BYTES_EOD_ID: Final = 256
_BYTES_DEFINITION: Final = b"UTF-8 bytes are ids 0 to 255; 256 is <|endoftext|>"


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer, as far as it is known without loading its library.

    Attributes:
        argument: What the user gave, or None for the built-in one.
        path: The local file that defines it, or None for the built-in one.
        identity: What manifests record, wherever the files are stored.
        definition: What its library loads: the content of the file at ``path``, or that with what the
            files beside it change.
        sha256: SHA-256 of ``definition``.
    """

    kind: TokenizerKind
    argument: str | None
    path: str | None
    identity: TokenizerIdentity
    sha256: str
    definition: bytes = field(repr=False)

    @property
    def name(self) -> str | None:
        """The encoding, for kinds whose file does not define the tokenizer alone; else None."""
        return self.identity.name

    @property
    def vocab_size(self) -> int:
        """Tokens including added ones: ``len()`` of the Hugging Face tokenizer."""
        return self.identity.vocab_size

    @property
    def max_token_id(self) -> int:
        """The largest id that it can give; in vocabularies with gaps not ``vocab_size - 1``."""
        return self.identity.max_token_id

    @property
    def eod_id(self) -> int | None:
        """The id of the EOD token, if one was chosen."""
        return self.identity.eod_id

    @property
    def eod_token(self) -> str | None:
        """The text of the EOD token, if one was chosen."""
        return self.identity.eod_token


def load_tokenizer(argument: str | None, *, eod: str | None = None, need_eod: bool = True) -> Tokenizer:
    """Find a tokenizer and read what it is.

    Args:
        argument: A ``tokenizer.json`` (or its directory), a ``*.tiktoken`` or SentencePiece ``*.model``
            file, the URL of one of these, ``hf:ID`` or ``hf:ID@revision``; None for the built-in one,
            whose ids 0 to 255 are the bytes of UTF-8 and 256 is the end of a document; ``null:N`` for text
            that consists of token ids below N.
        eod: The end-of-document token: an id, or a token's text. A number is always an id.
        need_eod: Whether it is an error that no EOD can be chosen. A wrong ``eod`` always is.

    Raises:
        TokenizerError: The file cannot be read or used, or the EOD cannot be chosen.
        MissingExtraError: The tokenizer needs a library that is not installed.

    Example:
        >>> tokenizer = load_tokenizer(None)
        >>> tokenizer.vocab_size, tokenizer.eod_id
        (257, 256)
    """
    if argument is not None and argument.startswith(NULL_PREFIX):
        return _null_tokenizer(argument, eod)
    if argument is None:
        kind: TokenizerKind = "bytes"
        path = None
        definition = _BYTES_DEFINITION
        beside: tuple[str, ...] = ()
    else:
        source = locate_tokenizer(argument)
        path, beside = source.definition, source.beside
        kind = _kind_of(path)
        definition = read_file(path)
    place = path or "the built-in tokenizer"
    vocabulary, digest = _read(kind, definition, place)
    if kind == "huggingface" and eod is None:
        vocabulary = replace(vocabulary, declared_eod=declared_eod(beside))
    eod_id, eod_token = choose_eod(vocabulary, eod, place, need_eod=need_eod)
    identity = TokenizerIdentity(
        kind=kind,
        name=vocabulary.name,
        vocab_size=vocabulary.size,
        max_token_id=max(vocabulary.ids.values(), default=-1),
        eod_id=eod_id,
        eod_token=eod_token,
        definition_sha256=digest,
        prefix_ids=vocabulary.prefix_ids,
        suffix_ids=vocabulary.suffix_ids,
    )
    sha256 = hashlib.sha256(definition).hexdigest()
    return Tokenizer(kind, argument, path, identity, sha256, definition)


def reopen_tokenizer(path: str | None, identity: TokenizerIdentity, sha256: str) -> Tokenizer:
    """Return a tokenizer that another process has loaded, without parsing its file again.

    Args:
        path: A file with its :attr:`Tokenizer.definition`, or None for the kinds without a file.
        identity: Its identity.
        sha256: The SHA-256 of that file.

    Raises:
        TokenizerError: The file cannot be read, or is not the same any more.
    """
    definition = _definition_without_file(identity) if path is None else read_file(path)
    if hashlib.sha256(definition).hexdigest() != sha256:
        raise TokenizerError(f"the tokenizer {path} was changed during the run")
    return Tokenizer(identity.kind, path, path, identity, sha256, definition)


def tokenizer_without_file(identity: TokenizerIdentity) -> Tokenizer | None:
    """Return the tokenizer of an identity if it is of a kind that no file defines; else None."""
    if identity.kind == "null":
        return _null_tokenizer(f"{NULL_PREFIX}{identity.vocab_size}", None)
    return load_tokenizer(None) if identity.kind == "bytes" else None


def _null_tokenizer(argument: str, eod: str | None) -> Tokenizer:
    size = null_vocabulary_size(argument)
    eod_id = null_eod(eod, size)
    definition = _null_definition(size)
    digest = canonical.content_digest("null", definition)
    identity = TokenizerIdentity("null", None, size, size - 1, eod_id, str(eod_id), digest, (), ())
    sha256 = hashlib.sha256(definition).hexdigest()
    return Tokenizer("null", argument, None, identity, sha256, definition)


def _definition_without_file(identity: TokenizerIdentity) -> bytes:
    return _null_definition(identity.vocab_size) if identity.kind == "null" else _BYTES_DEFINITION


def _null_definition(size: int) -> bytes:
    return f"text is token ids below {size}".encode()


def _kind_of(path: str) -> TokenizerKind:
    if path.endswith(".tiktoken"):
        return "tiktoken"
    return "sentencepiece" if path.endswith(".model") else "huggingface"


def _read(kind: TokenizerKind, definition: bytes, path: str) -> tuple[Vocabulary, str]:
    """Return the vocabulary of a definition, and the digest of its canonical form."""
    match kind:
        case "null":
            raise AssertionError("no file defines it")
        case "bytes":
            ids = {f"<0x{value:02X}>": value for value in range(256)} | {BYTES_EOD: BYTES_EOD_ID}
            vocabulary = Vocabulary(ids, (BYTES_EOD,), len(ids), BYTES_EOD)
            return vocabulary, canonical.content_digest(kind, definition)
        case "tiktoken":
            vocabulary = tiktoken_vocabulary(definition, path)
            encoding = TIKTOKEN_ENCODINGS[str(vocabulary.name)]
            ranks = tiktoken_ranks(definition, path)
            return vocabulary, canonical.tiktoken_digest(ranks, encoding.pattern, encoding.special_tokens)
        case "sentencepiece":
            return sentencepiece_vocabulary(definition, path), canonical.content_digest(kind, definition)
        case "huggingface":
            parsed = parse_object(definition, path)
            return huggingface_vocabulary(parsed, path), canonical.huggingface_digest(parsed)
