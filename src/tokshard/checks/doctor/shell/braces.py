"""Brace expansion: ``{a,b}`` and ``{1..9}``, which is done before all other expansions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from tokshard.checks.doctor.shell.syntax import Node

_GROUP = re.compile(r"((?:\\.|[^{}\\])*)\{([^{}\\,]*(?:,[^{}\\,]*)+|[0-9]{1,9}\.\.[0-9]{1,9})\}")


def expand_braces(parts: Sequence[Node], spend: Callable[[int], None]) -> list[Sequence[Node]] | None:
    """Return the words, each as its parts, that the parts of one word become; None if they are unknown.

    Braces within braces, and with other expansions between them, are not expanded here.

    Args:
        parts: The parts.
        spend: A function that is called with the number of parts of all words before they are made.

    Example:
        >>> words = expand_braces([{"Type": "Lit", "Value": "x{a,b}{1..2}"}], lambda count: None)
        >>> ["".join(part["Value"] for part in parts) for parts in words]
        ['xa1', 'xa2', 'xb1', 'xb2']
    """
    text = "".join(part.get("Value", "") for part in parts if part["Type"] == "Lit")
    if "{" not in text or ("," not in text and ".." not in text):
        return [parts]
    choices = list[Sequence[Node | None]]()
    has_groups = False
    for part in parts:
        literal = part.get("Value", "") if part["Type"] == "Lit" else ""
        end = 0
        if "{" not in literal:
            choices.append([part])
            continue
        while (match := _GROUP.match(literal, end)) is not None:
            end = match.end()
            has_groups = True
            items = _items(match[2], spend)
            choices += [[_literal(match[1])], list(map(_literal, items))]
        if "{" in re.sub(r"\\.", "", literal[end:]) or "}" in literal[end:]:
            return None
        choices.append([_literal(literal[end:])])
    if not has_groups:
        return None
    spend(prod(map(len, choices)) * len(choices))
    return [[part for part in word if part is not None] for word in product(*choices)]


def _literal(text: str) -> Node | None:
    return {"Type": "Lit", "Value": text} if text else None


def _items(text: str, spend: Callable[[int], None]) -> Sequence[str]:
    if "," in text:
        return text.split(",")
    first, last = text.split("..")
    is_padded = any(number.startswith("0") and number != "0" for number in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    step = 1 if int(first) <= int(last) else -1
    numbers = range(int(first), int(last) + step, step)
    spend(len(numbers))
    return [f"{number:0{width}}" for number in numbers]
