"""Values that a launch command does not determine, and the checks that need them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tokshard.core.codec import Record

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_PARAMETER = re.compile(r"\$\{?(?:[0-9@*]|#(?!\w))")
_HINT = "pass the launch command with this value, or the log of an earlier run of the job"


@dataclass(frozen=True, slots=True)
class SkippedCheck(Record):
    """A check that was skipped because a value is unknown.

    ``variables`` are the variables to pass with ``--set``.
    """

    check: str
    reason: str
    hint: str | None = None
    variables: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that a launch command does not determine.

    Attributes:
        reason: A sentence that names the variables or expansions in it.
        hint: An instruction to supply the value.
        variables: The variables to pass with ``--set``.
        has_parameters: Whether the value depends on parameters of the script.
    """

    reason: str
    hint: str = _HINT
    variables: tuple[str, ...] = ()
    has_parameters: bool = False

    @classmethod
    def depending_on(cls, expansions: Iterable[str], reason: str, hint: str = _HINT) -> Unknown:
        """Return a value that depends on expansions; ``hint`` applies if no option can supply it.

        Example:
            >>> Unknown.depending_on(["${A:-}", "$1"], "--seed depends on ${A:-} and $1").hint
            'pass --set A=VALUE and the parameters of the script after its name'
        """
        text = " ".join(expansions)
        variables = tuple(dict.fromkeys(_VARIABLE.findall(text)))
        has_parameters = _PARAMETER.search(text) is not None
        supplied = [" ".join(f"--set {name}=VALUE" for name in variables)] if variables else []
        if has_parameters:
            supplied.append("the parameters of the script after its name")
        if supplied:
            hint = f"pass {' and '.join(supplied)}"
        return cls(reason, hint, variables, has_parameters)

    def skipped(self, check: str) -> SkippedCheck:
        """Return the record of a check that needs this value."""
        return SkippedCheck(check, self.reason, self.hint, self.variables or None)


NO_WORLD_SIZE = Unknown(
    "the command does not contain the number of processes", "pass --set WORLD_SIZE=N", ("WORLD_SIZE",)
)
