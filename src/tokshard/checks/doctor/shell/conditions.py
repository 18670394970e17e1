"""Outcomes of shell conditions: ``[ ... ]`` and ``[[ ... ]]``, as far as their operands are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

from tokshard.checks.doctor.shell.arithmetic import calculated
from tokshard.checks.doctor.shell.expansion import Expander, matches
from tokshard.checks.doctor.shell.syntax import Node, assigned_names
from tokshard.checks.doctor.shell.values import (
    Value,
    distinct,
    is_open,
    known,
    reasons_of,
    text_of,
    written_text,
)

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_BINARY = frozenset({"=", "==", "!=", *_NUMBERS})
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit status of a command or a condition.

    Attributes:
        succeeds: Whether it succeeds; None if that is unknown.
        reasons: The expansions or commands that an unknown outcome depends on.
        empty: The unknown variable that the condition compares with the empty text, and the outcome if it is
            empty; None for other conditions.
        is_program: Whether only a program decides, which is expected to succeed.
    """

    succeeds: bool | None
    reasons: tuple[str, ...] = ()
    empty: tuple[str, bool] | None = None
    is_program: bool = False

    @classmethod
    def of_program(cls, written: str) -> ExitStatus:
        """Return the status of a program that is not run."""
        return cls(None, (f"`{shorten(written, _MAX_SHOWN, placeholder=' ...')}`",), is_program=True)

    def negated(self) -> ExitStatus:
        """Return the opposite outcome."""
        empty = None if self.empty is None else (self.empty[0], not self.empty[1])
        return replace(self, succeeds=None if self.succeeds is None else not self.succeeds, empty=empty)


def both(one: ExitStatus, other: ExitStatus) -> ExitStatus:
    """Return the outcome of two conditions that must hold."""
    if one.succeeds is False or other.succeeds is False:
        return ExitStatus(False)
    undecided = [outcome for outcome in (one, other) if outcome.succeeds is None]
    if not undecided:
        return ExitStatus(True)
    is_program = all(outcome.is_program for outcome in undecided)
    return ExitStatus(None, distinct(one.reasons + other.reasons), is_program=is_program)


def either(one: ExitStatus, other: ExitStatus) -> ExitStatus:
    """Return the outcome of two conditions of which one must hold."""
    return both(one.negated(), other.negated()).negated()


def condition_of_words(values: Sequence[Value]) -> ExitStatus:
    """Return the outcome of the operands of ``test``, or of ``[`` without the last bracket."""
    texts = [written_text(value) for value in values]
    if len(values) == 3 and texts[1] in _BINARY:
        return _binary(values[0], texts[1], values[2], has_patterns=False)
    if 2 <= len(values) <= 4 and texts[0] == "!":
        return condition_of_words(values[1:]).negated()
    if len(values) > 2:
        return _unknown(*values)
    if len(values) == 2 and texts[0] in _BINARY:
        return ExitStatus(False)  # without its first operand, it is an error
    return _unary(texts[0] if len(values) == 2 else "-n", values[-1] if values else ())


def condition_of_test(node: Node, expander: Expander) -> ExitStatus:
    """Return the outcome of a ``[[ ... ]]``."""
    while node["Type"] == "ParenTest":
        node = node["X"]
    sign = node.get("Op", "-n")
    if sign == "!":
        return condition_of_test(node["X"], expander).negated()
    if sign in ("&&", "||"):
        combine = both if sign == "&&" else either
        return combine(condition_of_test(node["X"], expander), condition_of_test(node["Y"], expander))
    if node["Type"] != "BinaryTest":
        return _unary(sign, expander.value(node.get("X", node)))
    return _binary(expander.value(node["X"]), sign, expander.pattern(node["Y"]), has_patterns=True)


def _unknown(*values: Value) -> ExitStatus:
    # Without an unknown operand, a file of the job's machine decides.
    return ExitStatus(None, reasons_of(*values) or (f"`[ {' '.join(map(written_text, values))} ]`",))


def _unary(kind: str, value: Value) -> ExitStatus:
    if kind not in ("-z", "-n"):
        return _unknown(known(kind), value)
    text = text_of(value)
    if text is not None:
        return ExitStatus((text == "") == (kind == "-z"))
    if any(piece.text.strip() and not piece.is_unknown for piece in value):
        return ExitStatus(kind == "-n")  # a blank may be one between the elements of an empty list
    match = _VARIABLE.fullmatch(written_text(value))
    is_unset = match is not None and not value[0].reasons and (kind == "-z" or not is_open([value]))
    empty = (match[1] or match[2], kind == "-z") if match is not None and is_unset else None
    return ExitStatus(None, reasons_of(value), empty)


def _binary(one: Value, kind: str, other: Value, *, has_patterns: bool) -> ExitStatus:
    first, second = text_of(one), text_of(other)
    if kind in ("=", "==", "!="):
        if second == "":
            return _unary("-n" if kind == "!=" else "-z", one)
        if first is not None and second is not None:
            equal = matches(first, second) if has_patterns else first == second
            if equal is not None:
                return ExitStatus(equal == (kind != "!="))
    if kind in _NUMBERS and first is not None and second is not None:
        result = calculated(_NUMBERS[kind], first.strip(), second.strip())
        if result is not None:
            return ExitStatus(result != "0")
    return _unknown(one, known(kind), other)


def takes_first(outcome: ExitStatus, holds: Any, fails: Any) -> bool | None:
    """Return whether the first branch runs; None if that is unknown."""
    if outcome.succeeds is None and outcome.empty is not None:
        # The environment is assumed to set no variable for which the script has a default.
        name, if_empty = outcome.empty
        return if_empty if name in assigned_names(holds if if_empty else fails) else None
    return outcome.succeeds


def matches_any(text: str | None, patterns: Sequence[Value]) -> bool | None:
    """Return whether a text matches one of several patterns; None if that is unknown."""
    texts = [text_of(pattern) for pattern in patterns]
    if "*" in texts:
        return True
    outcomes = [None if text is None or pattern is None else matches(text, pattern) for pattern in texts]
    return True if True in outcomes else None if None in outcomes else False
