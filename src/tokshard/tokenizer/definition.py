"""Tokenizers: finding one, reading what it is, and choosing its end-of-document token.

This runs at the start of every command, so it parses the definition itself and loads no tokenizer
library for ``tokenizer.json`` files (a vocabulary of 150,000 tokens takes about 0.1 s).
"""

from __future__ import annotations

import base64
import binascii
import gc
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tokshard.dataset.plan import TokenizerIdentity, TokenizerKind
from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.tokenizer.location import locate_tokenizer

BYTES_EOD: Final = "<|endoftext|>"
BYTES_EOD_ID: Final = 256
_SHOWN_TOKENS: Final = 8
MAX_DEFINITION_BYTES: Final = 512 << 20  # the largest published file has 35 MB; more is a wrong file

# Names that mean "end of document" in published vocabularies. Names that end a turn of a conversation
# are left out on purpose.
KNOWN_EODS: Final = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eot|>",
    "[EOS]",
    "<EOS>",
    "<|eos|>",
    "<eod>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - the published name has full-width bars
)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer, as far as it is known without loading its library.

    Attributes:
        argument: What the user gave, or None for the built-in one.
        vocab_size: Tokens including added ones: ``len()`` of the Hugging Face tokenizer, from which
            Megatron chooses the data type.
        max_token_id: The largest id that it can give; in vocabularies with gaps not ``vocab_size - 1``.
        name: The encoding, for kinds whose file does not define the tokenizer alone (tiktoken); else None.
        definition: The content of the file at ``path``.
    """

    kind: TokenizerKind
    argument: str | None
    path: str | None
    vocab_size: int
    max_token_id: int
    eod_id: int | None
    eod_token: str | None
    name: str | None
    sha256: str
    definition: bytes = field(repr=False)

    @property
    def identity(self) -> TokenizerIdentity:
        """The content of the tokenizer, wherever its files are stored."""
        return TokenizerIdentity(
            kind=self.kind,
            name=self.name,
            sha256=self.sha256,
            vocab_size=self.vocab_size,
            max_token_id=self.max_token_id,
            eod_id=self.eod_id,
            eod_token=self.eod_token,
        )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    ids: Mapping[str, int]
    added: Collection[str]
    size: int
    declared_eod: str | None = None
    name: str | None = None


def load_tokenizer(argument: str | None, *, eod: str | None = None, need_eod: bool = True) -> Tokenizer:
    """Find a tokenizer and read what it is.

    Args:
        argument: A ``tokenizer.json`` (or its directory), a ``*.tiktoken`` or SentencePiece ``*.model``
            file, the URL of one of these, ``hf:ID`` or ``hf:ID@revision``; None for the built-in one,
            whose ids 0 to 255 are the bytes of UTF-8 and 256 is the end of a document.
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
    if argument is None:
        kind: TokenizerKind = "bytes"
        source = None
        definition = b"UTF-8 bytes are ids 0 to 255; 256 is <|endoftext|>"
    else:
        source = locate_tokenizer(argument)
        kind = _kind_of(source.definition)
        definition = _read(source.definition)
    place = source.definition if source else "the built-in tokenizer"
    vocabulary = _read_vocabulary(kind, definition, place)
    if kind == "huggingface" and source and eod is None:
        vocabulary = replace(vocabulary, declared_eod=_declared_eod(source.beside))
    eod_id, eod_token = _choose_eod(vocabulary, eod, place, need_eod=need_eod)
    return Tokenizer(
        kind=kind,
        argument=argument,
        path=source.definition if source else None,
        vocab_size=vocabulary.size,
        max_token_id=max(vocabulary.ids.values(), default=-1),
        eod_id=eod_id,
        eod_token=eod_token,
        name=vocabulary.name,
        sha256=hashlib.sha256(definition).hexdigest(),
        definition=definition,
    )


def reopen_tokenizer(path: str | None, identity: TokenizerIdentity) -> Tokenizer:
    """Return a tokenizer that another process has loaded, without parsing its file again.

    Raises:
        TokenizerError: The file cannot be read, or is not the same any more.
    """
    if path is None:
        return load_tokenizer(None)
    definition = _read(path)
    if hashlib.sha256(definition).hexdigest() != identity.sha256:
        raise TokenizerError(f"the tokenizer {path} was changed during the run")
    return Tokenizer(argument=path, path=path, definition=definition, **asdict(identity))


def _kind_of(path: str) -> TokenizerKind:
    if path.endswith(".tiktoken"):
        return "tiktoken"
    return "sentencepiece" if path.endswith(".model") else "huggingface"


