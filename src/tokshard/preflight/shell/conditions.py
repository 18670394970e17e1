"""Outcomes of shell conditions: ``[ ... ]`` and ``[[ ... ]]``, as far as their operands are known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokshard.preflight.shell.expansion import Expander, matches
from tokshard.preflight.shell.syntax import Node
from tokshard.preflight.shell.values import Value, is_open, text_of, written_text

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_BINARY = re.compile(r"[=<>]|[=!]=|-(?:eq|ne|lt|le|gt|ge|ef|nt|ot)")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition at one place of a script.

    Attributes:
        outcome: Whether it holds; None if that is unknown.
        key: Its operands as they are written: equal keys have equal outcomes until a variable changes.
        binds: The name and the value of a variable that must be equal, if the condition compares one.
        is_negated: Whether the variable has that value where the condition does not hold.
    """

    outcome: bool | None
    key: tuple[str, ...] = ()
    binds: tuple[str, str] | None = None
    is_negated: bool = False

    def negated(self) -> Condition:
        """Return the opposite condition."""
        outcome = None if self.outcome is None else not self.outcome
        return Condition(outcome, ("!", *self.key), self.binds, not self.is_negated)


def condition_of_words(values: Sequence[Value]) -> Condition:
    """Return the condition of the operands of ``test``, or of ``[`` without the last bracket."""
    texts = [written_text(value) for value in values]
    if _is_refused(texts) and not is_open(values):
        return Condition(False, tuple(texts))
    for joint, decide in (("-o", _any), ("-a", _all)):
        for at in range(1, len(texts) - 1):
            if texts[at] == joint and len(texts) > 3:
                one, other = condition_of_words(values[:at]), condition_of_words(values[at + 1 :])
                return Condition(decide(one.outcome, other.outcome), (*one.key, joint, *other.key))
    if len(values) > 1 and texts[0] == "!":
        return condition_of_words(values[1:]).negated()
    return _simple(values, texts)


def _is_refused(texts: Sequence[str]) -> bool:
    # Bash prints an error about operands without an operator: the test fails, negated or not.
    while len(texts) > 1 and texts[0] == "!":
        texts = texts[1:]
    if "-a" in texts or "-o" in texts:
        return False
    if len(texts) == 3:
        return not _BINARY.fullmatch(texts[1])
    return len(texts) > 3 or (len(texts) == 2 and not texts[0].startswith("-"))


def _simple(values: Sequence[Value], texts: Sequence[str]) -> Condition:
    match len(values):
        case 0:
            return Condition(False)
        case 1:
            return _unary("-n", values[0])
        case 2:
            return _unary(texts[0], values[1])
        case 3:
            return _binary(values[0], texts[1], values[2], has_patterns=False)
        case _:
            return Condition(None, tuple(texts))


def condition_of_test(node: Node, expander: Expander) -> Condition:
    """Return the condition of a ``[[ ... ]]``."""
    kind = node["Type"]
    if kind == "ParenTest":
        return condition_of_test(node["X"], expander)
    if kind == "UnaryTest":
        if node["Op"] == "!":
            return condition_of_test(node["X"], expander).negated()
        return _unary(node["Op"], expander.value(node["X"]))
    if kind == "BinaryTest":
        if node["Op"] in ("&&", "||"):
            one, other = condition_of_test(node["X"], expander), condition_of_test(node["Y"], expander)
            decide = _all if node["Op"] == "&&" else _any
            return Condition(decide(one.outcome, other.outcome), (*one.key, node["Op"], *other.key))
        quoted = [part["Type"] for part in node["Y"].get("Parts", ())] != ["Lit"]
        values = expander.value(node["X"]), expander.value(node["Y"])
        return _binary(values[0], node["Op"], values[1], has_patterns=not quoted)
    return _unary("-n", expander.value(node))


def _all(one: bool | None, other: bool | None) -> bool | None:  # noqa: FBT001 - outcomes
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _any(one: bool | None, other: bool | None) -> bool | None:  # noqa: FBT001 - outcomes
    if one or other:
        return True
    return None if one is None or other is None else False


def _unary(kind: str, value: Value) -> Condition:
    key = (kind, written_text(value))
    if kind not in ("-z", "-n"):
        return Condition(None, key)  # files, and whether a variable is set
    text = text_of(value)
    if text is not None:
        return Condition((text == "") == (kind == "-z"), key)
    if any(piece.text and not piece.is_unknown for piece in value):
        return Condition(kind == "-n", key)
    name = _variable(value)
    # Both forms of the question have one key.
    condition = Condition(None, ("-z", written_text(value)), None if name is None else (name, ""))
    return condition if kind == "-z" else _opposite(condition)


def _opposite(condition: Condition) -> Condition:
    return Condition(None, ("-n", *condition.key[1:]), condition.binds, is_negated=True)


def _binary(one: Value, kind: str, other: Value, *, has_patterns: bool) -> Condition:
    key = (kind, written_text(one), written_text(other))
    first, second = text_of(one), text_of(other)
    if kind in ("=", "==", "!="):
        if first is not None and second is not None:
            equal = matches(first, second) if has_patterns else first == second
            return Condition(equal == (kind != "!="), key)
        equals = ("=", *key[1:])
        binds = None
        for value, text in ((one, second), (other, first)):
            name = _variable(value)
            if name is not None and text is not None and not (has_patterns and re.search(r"[*?\[]", text)):
                binds = (name, text)
        if kind == "!=":
            return Condition(None, ("!", *equals), binds, is_negated=True)
        return Condition(None, equals, binds)
    if kind in _NUMBERS and first is not None and second is not None:
        try:
            return Condition(_NUMBERS[kind](int(first), int(second)), key)
        except ValueError:
            return Condition(None, key)
    return Condition(None, key)


def _variable(value: Value) -> str | None:
    # The name of the variable that is the whole value.
    if len(value) != 1 or not value[0].is_unknown:
        return None
    match = _VARIABLE.fullmatch(value[0].text)
    return None if match is None else match[1] or match[2]
