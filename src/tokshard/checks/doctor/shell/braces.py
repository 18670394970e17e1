"""Brace expansion: ``{a,b}`` and ``{1..9}``, which is done before all other expansions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokshard.checks.doctor.shell.syntax import Node

_GROUP = re.compile(r"((?:\\.|[^{}\\])*)\{([^{}\\,]*(?:,[^{}\\,]*)+|[0-9]+\.\.[0-9]+)\}")
_MAX_ITEMS = 10_000


def expand_braces(parts: Sequence[Node]) -> list[Sequence[Node]] | None:
    """Return the words, each as its parts, that the parts of one word become; None if they are unknown.

    Braces within braces, and with other expansions between them, are not expanded here.

    Example:
        >>> words = expand_braces([{"Type": "Lit", "Value": "x{a,b}{1..2}"}])
        >>> [part["Value"] for (part,) in words]
        ['xa1', 'xa2', 'xb1', 'xb2']
    """
    text = "".join(part.get("Value", "") for part in parts if part["Type"] == "Lit")
    if "{" not in text or ("," not in text and ".." not in text):
        return [parts]
    at = next(at for at, part in enumerate(parts) if part["Type"] == "Lit" and "{" in part["Value"])
    literal = parts[at]["Value"]
    match = _GROUP.match(literal)
    items = [] if match is None else _items(match[2])
    if match is None or not items:
        return None
    words: list[Sequence[Node]] = []
    for item in items:
        changed = match[1] + item + literal[match.end() :]
        expanded = expand_braces([*parts[:at], *_literals(changed), *parts[at + 1 :]])
        if expanded is None:
            return None
        words += expanded
    return words


def _literals(text: str) -> list[Node]:
    return [{"Type": "Lit", "Value": text}] if text else []


def _items(text: str) -> Sequence[str]:
    if "," in text:
        return text.split(",")
    first, last = text.split("..")
    is_padded = any(number.startswith("0") and number != "0" for number in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    step = 1 if int(first) <= int(last) else -1
    numbers = range(int(first), int(last) + step, step)
    return [f"{number:0{width}}" for number in numbers] if len(numbers) <= _MAX_ITEMS else []
