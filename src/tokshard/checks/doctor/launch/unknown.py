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
    """A check that was not possible.

    ``variables`` are the variables that ``--set`` has to set for it.
    """

    check: str
    reason: str
    hint: str | None = None
    variables: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that a launch command does not determine.

    Attributes:
        reason: A sentence that names what it depends on.
        hint: An instruction to supply it.
        variables: The variables that ``--set`` has to set.
        has_parameters: Whether it depends on parameters of the script, which are passed after its name.
    """

    reason: str
    hint: str = _HINT
    variables: tuple[str, ...] = ()
    has_parameters: bool = False

    @classmethod
    def depending_on(cls, expansions: Iterable[str], reason: str, hint: str = _HINT) -> Unknown:
        """Return a value that depends on expansions of a script; ``hint`` is used if none can be passed.

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
