"""Text from data, made harmless for whoever shows it: a terminal, a page, a log."""

from __future__ import annotations


def visible(text: object) -> str:
    r"""Return a text with control characters, lone surrogates, bidi marks and the like made visible.

    What is left moves no cursor, changes no colour, hides nothing and turns no line around. Letters of
    every script stay as they are.

    Example:
        >>> visible("a\x1b[31mred\u202eder\ud800")
        'a\\x1b[31mred\\u202eder\\ud800'
    """
    return "".join(
        character if character.isprintable() or character == " " else _escaped(character)
        for character in str(text)
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
