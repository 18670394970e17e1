"""Pieces of long texts: their tokens, one after the other, are the tokens of the whole text.

A text is cut where the rules of its tokenizer (:mod:`tokshard.tokenizer.boundaries`) prove a boundary. Such a
place is looked for at the ends of words first, and then between any characters that no token joins.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tokshard.tokenizer.metaspace import REPLACEMENT

# Characters in which the end of a word is searched before another boundary is.
_WORD_SEARCH: Final = 1 << 15
# A run of one character has none: the search must end.
_MOST_TRIALS: Final = 256


class TextPiece(NamedTuple):
    """A piece of a text: its characters from ``begin`` to ``end``.

    Attributes:
        continues: Whether the tokenizer must not put its usual space in front of it. (Between other pieces
            there is a space that belongs to neither: the one that the tokenizer puts there.)
    """

    begin: int
    end: int
    continues: bool = False


@dataclass(frozen=True, slots=True)
class VocabularyRule:
    """Boundaries across which no token of the vocabulary occurs, so that no merge crosses them.

    Attributes:
        candidates: Pattern of a character before and, in a lookahead, one behind a boundary.
        tokens: All tokens, ascending.
        longest: Length of the longest one.
        converted: Converts the text before a boundary (True) or behind it (False) to the form of tokens.
        window: Number of characters to convert on each side.
        run: Number of characters on both sides that must match the pattern, too.
        known: Characters in the vocabulary. Both at a boundary must be: unknown ones may become one token.
            None if all are.
        forbidden: Texts that are encoded differently in a piece that continues.
    """

    candidates: re.Pattern[str]
    tokens: list[Any]
    longest: int
    converted: Callable[[str, bool], Any]
    window: int
    run: int = 0
    known: frozenset[str] | None = None
    forbidden: tuple[str, ...] = ()

    def allows(self, text: str) -> bool:
        """Return whether the rule applies to a text."""
        return not any(token in text for token in self.forbidden)

    def boundaries(self, text: str, begin: int) -> Iterator[int]:
        """Yield the boundaries among the first candidates from ``begin`` on."""
        for number, found in enumerate(self.candidates.finditer(text, begin)):
            if number == _MOST_TRIALS:
                return
            if self._is_boundary(text, found.end()):
                yield found.end()

    def _is_boundary(self, text: str, place: int) -> bool:
        if self.known is not None and not self.known.issuperset(text[place - 1 : place + 1]):
            return False
        if self.run:
            around = text[max(0, place - self.run) : place + self.run]
            if len(around) < 2 * self.run or len(self.candidates.findall(around)) < len(around) - 1:
                return False
        left = self.converted(text[max(0, place - self.window) : place], True)
        right = self.converted(text[place : place + self.window], False)
        if len(left) < self.longest - 1 and place > self.window:
            return False
        if len(right) < self.longest - 1 and place + self.window < len(text):
            return False
        return not self._spans(left, right)

    def _spans(self, left: Any, right: Any) -> bool:
        tokens = self.tokens
        for length in range(1, min(self.longest, len(left) + 1)):
            place = 0
            for reach in range(1, len(right) + 1):
                start = left[-length:] + right[:reach]
                place = bisect_left(tokens, start, place)
                if place == len(tokens) or not tokens[place].startswith(start):
                    break
                if tokens[place] == start:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The boundaries that are proven for a tokenizer.

    Attributes:
        words: Pattern of the last character of a word, behind which a text can be cut; None if it cannot.
        takes_space: Whether the tokenizer puts a space in front of each text.
        added_tokens: Tokens that are found in texts: none may be at a boundary or next to it.
        normalized_tokens: The same, for tokens that may be spelled in other ways.
    """

    words: re.Pattern[str] | None
    takes_space: bool = False
    added_tokens: tuple[str, ...] = ()
    normalized_tokens: tuple[str, ...] = ()

    def pieces(
        self, text: str, size: int, vocabulary_rule: Callable[[], VocabularyRule | None]
    ) -> Iterator[TextPiece]:
        """Yield the pieces of a text, each with ``size`` characters and the few up to a boundary.

        A piece is longer where no boundary is known. ``vocabulary_rule``: called for texts with few words.
        """
        begin, continues = 0, False
        search = size
        while search < len(text) - size:
            end = self._word_end(text, search)
            if end is not None:
                yield TextPiece(begin, end, continues)
                begin, continues = end + self.takes_space, False
            elif (rule := vocabulary_rule()) is not None and rule.allows(text):
                places = rule.boundaries(text, search)
                end = next((place for place in places if self._is_clear(text, place, place)), None)
                if end is not None:
                    yield TextPiece(begin, end, continues)
                    begin, continues = end, self.takes_space
            search = (search if end is None else begin) + size
        yield TextPiece(begin, len(text), continues)

    def _word_end(self, text: str, begin: int) -> int | None:
        if self.words is None:
            return None
        for found in self.words.finditer(text, begin, min(begin + _WORD_SEARCH, len(text) - 1)):
            end = found.end()
            after = end + self.takes_space
            if (
                _is_in_word(text[end - 1])
                and (not self.takes_space or _is_in_word(text[after]))
                and (text[end] in " \n0123456789" or _is_stable(text[end], "PS"))
                and self._is_clear(text, end, after)
            ):
                return end
        return None

    def _is_clear(self, text: str, end: int, begin: int) -> bool:
        return _has_no_token(self.added_tokens, text, end, begin, str) and _has_no_token(
            self.normalized_tokens, text, end, begin, folded
        )


def _has_no_token(tokens: Sequence[str], text: str, end: int, begin: int, form: Callable[[str], str]) -> bool:
    # A normalized character can stand for several of the text.
    reach = 4 * max(map(len, tokens), default=0) + 2
    before = form(text[max(0, end - reach) : end])
    window = before + form(text[end : begin + reach])
    first, last = len(before) - 1, len(before) + begin - end + 1
    for token in tokens:
        place = window.find(token)
        while 0 <= place <= last:
            if place + len(token) >= first:
                return False
            place = window.find(token, place + 1)
    return True


def folded(text: str) -> str:
    """Return a text in a form that is equal for all texts that a known normalizer makes equal."""
    return unicodedata.normalize("NFKC", text).lower().replace(REPLACEMENT, " ")


def _is_in_word(character: str) -> bool:
    return "!" <= character <= "~" or _is_stable(character, "L")


@lru_cache(maxsize=1 << 14)
def _is_stable(character: str, classes: str) -> bool:
    # In the same class in all versions of Unicode, and no normalizer changes it.
    return (
        unicodedata.category(character)[0] in classes
        and unicodedata.ucd_3_2_0.category(character)[0] in classes
        and unicodedata.normalize("NFKC", character) == character
        and len(character.lower()) == 1
    )
