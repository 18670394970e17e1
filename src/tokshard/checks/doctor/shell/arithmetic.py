"""Shell arithmetic: ``$((...))``, ``((...))`` and the indexes of arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from tokshard.checks.doctor.shell.syntax import Node
from tokshard.checks.doctor.shell.values import Value, known, reasons_of, text_of, unknown

# Others, such as octal numbers and expressions, are unknown.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def _divide(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda one, other: one - other * _divide(one, other),
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda one, other: bool(one and other),
    "||": lambda one, other: bool(one or other),
}


def value_of_arithmetic(node: Node, written: str, operand: Callable[[Node], Value]) -> Value:
    """Return the value of an expression without assignments.

    Args:
        node: The expression.
        written: Its text, which stands for an unknown value.
        operand: A function that expands an operand.
    """
    kind = node["Type"]
    if kind == "ParenArithm":
        return value_of_arithmetic(node["X"], written, operand)
    if kind == "Word":
        value = operand(node)
        text = text_of(value)
        is_integer = text is not None and _INTEGER.fullmatch(text.strip() or "0")
        return (
            known(str(int(text.strip() or "0")))
            if text and is_integer
            else unknown(written, reasons_of(value))
        )
    operands = [value_of_arithmetic(node[side], written, operand) for side in ("X", "Y") if side in node]
    if kind == "UnaryArithm" and node["Op"] == "-":
        operands.insert(0, known("0"))
    reasons = [reason for reason in reasons_of(*operands) if reason != written]
    numbers = [text for value in operands if (text := text_of(value)) is not None]
    result = None if len(numbers) != 2 else calculated(node["Op"], *numbers)
    return unknown(written, reasons) if result is None else known(result)


def calculated(kind: str, one: str, other: str) -> str | None:
    """Return the result of an operator and two integers; None if it has none here."""
    operation = _OPERATIONS.get(kind)
    if operation is None or not (_INTEGER.fullmatch(one) and _INTEGER.fullmatch(other)):
        return None
    if kind in ("/", "%") and int(other) == 0:
        return None
    result = str(int(operation(int(one), int(other))))
    return result if _INTEGER.fullmatch(result) else None
