"""Characters that a tokenizer drops: BPE without all bytes and without an unknown token.

The library returns no tokens for them, and its offsets of later tokens are then wrong; so they are found by
the vocabulary, in the pieces of text that the model gets. What a normalizer or a pre-tokenizer removes is not
among them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from tokshard.text.tokenizer import libraries
from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.files import parse_object
from tokshard.text.tokenizer.huggingface import EMPTY_MODEL


class DroppedCharacters:
    """The check of texts for characters that a tokenizer with ``drops_characters`` drops.

    Raises:
        TokenizerError: The library refuses the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        path = str(tokenizer.path)
        definition = parse_object(tokenizer.definition, path)
        model = definition["model"]
        empty = {**definition, "model": EMPTY_MODEL, "post_processor": None}
        # Without spaces: a key of tokshard is recognized at the beginning.
        self._library = libraries.load_huggingface(json.dumps(empty, separators=(",", ":")).encode(), path)
        self._vocabulary = model["vocab"]
        self._ignores_merges = bool(model.get("ignore_merges"))
        self._falls_back = bool(model.get("byte_fallback"))
        self._affixes = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

    def count(self, text: str) -> tuple[int, int]:
        """Return how many normalized characters of a text the model gets, and how many of them it drops."""
        with libraries.panics_as_errors("encode a text"):
            pieces = self._library.pieces(text)
        symbols: Counter[str] = Counter()
        for piece in pieces:
            if not (self._ignores_merges and piece in self._vocabulary):
                symbols.update(self._symbols(piece))
        dropped = sum(times for symbol, times in symbols.items() if not self._is_known(symbol))
        return sum(map(len, pieces)), dropped

    def _symbols(self, piece: str) -> Iterator[str]:
        # The name of each character in the vocabulary.
        prefix, suffix = self._affixes
        last = len(piece) - 1
        for index, character in enumerate(piece):
            yield prefix * (index > 0) + character + suffix * (index == last)

    def _is_known(self, symbol: str) -> bool:
        if symbol in self._vocabulary:
            return True
        return self._falls_back and all(f"<0x{byte:02X}>" in self._vocabulary for byte in symbol.encode())
