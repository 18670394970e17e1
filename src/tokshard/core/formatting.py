"""Numbers, names and foreign text as people read them, in the terminal, on pages and in logs."""

from __future__ import annotations

from typing import Any


def count(number: int) -> str:
    """Return a whole number with thousands separators.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    Example:
        >>> counted(1, "time"), counted(2000, "time")
        ('1 time', '2,000 times')
    """
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(number: float) -> str:
    """Return a number of bytes in decimal units, three digits.

    Example:
        >>> size(999), size(1_234_567), size(5e13)
        ('999 B', '1.23 MB', '50.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    if unit == "B":
        return f"{number:.0f} B"
    return f"{number:.{max(0, 3 - len(str(int(number))))}f} {unit}"


def duration(seconds: float) -> str:
    """Return a time span as a person says it.

    Example:
        >>> duration(0.42), duration(75), duration(7384)
        ('0.42 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def tokenizer_name(identity: dict[str, Any]) -> str:
    """Return what to call a tokenizer: its kind, its name if it has one, and the start of its digest.

    The identity is empty for datasets that were merged from parts of which it is not known.

    Example:
        >>> tokenizer_name({"kind": "tiktoken", "name": "gpt2", "sha256": "0123456789abcdef"})
        'tiktoken gpt2 0123456789ab'
    """
    if not identity:
        return "not known, or not one"
    parts = (identity["kind"], identity["name"], str(identity["sha256"])[:12])
    return visible(" ".join(str(part) for part in parts if part))


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
