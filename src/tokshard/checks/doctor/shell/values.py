"""Values of shell variables, of which parts may be unknown, and the words that they become."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from os.path import commonprefix
from typing import NamedTuple

_BLANKS = re.compile(r"[ \t\n]+")
_PREFIX = "__unknown_"
_ENCODED = re.compile(rf"\$\{{{_PREFIX}((?:[0-9a-f][0-9a-f])+)\}}")

# Alternatives of a value that are kept, and their characters.
_MAX_CHOICES = 16
_MAX_CHOICE_CHARACTERS = 20_000


class Piece(NamedTuple):
    """A part of a value: text, or an expansion whose value is unknown.

    Attributes:
        text: The text; an unknown expansion as it is written.
        is_unknown: Whether the value is unknown.
        is_open: Whether an unknown part may stand for any number of words.
        reasons: The expansions that an unknown part depends on; none if it is the text itself.
        choices: The values that an unknown part may have, as of :func:`script_of`; none if they are unknown.
    """

    text: str
    is_unknown: bool = False
    is_open: bool = False
    reasons: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


Value = tuple[Piece, ...]
"""The parts of a value, in order."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    Attributes:
        text: The word after expansion; unknown expansions stay as they are written.
        unknown: For each unknown part, the expansions that it depends on.
        is_open: Whether it may stand for any number of words: it is an unknown array, or an unknown
            expansion without quotes.
        value: The parts of the text, if it was expanded.
    """

    text: str
    unknown: tuple[str, ...] = ()
    is_open: bool = False
    value: Value = field(default=(), compare=False, repr=False)

    def choices(self) -> list[list[Word]]:
        """Return the alternatives of an unknown word, each as its words; none if they are unknown."""
        if len(self.value) != 1:
            return []
        return [split_words(value_of_script(choice)) for choice in self.value[0].choices]


Variable = tuple[Value, ...]
"""The elements of a shell variable: one of a scalar, none of a variable that is not set."""


def unknown_variable(name: str, reasons: Iterable[str]) -> Variable:
    """Return a variable that may have any value, and what it depends on."""
    return ((Piece(f"${name}", True, True, distinct(reasons)),),)


def undecided_variable(name: str, variables: Sequence[Variable | None], reasons: tuple[str, ...]) -> Variable:
    """Return a variable that has one of several values: it begins with the words that all have in common.

    Args:
        name: The name of the variable.
        variables: The alternatives; None if it is not set.
        reasons: The expansions that decide between them.
    """
    lists = [variable or () for variable in variables]
    is_list = any(len(values) > 1 for values in lists)
    if is_list:
        start = len(commonprefix(lists))  # noqa: RUF071 - elements
        common = lists[0][:start]
        scripts = [" ".join(map(script_of, values[start:])) for values in lists]
    else:
        texts = [script_of(values[0]) + " " if values else " " for values in lists]
        start = commonprefix(texts).rfind(" ") + 1  # noqa: RUF071 - characters
        common = (value_of_script(texts[0][:start]),)
        scripts = [text[start:].strip() for text in texts]
    choices = dict[str, None]()
    depends_on = list(reasons)
    for script in scripts:
        value = value_of_script(script)
        is_undecided = len(value) == 1 and bool(value[0].choices)
        choices |= dict.fromkeys(value[0].choices if is_undecided else [script])
        depends_on += value[0].reasons if is_undecided else ()
    is_short = len(choices) <= _MAX_CHOICES and sum(map(len, choices)) <= _MAX_CHOICE_CHARACTERS
    piece = Piece(f"${name}", True, not is_short, distinct(depends_on), tuple(choices) if is_short else ())
    if is_list:
        return (*common, (piece._replace(text=f"${{{name}[@]}}", is_open=True),))
    return ((*common[0], piece),)


def known(text: str) -> Value:
    """Return the value of a text."""
    return (Piece(text),) if text else ()


def unknown(written: str, reasons: Iterable[str] = ()) -> Value:
    """Return the value of an expansion that only a shell can do."""
    return (Piece(written, True, reasons=distinct(reasons)),)


def distinct(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return texts in their order, each once."""
    return tuple(dict.fromkeys(reasons))


def reasons_of(*values: Value) -> tuple[str, ...]:
    """Return the expansions that the unknown parts of values depend on."""
    pieces = (piece for value in values for piece in value if piece.is_unknown)
    return distinct(reason for piece in pieces for reason in piece.reasons or (piece.text,))


