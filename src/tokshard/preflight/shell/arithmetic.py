"""Shell arithmetic: ``$((...))``, ``((...))``, ``let`` and the indexes of arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokshard.preflight.shell.state import State
from tokshard.preflight.shell.syntax import Node
from tokshard.preflight.shell.values import Value, Variable, reasons_of, scalar, text_of, written_text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_POWER = 64


def _divide(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda one, other: one - other * _divide(one, other),
    "<": lambda one, other: int(one < other),
    ">": lambda one, other: int(one > other),
    "<=": lambda one, other: int(one <= other),
    ">=": lambda one, other: int(one >= other),
    "==": lambda one, other: int(one == other),
    "!=": lambda one, other: int(one != other),
    "&&": lambda one, other: int(bool(one and other)),
    "||": lambda one, other: int(bool(one or other)),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


@dataclass(slots=True)
class Arithmetic:
    """Evaluation of arithmetic expressions.

    Attributes:
        state: The state of the script, which assignments change.
        word: The expansion of operands.
        reasons: The unknown expansions that were needed.
    """

    state: State
    word: Callable[[Node], Value]
    reasons: list[str] = field(default_factory=list)

    def value(self, node: Node) -> int | None:
        """Return the value of an expression; None if it is unknown."""
        kind = node["Type"]
        if kind == "ParenArithm":
            return self.value(node["X"])
        if kind == "Word":
            return self._integer(node)
        if kind == "UnaryArithm":
            return self._unary(node)
        if kind == "BinaryArithm":
            return self._binary(node)
        return None

    def _integer(self, node: Node) -> int | None:
        value = self.word(node)
        if _NAME.fullmatch(name := written_text(value)) and text_of(value) is not None:
            value = scalar(self.state.variables.get(name), name)
        text = text_of(value)
        if text is None:
            self.reasons += reasons_of(value)
            return None
        try:
            return _number(text.strip() or "0")
        except ValueError:
            return None  # the text is an expression itself

    def _unary(self, node: Node) -> int | None:
        value, kind = self.value(node["X"]), node["Op"]
        if kind in ("++", "--"):
            changed = None if value is None else value + (1 if kind == "++" else -1)
            self._assign_number(node["X"], changed)
            return value if node.get("Post") else changed
        if value is None:
            return None
        return {"-": -value, "+": value, "!": int(not value), "~": ~value}.get(kind)

    def _binary(self, node: Node) -> int | None:
        kind = node["Op"]
        if kind == "?":
            return self._choice(node)
        if kind == ",":
            self.value(node["X"])
            return self.value(node["Y"])
        other = self.value(node["Y"])
        if kind.endswith("=") and kind not in ("==", "!=", "<=", ">="):
            if kind != "=":
                other = combined(kind[:-1], self.value(node["X"]), other)
            self._assign_number(node["X"], other)
            return other
        return combined(kind, self.value(node["X"]), other)

    def _choice(self, node: Node) -> int | None:
        condition = self.value(node["X"])
        sides = node["Y"]
        if condition is None or sides["Type"] != "BinaryArithm":
            return None
        return self.value(sides["X"] if condition else sides["Y"])

    def _assign_number(self, target: Node, value: int | None) -> None:
        name = written_text(self.word(target))
        if _NAME.fullmatch(name):
            variable = Variable.unknown(name, self.reasons) if value is None else Variable.of(str(value))
            self.state.assign(name, variable)


def _number(text: str) -> int:
    if text.lower().lstrip("+-").startswith("0x"):
        return int(text, 16)
    is_octal = text.lstrip("+-").startswith("0")
    return int(text, 8 if is_octal else 10)


def combined(kind: str, one: int | None, other: int | None) -> int | None:
    """Return the result of an operator; None if an operand is unknown, or it has no result."""
    if one is None or other is None:
        return None
    if kind == "**":
        return _wrapped(one**other) if 0 <= other <= _MAX_POWER else None
    if kind in ("<<", ">>"):
        shifted = one << (other % 64) if kind == "<<" else one >> (other % 64)
        return _wrapped(shifted)
    try:
        operation = _OPERATIONS.get(kind)
        return None if operation is None else _wrapped(operation(one, other))
    except ZeroDivisionError:
        return None


def _wrapped(value: int) -> int:
    # Bash computes with 64 bits.
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