def _read(path: str) -> bytes:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise TokenizerError(f"the tokenizer {path} is not a file")
        if status.st_size > MAX_DEFINITION_BYTES:
            raise TokenizerError(
                f"the tokenizer {path} has {status.st_size} bytes, more than {MAX_DEFINITION_BYTES}",
                hint="pass a tokenizer.json, NAME.tiktoken or NAME.model",
            )
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise TokenizerError(
            f"cannot read the tokenizer {path!r}: {getattr(error, 'strerror', error)}",
            hint="pass a tokenizer.json, its directory, NAME.tiktoken, NAME.model or hf:ID",
        ) from error


def parse_object(content: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object of a tokenizer's files; raise TokenizerError if it is none."""
    import orjson

    # Half of the time would go to collecting garbage among the small lists of merges, which are none.
    collects = gc.isenabled()
    gc.disable()
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TokenizerError(
            f"the tokenizer's file {path} is not JSON: {error}",
            hint="pass a tokenizer.json, its directory, NAME.tiktoken or NAME.model",
        ) from error
    finally:
        if collects:
            gc.enable()
    if not isinstance(value, dict):
        raise TokenizerError(f"the tokenizer's file {path} is not a JSON object")
    return value


# The vocabulary


def _read_vocabulary(kind: TokenizerKind, definition: bytes, path: str) -> _Vocabulary:
    if kind == "bytes":
        ids = {f"<0x{value:02X}>": value for value in range(256)} | {BYTES_EOD: BYTES_EOD_ID}
        return _Vocabulary(ids, (BYTES_EOD,), len(ids), BYTES_EOD)
    if kind == "tiktoken":
        return _tiktoken_vocabulary(definition, path)
    if kind == "sentencepiece":
        return _sentencepiece_vocabulary(definition, path)
    parsed = parse_object(definition, path)
    model_ids, model_size = _model_vocabulary(parsed, path)
    added = added_token_ids(model_ids, model_size, _added_contents(parsed, path))
    # Not the number of names: Unigram models count pieces that repeat.
    size = model_size + len(added.keys() - model_ids.keys())
    return _Vocabulary({**model_ids, **added}, added, size)


def _added_contents(parsed: dict[str, Any], path: str) -> list[str]:
    tokens = parsed.get("added_tokens") or []
    if isinstance(tokens, list) and all(isinstance(token, dict) for token in tokens):
        contents = [token.get("content") for token in tokens]
        if set(map(type, contents)) <= {str}:
            return contents
    raise TokenizerError(f"the field added_tokens of {path} is not a list of tokens")


def _model_vocabulary(parsed: dict[str, Any], path: str) -> tuple[dict[str, int], int]:
    model = parsed.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(
            f"{path} has no model: it is not a tokenizer.json",
            hint="pass the directory that contains both tokenizer.json and this file",
        )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict) and set(map(type, vocabulary.values())) <= {int}:
        if vocabulary and not 0 <= min(vocabulary.values()) <= max(vocabulary.values()) < 2**32:
            raise TokenizerError(f"the vocabulary of {path} has ids that are not unsigned 32-bit numbers")
        return vocabulary, len(vocabulary)
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores, whose places are their ids
        try:
            return {piece: index for index, (piece, _) in enumerate(vocabulary)}, len(vocabulary)
        except (TypeError, ValueError):
            pass
    raise TokenizerError(
        f"the field model.vocab of {path} is not a vocabulary",
        hint="fetch the file again: it is damaged, or not a tokenizer.json",
    )


def added_token_ids(
    vocabulary: Mapping[str, int], vocabulary_size: int, contents: Iterable[str]
) -> dict[str, int]:
    """Return the ids that ``tokenizers`` gives to added tokens, which are not those that the file names.

    A token that the model has keeps the model's id. The others are numbered on from the model's size, in
    the order of the file, whatever ids the file states.

    Example:
        >>> added_token_ids({"a": 0, "b": 1}, 2, ["<x>", "b", "<y>"])
        {'<x>': 2, 'b': 1, '<y>': 3}
    """
    ids: dict[str, int] = {}
    following = vocabulary_size
    for content in contents:
        if not content or content in ids:
            continue
        ids[content] = vocabulary.get(content, following)
        following += content not in vocabulary
    return ids


def tiktoken_ranks(definition: bytes, path: str) -> dict[bytes, int]:
    """Return the byte sequences of a ``.tiktoken`` file and their ids."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(definition.splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{path}:{number} is not a base64 string and an id: {line[:40]!r}",
                hint="fetch the file again: it is damaged, or not a tiktoken file",
            ) from error
    if not ranks:
        raise TokenizerError(f"the tiktoken file {path} is empty")
    return ranks


def _tiktoken_vocabulary(definition: bytes, path: str) -> _Vocabulary:
    name = os.path.basename(path).removesuffix(".tiktoken")
    if name not in TIKTOKEN_ENCODINGS:
        raise TokenizerError(
            f"unknown tiktoken encoding: {path}",
            hint=f"rename the file to one of {', '.join(TIKTOKEN_ENCODINGS)} (.tiktoken): the name selects "
            "the pattern that splits text",
        )
    special = TIKTOKEN_ENCODINGS[name].special_tokens
    ranks = tiktoken_ranks(definition, path)
    # An EOD can be named by the text of a special token or by any id; ordinary tokens are bytes.
    ids = {f"<rank {rank}>": rank for rank in ranks.values()} | dict(special)
    return _Vocabulary(ids, special, max(ids.values()) + 1, BYTES_EOD, name)


def sentencepiece_processor(definition: bytes, path: str) -> Any:
    """Return the SentencePiece processor of a model file's content."""
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingExtraError(f"the SentencePiece tokenizer {path}", "sentencepiece") from error
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(definition)
    except RuntimeError as error:
        raise TokenizerError(
            f"{path} is not a SentencePiece model",
            hint="pass a tokenizer.json of the same model; names of tiktoken files must end in .tiktoken",
        ) from error
    return processor


