"""Brace expansion: ``{a,b}`` and ``{1..9}``, which is done before all other expansions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from tokshard.checks.doctor.shell.syntax import Node

_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_GROUP = re.compile(rf"(?<!\\)\{{([^{{}}\\,]*(?:,[^{{}}\\,]*)+|{_NUMBER}\.\.{_NUMBER})\}}")


def expand_braces(parts: Sequence[Node], spend: Callable[[int], None]) -> list[Sequence[Node]] | None:
    """Return the words, each as its parts, that the parts of one word become; None if they are unknown.

    Braces within braces, and with other expansions between them, are not expanded here.

    Args:
        parts: The parts.
        spend: A function that is called with the number of parts of all words before they are made.
    """
    text = "".join(part.get("Value", "") for part in parts if part["Type"] == "Lit")
    if "{" not in text or ("," not in text and ".." not in text):
        return [parts]
    choices = list[list[Node]]()
    for part in parts:
        if part["Type"] != "Lit":
            choices.append([part])
            continue
        for number, piece in enumerate(_GROUP.split(part.get("Value", ""))):
            items = _items(piece, spend) if number % 2 else [piece]
            if number % 2 == 0 and re.search(r"[{}]", re.sub(r"\\.", "", piece)):
                return None
            choices.append([{"Type": "Lit", "Value": item} for item in items])
    spend(prod(map(len, choices)) * len(choices))
    return [[part for part in word if part.get("Value") != ""] for word in product(*choices)]


def _items(text: str, spend: Callable[[int], None]) -> Sequence[str]:
    if "," in text:
        return text.split(",")
    first, last = map(int, text.split(".."))
    spend(abs(last - first))
    step = 1 if first <= last else -1
    return list(map(str, range(first, last + step, step)))
