"""Loading of tokenizers: finding one, reading its definition, and choosing its end-of-document token.

This runs at the start of every command, so it parses the definition itself and loads no tokenizer
library for ``tokenizer.json`` files (a vocabulary of 150,000 tokens takes about 0.3 s).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from tokshard.core.json_text import dump_json
from tokshard.dataset.products import FOR_TRANSFORMERS
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import TokenizerError
from tokshard.storage.files import write_atomically
from tokshard.text.tokenizer import canonical
from tokshard.text.tokenizer.eod import choose_eod
from tokshard.text.tokenizer.files import (
    as_object,
    is_model_file,
    parse_json,
    read_file,
    token_text,
)
from tokshard.text.tokenizer.huggingface import gpt2_definition, huggingface_vocabulary
from tokshard.text.tokenizer.location import Location, locate_tokenizer
from tokshard.text.tokenizer.sentencepiece_files import sentencepiece_vocabulary
from tokshard.text.tokenizer.settings import IdsChangedError, check_gpt2_class, plain_eos_token
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings, encoding_of_json, encoding_of_lines
from tokshard.text.tokenizer.token_ids import NULL_PREFIX, null_vocabulary
from tokshard.text.tokenizer.transformers_reader import read_with_transformers
from tokshard.text.tokenizer.vocabulary import Vocabulary

BYTES_EOD: Final = "<|endoftext|>"
BYTES_EOD_ID: Final = 256


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, as far as it is known without loading its library.

    Attributes:
        argument: What the user gave, or None for the built-in one.
        path: The local file that defines it, or None for the built-in one. If only transformers reads its
            files, and none is a tokenizer.json, the directory.
        identity: What manifests record, wherever the files are stored.
        definition: The content that its library loads: that of the file at ``path``, or the definition that
            transformers exported.
        setting: The setting because of which transformers read the files; None if transformers did not.
        unknown_id: See :class:`Vocabulary`.
        drops_characters: See :class:`Vocabulary`.
    """

    argument: str | None
    path: str | None
    identity: TokenizerIdentity
    definition: bytes = field(repr=False)
    setting: str | None = None
    unknown_id: int | None = None
    drops_characters: bool = False

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of ``definition``."""
        return hashlib.sha256(self.definition).hexdigest()

    @property
    def splits_special_tokens(self) -> bool:
        """Whether text that spells a special token is ordinary text, against the rule of the library."""
        return self.identity.special_tokens_in_text == "split"

    @property
    def finds_special_tokens(self) -> bool:
        """Whether text that spells a special token becomes that token."""
        identity = self.identity
        is_rule = (
            identity.kind == "huggingface" or TikTokenizerSettings.of_encoding(identity.name) is not None
        )
        return is_rule and not self.splits_special_tokens

    def splitting_special_tokens(self) -> Tokenizer:
        """Return the tokenizer that encodes text that spells a special token as ordinary text.

        It is the same where no text becomes a special token.
        """
        if not self.finds_special_tokens:
            return self
        return replace(self, identity=replace(self.identity, special_tokens_in_text="split"))

    @property
    def defines_special_tokens(self) -> bool:
        """Whether it is known which ids ``--special-tokens`` adds to a text (perhaps none)."""
        return self.identity.kind == "huggingface" or self.identity.prefix_ids is not None

    def definition_path(self, directory: str) -> str | None:
        """Return a local file that contains ``definition``; None for the built-in one.

        It is written to ``directory`` unless the file at ``path`` contains it.

        Raises:
            StorageError: It cannot be written.
        """
        is_plain = self.identity.transformers is None
        if self.path is None or (is_plain and read_file(self.path) == self.definition):
            return self.path
        path = os.path.join(directory, f"{self.sha256}.json")
        write_atomically(path, self.definition)
        return path

    def like(self, identity: TokenizerIdentity | None) -> Tokenizer:
        """Return the tokenizer with the settings that an identity records, if they apply to it."""
        settings = TikTokenizerSettings.of_encoding(identity.name if identity is not None else None)
        if settings is None or TikTokenizerSettings.of_encoding(self.identity.name) in (None, settings):
            return self
        return load_tokenizer(self.argument, eod=self.identity.eod_token, need_eod=False, tiktoken=settings)


def load_tokenizer(
    argument: str | None,
    *,
    eod: str | None = None,
    need_eod: bool = True,
    merges: str | None = None,
    tiktoken: TikTokenizerSettings | None = None,
    transformers: str | None = None,
    files_beside: bool = True,
    plain: bool = False,
) -> Tokenizer:
    """Find and read a tokenizer.

    Args:
        argument: One of the files in docs/reference/tokenizers.md or its directory, the URL of one of
            these, ``hf:ID`` or ``hf:ID@revision``; None for the built-in one, whose ids 0 to 255 are the
            bytes of UTF-8 and 256 is the end of a document; ``null:N`` for text that consists of token ids
            below N.
        eod: The end-of-document token: an id, or a token's text. A number is always an id.
        need_eod: Whether to raise an error if no EOD can be chosen. A wrong ``eod`` is always an error.
        merges: The path of the ``merges.txt`` that belongs to the ``vocab.json`` at ``argument``; by default
            the one beside it.
        tiktoken: How to read the file of a TikTokenizer; None for Megatron's defaults.
        transformers: A command that starts a Python with transformers, which reads directories with settings
            that change ids; None for transformers as it is installed here.
        files_beside: Whether files beside the definition, such as ``tokenizer_config.json``, are also read.
        plain: Whether directories with settings that change ids are errors, so that transformers is never
            started.

    Raises:
        TokenizerError: The file cannot be read or used, or the EOD cannot be chosen.
        MissingExtraError: The tokenizer needs a library that is not installed.

    Example:
        >>> tokenizer = load_tokenizer(None)
        >>> tokenizer.identity.vocab_size, tokenizer.identity.eod_id
        (257, 256)
    """
    path = None
    if argument is None:
        vocabulary = _built_in()
    elif argument.startswith(NULL_PREFIX):
        vocabulary = null_vocabulary(argument, eod)
        eod = None
    else:
        source = locate_tokenizer(argument) if merges is None else Location(argument, (), merges)
        if not files_beside:
            source = replace(source, beside=(), directory=None)
        path = source.definition
        try:
            vocabulary = _read(source, tiktoken)
        except IdsChangedError as error:
            if plain:
                raise TokenizerError(f"the tokenizer directory {argument} is not plain: {error}") from error
            vocabulary = _read_with_transformers(source, transformers, error)
            path = path if source.is_json else source.directory
    eod_id, eod_token = choose_eod(vocabulary, eod, path or "the built-in tokenizer", need_eod=need_eod)
    identity = TokenizerIdentity(
        kind=vocabulary.kind,
        name=vocabulary.name,
        vocab_size=vocabulary.size,
        max_token_id=max(vocabulary.ids.values(), default=-1),
        eod_id=eod_id,
        eod_token=eod_token,
        definition_sha256=vocabulary.digest
        or canonical.content_digest(vocabulary.kind, vocabulary.definition),
        prefix_ids=vocabulary.prefix_ids,
        suffix_ids=vocabulary.suffix_ids,
        transformers=vocabulary.transformers,
        special_tokens_in_text="split" if vocabulary.splits_special_tokens else None,
    )
    return Tokenizer(
        argument,
        path,
        identity,
        vocabulary.definition,
        vocabulary.setting,
        vocabulary.unknown_id,
        vocabulary.drops_characters,
    )


def tokenizer_identity(path: str | os.PathLike[str], *, eod: str | None = None) -> TokenizerIdentity:
    """Return the identity of a tokenizer, as manifests and plans record it.

    Args:
        path: One of the files in docs/reference/tokenizers.md or its directory, the URL of one of these,
            ``hf:ID`` or ``hf:ID@revision``.
        eod: The EOD token: an id, or a token's text; None for the one that the tokenizer declares, if any.

    Raises:
        TokenizerError: The file cannot be read or used.
        MissingExtraError: The tokenizer needs a library that is not installed.
    """
    return load_tokenizer(os.fspath(path), eod=eod, need_eod=False).identity


def reopen_tokenizer(path: str | None, identity: TokenizerIdentity, sha256: str) -> Tokenizer:
    """Return a tokenizer that another process has loaded, without parsing its file again.

    Args:
        path: A file with its :attr:`Tokenizer.definition`, or None for the kinds without a file.
        identity: Its identity.
        sha256: The SHA-256 of that file.

    Raises:
        TokenizerError: The file cannot be read, or has changed.
    """
    known = tokenizer_without_file(identity) if path is None else None
    definition = read_file(str(path)) if known is None else known.definition
    tokenizer = Tokenizer(path, path, identity, definition)
    if tokenizer.sha256 != sha256:
        raise TokenizerError(f"the tokenizer {path} was changed during the run")
    return tokenizer


def tokenizer_without_file(identity: TokenizerIdentity) -> Tokenizer | None:
    """Return the tokenizer of an identity if it is of a kind that no file defines; else None."""
    if identity.kind == "null":
        return load_tokenizer(f"{NULL_PREFIX}{identity.vocab_size}")
    return load_tokenizer(None) if identity.kind == "bytes" else None


def _built_in() -> Vocabulary:
    ids = {f"<0x{value:02X}>": value for value in range(256)} | {BYTES_EOD: BYTES_EOD_ID}
    definition = b"UTF-8 bytes are ids 0 to 255; 256 is <|endoftext|>"
    return Vocabulary("bytes", definition, ids, (BYTES_EOD,), len(ids), declared_eod=BYTES_EOD)


def _read(source: Location, tiktoken: TikTokenizerSettings | None) -> Vocabulary:
    """Read a tokenizer's files; raise IdsChangedError if only transformers reads them."""
    path = source.definition
    in_directory = source.directory is not None
    if in_directory and os.path.basename(path) in FOR_TRANSFORMERS:
        raise IdsChangedError(f"{os.path.basename(path)} without a tokenizer.json")
    if source.merges is not None:
        parsed = gpt2_definition(path, source.merges)
        files = source.settings() if in_directory else {}
        check_gpt2_class(files)
        return _huggingface(parsed, dump_json(parsed), path, files)
    content = read_file(path)
    encoding = encoding_of_lines(content, path)
    if encoding is None and is_model_file(path):
        if in_directory and source.beside:
            raise IdsChangedError(f"{os.path.basename(path)} without a tokenizer.json")
        return sentencepiece_vocabulary(content, path, source.settings())
    if encoding is None:
        parsed = parse_json(content, path)
        encoding = encoding_of_json(parsed, path, tiktoken)
        if encoding is None:
            return _huggingface(as_object(parsed, path), content, path, source.settings())
    return replace(encoding.vocabulary, definition=content, digest=canonical.tiktoken_digest(encoding))