def scalar(variable: Variable | None, name: str) -> Value:
    """Return the value of a variable, or of its first element; it is unknown if the variable is not set."""
    return unknown(f"${name}") if variable is None else (*variable, ())[0]


def is_open(values: Iterable[Value]) -> bool:
    """Return whether values may stand for another number of them."""
    return any(piece.is_open for value in values for piece in value)


def script_of(value: Value) -> str:
    """Return a value as text of another script, in which unknown parts stay unknown."""
    texts = (
        f"${{{_PREFIX}{json.dumps(piece).encode().hex()}}}" if piece.is_unknown else piece.text
        for piece in value
    )
    return "".join(texts)


def value_of_script(text: str) -> Value:
    """Return the value whose text is that of :func:`script_of`."""
    parts = _ENCODED.split(text)
    pieces = [_piece_of(part) if number % 2 else Piece(part) for number, part in enumerate(parts)]
    return tuple(piece for piece in pieces if piece.text or piece.is_unknown)


def _piece_of(code: str) -> Piece:
    try:
        text, _, may_be_many, reasons, choices = json.loads(bytes.fromhex(code))
        return Piece(text, True, may_be_many, tuple(reasons), tuple(choices))
    except (ValueError, TypeError, RecursionError):
        return Piece(f"${{{_PREFIX}{code}}}", True)  # the script itself contains such a name


def text_of(value: Value) -> str | None:
    """Return the text of a value; None if a part is unknown."""
    return None if any(piece.is_unknown for piece in value) else "".join(piece.text for piece in value)


def written_text(value: Value) -> str:
    """Return the text of a value, with unknown parts as they are written."""
    return "".join(piece.text for piece in value)


def joined_values(values: Sequence[Value]) -> Value:
    """Return values with blanks between them, as one value."""
    pieces = [piece for value in values for piece in (Piece(" "), *value)]
    return closed(merged(pieces[1:]))


def closed(value: Value) -> Value:
    """Return a value between quotes: it is one word."""
    return tuple(piece._replace(is_open=False) for piece in value) if is_open([value]) else value


def word_of(value: Value) -> Word:
    """Return the word that a value is."""
    unknown_parts = tuple(" and ".join(piece.reasons or (piece.text,)) for piece in value if piece.is_unknown)
    # Text beside an open part belongs to one word at least.
    is_open = bool(value) and all(piece.is_open for piece in value)
    return Word(written_text(value), unknown_parts, is_open, value)


def split_words(value: Value) -> list[Word]:
    """Return the words that an expansion without quotes becomes."""
    fields = Fields()
    fields.add_split(value)
    return list(map(word_of, fields.values()))


class Fields:
    """The words that the parts of one word become: an unquoted expansion may be split at blanks."""

    def __init__(self) -> None:
        self._words: list[list[Piece]] = []
        self._is_cut = True

    def add(self, *values: Value) -> None:
        """Add a part that is not split, or several, each of which but the first begins a new word."""
        for number, value in enumerate(values):
            if number or self._is_cut:
                self._words.append([])
            self._words[-1] += value
            self._is_cut = False

    def add_split(self, value: Value) -> None:
        """Add an unquoted part, which is split at blanks."""
        for piece in value:
            if piece.is_unknown:
                if piece.choices and all(_BLANKS.match(choice + " ") for choice in piece.choices):
                    self.cut()
                self.add((piece._replace(is_open=True),))
                continue
            for number, text in enumerate(_BLANKS.split(piece.text)):
                if number:
                    self.cut()
                if text:
                    self.add((Piece(text),))

    def cut(self) -> None:
        """End a word, if one has begun."""
        self._is_cut = True

    def values(self) -> list[Value]:
        """Return the values of all words."""
        return list(map(merged, self._words))


def merged(pieces: Iterable[Piece]) -> Value:
    """Return a value without empty parts, in which no texts follow each other."""
    joined: list[Piece] = []
    for is_unknown, group in groupby(pieces, key=lambda piece: piece.is_unknown):
        pieces_of_kind = list(group)
        text = "".join(piece.text for piece in pieces_of_kind)
        joined += [piece for piece in pieces_of_kind if piece.text] if is_unknown else known(text)
    return tuple(joined)


def value_of(word: Word) -> Value:
    """Return the value of a word."""
    return word.value or known(word.text)
