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
from typing import Any, Final

from tokshard.core.json_text import dump_json
from tokshard.dataset.products import FOR_TRANSFORMERS
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, TokenizerKind
from tokshard.errors import TokenizerError
from tokshard.storage.files import write_atomically
from tokshard.text.tokenizer import canonical
from tokshard.text.tokenizer.eod import choose_eod
from tokshard.text.tokenizer.files import (
    as_object,
    is_model_file,
    parse_json,
    read_file,
    read_object,
    read_settings,
)
from tokshard.text.tokenizer.huggingface import gpt2_definition, huggingface_vocabulary
from tokshard.text.tokenizer.location import Location, locate_tokenizer
from tokshard.text.tokenizer.sentencepiece_files import sentencepiece_vocabulary
from tokshard.text.tokenizer.settings import IdsChangedError, check_gpt2_class, plain_eos_token
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings, encoding_of_json, encoding_of_lines
from tokshard.text.tokenizer.token_ids import NULL_PREFIX, null_eod, null_vocabulary_size
from tokshard.text.tokenizer.transformers_reader import read_with_transformers
from tokshard.text.tokenizer.vocabulary import Vocabulary

BYTES_EOD: Final = "<|endoftext|>"
BYTES_EOD_ID: Final = 256
_BYTES_DEFINITION: Final = b"UTF-8 bytes are ids 0 to 255; 256 is <|endoftext|>"


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer, as far as it is known without loading its library.

    Attributes:
        argument: What the user gave, or None for the built-in one.
        path: The local file that defines it, or None for the built-in one. If only transformers reads its
            files, and none is a tokenizer.json, the directory.
        identity: What manifests record, wherever the files are stored.
        definition: The content that its library loads: that of the file at ``path``, or the definition that
            transformers exported.
        sha256: SHA-256 of ``definition``.
        setting: The setting because of which transformers read the files; None if transformers did not.
        unknown_id: See :class:`Vocabulary`.
        drops_characters: See :class:`Vocabulary`.
    """

    kind: TokenizerKind
    argument: str | None
    path: str | None
    identity: TokenizerIdentity
    sha256: str
    definition: bytes = field(repr=False)
    setting: str | None = None
    unknown_id: int | None = None
    drops_characters: bool = False

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

    @property
    def splits_special_tokens(self) -> bool:
        """Whether text that spells a special token is ordinary text, against the rule of the library."""
        return self.identity.special_tokens_in_text == "split"

    @property
    def finds_special_tokens(self) -> bool:
        """Whether text that spells a special token becomes that token."""
        is_rule = self.kind == "huggingface" or TikTokenizerSettings.of_encoding(self.name) is not None
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
        return self.kind == "huggingface" or self.identity.prefix_ids is not None

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
        if settings is None or TikTokenizerSettings.of_encoding(self.name) in (None, settings):
            return self
        return load_tokenizer(self.argument, eod=self.eod_token, need_eod=False, tiktoken=settings)


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
        >>> tokenizer.vocab_size, tokenizer.eod_id
        (257, 256)
    """
    if argument is not None and argument.startswith(NULL_PREFIX):
        return _null_tokenizer(argument, eod)
    path = None
    if argument is None:
        read = _built_in()
    else:
        source = locate_tokenizer(argument) if merges is None else Location(argument, (), merges)
        if not files_beside:
            source = replace(source, beside=(), directory=None)
        path = source.definition
        try:
            read = _read(source, tiktoken)
        except IdsChangedError as error:
            if plain:
                raise TokenizerError(f"the tokenizer directory {argument} is not plain: {error}") from error
            read = _read_with_transformers(source, transformers, error)
            path = path if path.endswith(".json") and source.merges is None else source.directory
    place = path or "the built-in tokenizer"
    vocabulary = read.vocabulary
    eod_id, eod_token = choose_eod(vocabulary, eod, place, need_eod=need_eod)
    identity = TokenizerIdentity(
        kind=read.kind,
        name=vocabulary.name,
        vocab_size=vocabulary.size,
        max_token_id=max(vocabulary.ids.values(), default=-1),
        eod_id=eod_id,
        eod_token=eod_token,
        definition_sha256=read.digest,
        prefix_ids=vocabulary.prefix_ids,
        suffix_ids=vocabulary.suffix_ids,
        transformers=read.transformers,
        special_tokens_in_text="split" if read.splits_special_tokens else None,
    )
    sha256 = hashlib.sha256(read.definition).hexdigest()
    return Tokenizer(
        read.kind,
        argument,
        path,
        identity,
        sha256,
        read.definition,
        read.setting,
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


@dataclass(frozen=True, slots=True)
class _Read:
    kind: TokenizerKind
    vocabulary: Vocabulary
    digest: str  # of the canonical form
    definition: bytes
    setting: str | None = None
    transformers: str | None = None  # the version that read it
    splits_special_tokens: bool = False


def _built_in() -> _Read:
    ids = {f"<0x{value:02X}>": value for value in range(256)} | {BYTES_EOD: BYTES_EOD_ID}
    vocabulary = Vocabulary(ids, (BYTES_EOD,), len(ids), BYTES_EOD)
    digest = canonical.content_digest("bytes", _BYTES_DEFINITION)
    return _Read("bytes", vocabulary, digest, _BYTES_DEFINITION)


def _read(source: Location, tiktoken: TikTokenizerSettings | None) -> _Read:
    """Read a tokenizer's files; raise IdsChangedError if only transformers reads them."""
    path = source.definition
    in_directory = source.directory is not None
    if in_directory and os.path.basename(path) in FOR_TRANSFORMERS:
        raise IdsChangedError(f"{os.path.basename(path)} without a tokenizer.json")
    if source.merges is not None:
        parsed = gpt2_definition(path, source.merges)
        files = _settings(source) if in_directory else {}
        check_gpt2_class(files)
        return _huggingface(parsed, dump_json(parsed), path, files)
    content = read_file(path)
    encoding = encoding_of_lines(content, path)
    if encoding is None and is_model_file(path):
        if in_directory and source.beside:
            raise IdsChangedError(f"{os.path.basename(path)} without a tokenizer.json")
        vocabulary = sentencepiece_vocabulary(content, path, read_settings(source.beside))
        digest = canonical.content_digest("sentencepiece", content)
        return _Read("sentencepiece", vocabulary, digest, content)
    if encoding is None:
        parsed = parse_json(content, path)
        encoding = encoding_of_json(parsed, path, tiktoken)
        if encoding is None:
            return _huggingface(as_object(parsed, path), content, path, _settings(source))
    return _Read("tiktoken", encoding.vocabulary, canonical.tiktoken_digest(encoding), content)


def _settings(source: Location) -> dict[str, dict[str, Any]]:
    return {os.path.basename(path): read_object(path) for path in source.beside}


def _huggingface(
    parsed: dict[str, Any], content: bytes, path: str, settings: Mapping[str, dict[str, Any]]
) -> _Read:
    vocabulary = huggingface_vocabulary(parsed, path)  # refuses what is no tokenizer.json
    if settings:
        vocabulary = replace(vocabulary, declared_eod=plain_eos_token(parsed, settings))
    return _Read("huggingface", vocabulary, canonical.huggingface_digest(parsed), content)


def _read_with_transformers(source: Location, python: str | None, error: IdsChangedError) -> _Read:
    place, setting = source.directory or os.path.dirname(source.definition) or ".", str(error)
    if error.hint is not None:
        raise TokenizerError(f"cannot read the tokenizer directory {place}: {setting}", hint=error.hint)
    further = _settings(source).get("tokenizer_config.json", {}).get("fast_tokenizer_files")
    names = [name for name in further if isinstance(name, str)] if isinstance(further, list) else []
    files = source.files(names)
    if source.definition.endswith(".json") and source.merges is None:
        files["tokenizer.json"] = read_file(source.definition)  # a file of another name
    reading = read_with_transformers(files, python, place=place, setting=setting)
    content = json.dumps(reading.definition, ensure_ascii=False, separators=(",", ":")).encode()
    read = _huggingface(reading.definition, content, place, {})
    vocabulary = replace(read.vocabulary, size=reading.size, declared_eod=reading.eos_token)
    return replace(
        read,
        vocabulary=vocabulary,
        setting=setting,
        transformers=reading.version,
        splits_special_tokens=reading.splits_special_tokens,
    )
