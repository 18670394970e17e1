"""Shell arithmetic: ``$((...))``, ``((...))``, ``let`` and the indexes of arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from tokshard.checks.doctor.shell.state import State
from tokshard.checks.doctor.shell.syntax import Node, assigned_names
from tokshard.checks.doctor.shell.values import Value, known, reasons_of, scalar, text_of, unknown

# Others, such as octal numbers and expressions, are unknown.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_ASSIGNMENT = re.compile(r"([-+*/%]?)=")
_ASSIGNS = re.compile(r"=|\+\+|--")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MAX_EXPONENT = 63


def _divide(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda one, other: one - other * _divide(one, other),
    "**": operator.pow,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda one, other: bool(one and other),
    "||": lambda one, other: bool(one or other),
    ",": lambda _, other: other,
}


def value_of_arithmetic(  # noqa: PLR0911 - one for each kind
    node: Node, written: str, state: State, expand: Callable[[Node], Value]
) -> Value:
    """Return the value of an expression, after its assignments.

    Args:
        node: The expression.
        written: Its text, which stands for an unknown value.
        state: The state of the script, which assignments change.
        expand: A function that expands a word.
    """
    kind = node["Type"]
    sign = node.get("Op", "")
    if kind == "ParenArithm":
        return value_of_arithmetic(node["X"], written, state, expand)
    if kind == "Word":
        # An expansion to nothing is an error in most expressions.
        return _operand(expand(node) or unknown(written), written, state)
    values = list[Value]()
    if sign in ("++", "--") or _ASSIGNMENT.fullmatch(sign):
        name = (node["X"].get("Parts") or [{}])[0].get("Value", "")
        value = known("1") if "Y" not in node else value_of_arithmetic(node["Y"], written, state, expand)
        before = _operand(scalar(state.variables.get(name), name), written, state)
        if sign != "=":
            value = _combined(sign[0], [before, value], written)
        if not name.isidentifier() or text_of(value) is None:
            state.forget(assigned_names(node), reasons_of(value))
            return unknown(written, reasons_of(value))
        elements = state.variables.get(name, ())[1:]
        state.assign(name, (value, *elements))
        return before if node.get("Post") else value
    values = [value_of_arithmetic(node["X"], written, state, expand)]
    first = text_of(values[0])
    if sign in ("&&", "||", "?"):
        if first is None:  # it is unknown whether the rest is evaluated
            state.forget(assigned_names(node["Y"]), reasons_of(*values))
        elif sign == "?":
            side = "Y" if first == "0" else "X"
            return value_of_arithmetic(node["Y"][side], written, state, expand)
        elif (first == "0") == (sign == "&&"):
            return known(str(int(first != "0")))
    if "Y" in node:
        values.append(value_of_arithmetic(node["Y"], written, state, expand))
    elif sign in ("-", "!"):
        values.insert(0, known("0"))
        sign = "==" if sign == "!" else sign
    return _combined(sign, values, written)


def _operand(value: Value, written: str, state: State) -> Value:
    name = text_of(value) or ""
    if name.isidentifier():
        value = scalar(state.variables.get(name), name)
    text = text_of(value)
    if text is None or not _INTEGER.fullmatch(text.strip() or "0"):
        if text is not None and _ASSIGNS.search(text):  # let "N += 1"
            state.forget(_NAME.findall(text), (f"`{text}`",))
        return unknown(written, reasons_of(value))
    return known(str(int(text.strip() or "0")))


def _combined(sign: str, values: list[Value], written: str) -> Value:
    numbers = [text for value in values if (text := text_of(value)) is not None]
    result = None if len(numbers) != 2 else calculated(sign, *numbers)
    reasons = [reason for reason in reasons_of(*values) if reason != written]
    return unknown(written, reasons) if result is None else known(result)


def calculated(sign: str, one: str, other: str) -> str | None:
    """Return the result of an operator and two integers; None if it is an error or may differ in bash."""
    operation = _OPERATIONS.get(sign)
    if operation is None or not (_INTEGER.fullmatch(one) and _INTEGER.fullmatch(other)):
        return None
    if (sign in ("/", "%") and int(other) == 0) or (sign == "**" and not 0 <= int(other) <= _MAX_EXPONENT):
        return None
    result = str(int(operation(int(one), int(other))))
    return result if _INTEGER.fullmatch(result) else None