def _sentencepiece_vocabulary(definition: bytes, path: str) -> _Vocabulary:
    processor = sentencepiece_processor(definition, path)
    ids = {processor.id_to_piece(index): index for index in range(processor.vocab_size())}
    eos = processor.eos_id()
    declared = processor.id_to_piece(eos) if eos >= 0 else None
    return _Vocabulary(ids, (), processor.vocab_size(), declared)


# The end-of-document token


def _declared_eod(paths: tuple[str, ...]) -> str | None:
    for path in paths:
        token = parse_object(_read(path), path).get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return token
        if token is not None:
            raise TokenizerError(f"the field eos_token of {path} is not a token", hint="pass --eod TOKEN")
    return None


def _choose_eod(
    vocabulary: _Vocabulary, wanted: str | None, path: str, *, need_eod: bool
) -> tuple[int | None, str | None]:
    # Known names are looked for among the added tokens first: vocabularies learn ordinary tokens such as
    # ``</s>`` from web text, where it ends struck-out text in HTML (Qwen 2 has it).
    ids, declared = vocabulary.ids, vocabulary.declared_eod
    if wanted is not None:
        return _named_eod(ids, wanted, path)
    if declared is not None and declared in ids:
        return ids[declared], declared
    found = [name for name in KNOWN_EODS if name in vocabulary.added]
    found = found or [name for name in KNOWN_EODS if name in ids]
    if declared is None and len(found) == 1:
        return ids[found[0]], found[0]
    if not need_eod:
        return None, None
    if declared is not None:
        problem = f"declares the end-of-document token {declared!r}, which its vocabulary does not have"
    elif found:
        problem = f"has several tokens that could end a document: {', '.join(found)}"
    else:
        problem = "has no token that is known to end a document" + _lookalikes(ids)
    raise TokenizerError(
        f"the tokenizer {path} {problem}",
        hint="pass --eod TOKEN (its text or its id), or --no-append-eod",
    )


def _lookalikes(ids: Mapping[str, int]) -> str:
    marks = {"<": ">", "[": "]"}
    names = [name for name in ids if len(name) > 2 and marks.get(name[0]) == name[-1]]
    names = [name for name in names if not name.startswith(("<0x", "<rank "))][:_SHOWN_TOKENS]
    return f"; candidates are {', '.join(names)}" if names else ""


def _named_eod(ids: Mapping[str, int], wanted: str, path: str) -> tuple[int, str]:
    if wanted.isascii() and wanted.isdigit():
        # A token whose text is a number never ends documents, so a number is an id.
        for token, index in ids.items():
            if index == int(wanted):
                return index, token
        raise TokenizerError(
            f"the tokenizer {path} has no token with the id {wanted} (from --eod)",
            hint=f"pass an id of the vocabulary; the largest is {max(ids.values(), default=-1)}",
        )
    if wanted in ids:
        return ids[wanted], wanted
    close = [name for name in KNOWN_EODS if name in ids]
    raise TokenizerError(
        f"the tokenizer {path} has no token {wanted!r} (from --eod)",
        hint="pass " + " or ".join(f"--eod '{name}'" for name in close)
        if close
        else "pass the text of a token of the vocabulary, or an id",
    )


# The regular expressions by which published tokenizers split text


@dataclass(frozen=True, slots=True)
class TiktokenEncoding:
    """Pattern and special tokens of an encoding, which a ``.tiktoken`` file does not contain."""

    pattern: str
    special_tokens: Mapping[str, int]


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_PATTERN: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tiktoken's own form of it differs: white space that ends a text is one piece even after a line break.
_TIKTOKEN_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_R50K = TiktokenEncoding(GPT2_PATTERN, {"<|endoftext|>": 50256})
TIKTOKEN_ENCODINGS: Final[Mapping[str, TiktokenEncoding]] = {
    "r50k_base": _R50K,
    "gpt2": _R50K,
    "p50k_base": _R50K,
    "cl100k_base": TiktokenEncoding(
        _TIKTOKEN_CL100K,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": TiktokenEncoding(O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}
