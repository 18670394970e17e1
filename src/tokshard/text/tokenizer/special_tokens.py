"""The special tokens of a tokenizer: those that mark structure, and are not pieces of ordinary text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokshard.text.tokenizer.definition import BYTES_EOD, BYTES_EOD_ID, Tokenizer
from tokshard.text.tokenizer.files import parse_object
from tokshard.text.tokenizer.huggingface import EMPTY_MODEL, added_token_ids, declared_unknown_id
from tokshard.text.tokenizer.libraries import load_huggingface
from tokshard.text.tokenizer.sentencepiece_files import sentencepiece_processor
from tokshard.text.tokenizer.tiktoken_files import encoding_of_name


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        names: The text of each, by id, ascending.
        unknown_id: The id of the token for unknown characters, which ordinary text may become; or None.
    """

    names: Mapping[int, str]
    unknown_id: int | None


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
    path = str(tokenizer.path)
    match tokenizer.kind:
        case "null":
            return SpecialTokens({}, None)
        case "bytes":
            return SpecialTokens({BYTES_EOD_ID: BYTES_EOD}, None)
        case "tiktoken":
            encoding = encoding_of_name(tokenizer.definition, str(tokenizer.name), path)
            return SpecialTokens(_ascending(encoding.special_tokens), None)
        case "sentencepiece":
            processor = sentencepiece_processor(tokenizer.definition, path)
            control = [index for index in range(processor.vocab_size()) if processor.is_control(index)]
            unknown = processor.unk_id()
            return SpecialTokens(
                {index: processor.id_to_piece(index) for index in control}, unknown if unknown >= 0 else None
            )
        case "huggingface":
            return _of_huggingface(parse_object(tokenizer.definition, path))


def renamed_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the added tokens of a ``tokenizer.json`` that are found under another name.

    The name is the text that was matched: with the white space around it if the token has ``lstrip`` or
    ``rstrip``, and normalized if it has ``normalized``. Megatron without special tokens looks up the ids of
    these names, ``convert_tokens_to_ids(tokenize(text))``, which the vocabulary does not have.

    Raises:
        TokenizerError: The library refuses the normalizer.
    """
    path = str(tokenizer.path)
    definition = parse_object(tokenizer.definition, path)
    normalizer = definition.get("normalizer")
    empty = {"model": EMPTY_MODEL, "normalizer": normalizer}
    library = load_huggingface(json.dumps(empty).encode(), path) if normalizer else None

    def is_renamed(token: dict[str, Any]) -> bool:
        if token.get("lstrip") or token.get("rstrip"):
            return True
        is_normalized = token.get("normalized", not token.get("special"))
        content = token["content"]
        return bool(is_normalized and library is not None and library.pieces(content) != [content])

    return [token["content"] for token in definition.get("added_tokens") or [] if is_renamed(token)]


def _of_huggingface(parsed: dict[str, Any]) -> SpecialTokens:
    model = parsed["model"]
    added = parsed.get("added_tokens") or []
    added_ids = added_token_ids(model, [token["content"] for token in added])
    ids = model["vocab"] if isinstance(model["vocab"], dict) else {}  # Unigram names its unknown token by id
    names = {token["content"] for token in added if token.get("special") and token["content"]}
    unknown = declared_unknown_id(model, {**ids, **added_ids})
    return SpecialTokens(_ascending({name: added_ids[name] for name in names}), unknown)


def _ascending(ids: Mapping[str, int]) -> dict[int, str]:
    return {index: name for name, index in sorted(ids.items(), key=lambda item: item[1])}
