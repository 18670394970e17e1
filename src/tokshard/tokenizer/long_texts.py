"""Encoding of long texts in pieces: a library can need 240 bytes of memory for each byte of a text.

The tokens are those of the whole text (:mod:`tokshard.tokenizer.boundaries`). A text in which no boundaries
are known is encoded whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from tokshard.tokenizer import encoders, equivalence, libraries
from tokshard.tokenizer.boundaries import vocabulary_rule_of, without_prefix
from tokshard.tokenizer.definition import Tokenizer
from tokshard.tokenizer.encoders import EncodedBatch, Encoder
from tokshard.tokenizer.pieces import TextPiece
from tokshard.tokenizer.structure import FastEncoderRefusedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE_CHARACTERS: Final = 1 << 17
LONG_CHARACTERS: Final = 2 * PIECE_CHARACTERS
"""Longer texts are long; shorter ones would not be cut."""

_COMPARED_PIECES: Final = 16
_EXCERPT_CHARACTERS: Final = 1 << 14


class LongTextEncoder:
    """Encoder of long texts, which can compare some of their pieces with the reference.

    Args:
        tokenizer: The tokenizer.
        encoder: Its encoder.
        reference: Its reference encoder.
        special_tokens: Whether both add special tokens to a text.
    """

    def __init__(
        self, tokenizer: Tokenizer, encoder: Encoder, reference: Encoder, *, special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._encoder, self._reference = encoder, reference
        self._continuing: dict[str, Encoder] = {}
        prefix, suffix = tokenizer.identity.prefix_ids, tokenizer.identity.suffix_ids
        is_known = not special_tokens or (prefix is not None and suffix is not None)
        self._boundaries = libraries.boundaries(tokenizer) if is_known else None
        self._vocabulary_rule = cache(partial(vocabulary_rule_of, tokenizer))
        self._prefix = len((special_tokens and prefix) or ())
        self._suffix = len((special_tokens and suffix) or ())

    def encode(self, text: str, *, compare: bool, where: str) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of a text, piece by piece.

        ``compare``: whether some of the pieces are compared with the reference. ``where``: name of the
        input in errors.

        Raises:
            EncoderMismatchError: A piece differs.
        """
        pieces = [TextPiece(0, len(text))]
        if self._boundaries is not None:
            pieces = list(self._boundaries.pieces(text, PIECE_CHARACTERS, self._vocabulary_rule))
        last = len(pieces) - 1
        step = last // _COMPARED_PIECES + 1
        for number, piece in enumerate(pieces):
            content = text[piece.begin : piece.end]
            encoder = self._continuing_encoder("fast") if piece.continues else self._encoder
            encoded = encoder.encode([content])
            if compare and (number % step == 0 or number == last):
                self._compare(content, encoded, where, continues=piece.continues)
            # Only the first piece keeps the ids before a text, and the last one those behind it.
            begin = self._prefix if number else 0
            end = len(encoded.ids) - (self._suffix if number < last else 0)
            yield encoded.ids[begin:end]

    def _compare(self, text: str, encoded: EncodedBatch, where: str, *, continues: bool) -> None:
        import numpy as np

        reference = self._continuing_encoder("reference") if continues else self._reference
        texts = [text]
        if len(text) > 2 * LONG_CHARACTERS:
            # No boundary was found, and the reference would need too much memory: parts are compared instead.
            step = len(text) // _COMPARED_PIECES
            texts = [text[begin : begin + _EXCERPT_CHARACTERS] for begin in range(0, len(text), step)]
            encoded = self._encoder.encode(texts)
            reference = self._reference
        equivalence.compare(texts, encoded, np.arange(len(texts)), reference, where)

    def _continuing_encoder(self, name: str) -> Encoder:
        # Few texts need one: those without spaces.
        if self._encoder.name == "reference":
            name = "reference"
        if name not in self._continuing:
            make = _fast_or_reference if name == "fast" else encoders.reference_encoder
            self._continuing[name] = make(
                without_prefix(self._tokenizer), special_tokens=self._special_tokens
            )
        return self._continuing[name]


def _fast_or_reference(tokenizer: Tokenizer, *, special_tokens: bool) -> Encoder:
    try:
        return encoders.fast_encoder(tokenizer, special_tokens=special_tokens)
    except FastEncoderRefusedError:
        return encoders.reference_encoder(tokenizer, special_tokens=special_tokens)
