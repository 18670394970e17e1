"""The pieces of text that the model of a ``tokenizer.json`` gets, and what becomes of them.

BPE without all bytes and without an unknown token drops characters. The library returns no tokens for them,
and its offsets of later tokens are then wrong; so they are found by the vocabulary, in these pieces. What a
normalizer or a pre-tokenizer removes is not among them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.encoders import load_huggingface, panics_as_errors
from tokshard.text.tokenizer.files import parse_object


class _Pieces:
    """The normalizer, the pre-tokenizer and the added tokens of a definition, without its model.

    Raises:
        TokenizerError: The library refuses them.
    """

    def __init__(self, definition: dict[str, Any], path: str) -> None:
        # A model that drops all text leaves the added tokens. With the model of the file, offsets after a
        # dropped character are wrong.
        empty = {**definition, "model": {"type": "BPE", "vocab": {}, "merges": []}, "post_processor": None}
        self._library = load_huggingface(json.dumps(empty).encode(), path)

    def of(self, text: str) -> list[str]:
        """Return the normalized pieces of a text that the model gets, added tokens left out."""
        normalizer = self._library.normalizer
        pre_tokenizer = self._library.pre_tokenizer
        pieces = []
        with panics_as_errors("encode a text"):
            for between in self._between_added_tokens(text):
                normalized = normalizer.normalize_str(between) if normalizer else between
                split = pre_tokenizer.pre_tokenize_str(normalized) if pre_tokenizer else [(normalized, None)]
                pieces += [piece for piece, _ in split]
        return pieces

    def _between_added_tokens(self, text: str) -> Iterator[str]:
        end = 0
        for begin, stop in self._library.encode(text, add_special_tokens=False).offsets:
            yield text[end:begin]
            end = stop
        yield text[end:]


class DroppedCharacters:
    """The check of texts for characters that a tokenizer with ``drops_characters`` drops.

    Raises:
        TokenizerError: The library refuses the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        path = str(tokenizer.path)
        definition = parse_object(tokenizer.definition, path)
        model = definition["model"]
        self._pieces = _Pieces(definition, path)
        self._vocabulary = model["vocab"]
        self._ignores_merges = bool(model.get("ignore_merges"))
        self._falls_back = bool(model.get("byte_fallback"))
        self._affixes = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

    def count(self, text: str) -> tuple[int, int]:
        """Return how many normalized characters of a text the model gets, and how many of them it drops."""
        pieces = self._pieces.of(text)
        symbols: Counter[str] = Counter()
        for piece in pieces:
            if not (self._ignores_merges and piece in self._vocabulary):
                symbols.update(self._symbols(piece))
        dropped = sum(times for symbol, times in symbols.items() if not self._is_known(symbol))
        return sum(map(len, pieces)), dropped

    def _symbols(self, piece: str) -> Iterator[str]:
        """Yield the name of each character in the vocabulary."""
        prefix, suffix = self._affixes
        last = len(piece) - 1
        for index, character in enumerate(piece):
            yield prefix * (index > 0) + character + suffix * (index == last)

    def _is_known(self, symbol: str) -> bool:
        if symbol in self._vocabulary:
            return True
        return self._falls_back and all(f"<0x{byte:02X}>" in self._vocabulary for byte in symbol.encode())


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
    pieces = _Pieces({"normalizer": normalizer}, path) if normalizer else None

    def is_renamed(token: dict[str, Any]) -> bool:
        if token.get("lstrip") or token.get("rstrip"):
            return True
        is_normalized = token.get("normalized", not token.get("special"))
        content = token["content"]
        return bool(is_normalized and pieces is not None and pieces.of(content) != [content])

    return [token["content"] for token in definition.get("added_tokens") or [] if is_renamed(token)]
