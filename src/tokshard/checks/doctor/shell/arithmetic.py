"""Shell arithmetic: ``$((...))``, ``((...))``, ``let`` and the indexes of arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from tokshard.checks.doctor.shell.state import State
from tokshard.checks.doctor.shell.syntax import ASSIGNMENT, Node, assigned_names
from tokshard.checks.doctor.shell.values import Value, known, reasons_of, scalar, text_of, unknown

# Others, such as octal numbers and expressions, are unknown.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NAME = re.compile(r"[A-Za-z_]\w*")


def _divide(one: int, other: int) -> int:
    """Divide as bash does, towards zero."""
    return one // other if one * other >= 0 else -(-one // other)


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


def value_of_arithmetic(node: Node, written: str, state: State, expand: Callable[[Node], Value]) -> Value:
    """Return the value of an expression, after its assignments.

    Args:
        node: The expression.
        written: Its text, which stands for an unknown value.
        state: The state of the script, which assignments change.
        expand: A function that expands a word.
    """

    def value_of(inner: Node) -> Value:
        return value_of_arithmetic(inner, written, state, expand)

    while node["Type"] == "ParenArithm":
        node = node["X"]
    sign = node.get("Op", "")
    if node["Type"] == "Word":
        # An expansion to nothing is an error in most expressions.
        return _operand(expand(node) or unknown(written), written, state)
    if ASSIGNMENT.fullmatch(sign):
        name = (node["X"].get("Parts") or [{}])[0].get("Value", "")
        value = value_of(node["Y"]) if "Y" in node else known("1")
        before = _operand(scalar(state.variables.get(name), name), written, state)
        if sign != "=":
            value = _combined(sign[:-1] if "Y" in node else sign[0], [before, value], written)
        if not name.isidentifier() or text_of(value) is None:
            state.forget(assigned_names(node), reasons_of(value))
            return unknown(written, reasons_of(value))
        state.assign(name, (value, *state.variables.get(name, ())[1:]))
        return before if node.get("Post") else value
    first = value_of(node["X"])
    if sign in ("&&", "||", "?") and (names := list(assigned_names(node["Y"]))):
        state.forget(names, (f"`{sign}`",))  # the assignment may not be evaluated
        return unknown(written, reasons_of(first))
    if "Y" in node:
        return _combined(sign, [first, value_of(node["Y"])], written)
    return _combined("==" if sign == "!" else sign, [known("0"), first], written)


def _operand(value: Value, written: str, state: State) -> Value:
    """Return the number that a word or a variable is."""
    name = text_of(value) or ""
    if name.isidentifier():
        value = scalar(state.variables.get(name), name)
    text = text_of(value)
    if text is None or not _INTEGER.fullmatch(text.strip() or "0"):
        state.forget(_NAME.findall(text or ""), (f"`{text}`",))  # let "N += 1"
        return unknown(written, reasons_of(value))
    return known(str(int(text.strip() or "0")))


def _combined(sign: str, values: list[Value], written: str) -> Value:
    numbers = [text for value in values if (text := text_of(value)) is not None]
    result = calculated(sign, *numbers) if len(numbers) == 2 else None
    return unknown(written, reasons_of(*values)) if result is None else known(result)


def calculated(sign: str, one: str, other: str) -> str | None:
    """Return the result of an operator and two integers; None if it is an error or may differ in bash."""
    if sign not in _OPERATIONS or not (_INTEGER.fullmatch(one) and _INTEGER.fullmatch(other)):
        return None
    if sign in ("/", "%") and int(other) == 0:
        return None
    result = str(int(_OPERATIONS[sign](int(one), int(other))))
    return result if _INTEGER.fullmatch(result) else None
