"""Brace expansion: ``{a,b}`` and ``{1..9..2}``, which is done before all other expansions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tokshard.preflight.shell.syntax import Node

_UNIT = re.compile(r"\\?.", re.DOTALL)
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")
_MAX_ITEMS = 10_000

_Unit = str | Node  # a character, possibly escaped, or another part of a word


def expand_braces(parts: Sequence[Node]) -> list[Sequence[Node]]:
    """Return the words, each as its parts, that the parts of one word become.

    Example:
        >>> words = expand_braces([{"Type": "Lit", "Value": "x{a,b{1..2}}"}])
        >>> [part["Value"] for (part,) in words]
        ['xa', 'xb1', 'xb2']
    """
    if not any(part["Type"] == "Lit" and "{" in part.get("Value", "") for part in parts):
        return [parts]
    units: list[_Unit] = []
    for part in parts:
        units += _UNIT.findall(part.get("Value", "")) if part["Type"] == "Lit" else [part]
    return [list(_parts(word)) for word in _words(units)]


def _words(units: list[_Unit]) -> Iterator[list[_Unit]]:
    for start, unit in enumerate(units):
        if unit != "{":
            continue
        end, commas = _group(units, start)
        if end is None:
            continue
        choices = _choices(units, start, end, commas)
        if choices:
            rests = list(_words(units[end + 1 :]))
            for choice in choices:
                yield from (units[:start] + choice + rest for rest in rests)
            return
    yield units


def _group(units: Sequence[_Unit], start: int) -> tuple[int | None, list[int]]:
    # The position of the closing brace, and those of the commas between.
    depth, commas = 0, list[int]()
    for at in range(start, len(units)):
        unit = units[at]
        depth += (unit == "{") - (unit == "}")
        if depth == 0:
            return at, commas
        if unit == "," and depth == 1:
            commas.append(at)
    return None, []


def _choices(units: list[_Unit], start: int, end: int, commas: Sequence[int]) -> list[list[_Unit]]:
    if commas:
        cuts = [start, *commas, end]
        inner = [units[one + 1 : other] for one, other in pairwise(cuts)]
        return [word for choice in inner for word in _words(choice)]
    between = units[start + 1 : end]
    if not all(isinstance(unit, str) for unit in between):
        return []
    return [list(text) for text in _sequence("".join(map(str, between)))]


def _sequence(text: str) -> list[str]:
    if match := _NUMBERS.fullmatch(text):
        is_padded = any(re.match(r"-?0\d", match[number]) for number in (1, 2))
        width = max(len(match[1]), len(match[2])) if is_padded else 0
        return [f"{number:0{width}}" for number in _range(int(match[1]), int(match[2]), match[3])]
    if match := _LETTERS.fullmatch(text):
        return [chr(code) for code in _range(ord(match[1]), ord(match[2]), match[3])]
    return []


def _range(first: int, last: int, written_step: str | None) -> range:
    step = abs(int(written_step or 1)) or 1
    found = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return found[:_MAX_ITEMS]


def _parts(units: Sequence[_Unit]) -> Iterator[Node]:
    text = ""
    for unit in units:
        if isinstance(unit, str):
            text += unit
            continue
        if text:
            yield {"Type": "Lit", "Value": text}
        text = ""
        yield unit
    if text:
        yield {"Type": "Lit", "Value": text}