def _huggingface(
    parsed: dict[str, Any], content: bytes, path: str, settings: Mapping[str, dict[str, Any]]
) -> Vocabulary:
    vocabulary = huggingface_vocabulary(parsed, content, path)  # refuses what is no tokenizer.json
    declared = plain_eos_token(parsed, settings) if settings else None
    return replace(vocabulary, declared_eod=declared, digest=canonical.huggingface_digest(parsed))


def _read_with_transformers(source: Location, python: str | None, error: IdsChangedError) -> Vocabulary:
    place = source.directory or os.path.dirname(source.definition) or "."
    setting = str(error)
    if error.hint is not None:
        raise TokenizerError(f"cannot read the tokenizer directory {place}: {setting}", hint=error.hint)
    further = source.settings().get("tokenizer_config.json", {}).get("fast_tokenizer_files")
    names = [name for name in further if isinstance(name, str)] if isinstance(further, list) else []
    files = source.files(names)
    if source.is_json:
        files["tokenizer.json"] = read_file(source.definition)  # a file of another name
    reading = read_with_transformers(files, python, place=place, setting=setting)
    content = json.dumps(reading["definition"], ensure_ascii=False, separators=(",", ":")).encode()
    return replace(
        _huggingface(reading["definition"], content, place, {}),
        size=reading["size"],
        declared_eod=token_text(reading.get("eos_token")),
        setting=setting,
        transformers=reading["transformers"],
        splits_special_tokens=reading.get("splits_special_tokens") is True,
    )
