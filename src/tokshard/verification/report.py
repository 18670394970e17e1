"""What a verification says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tokshard.core.findings import Finding
from tokshard.errors import TokshardError
from tokshard.verification.codes import RULES
from tokshard.verification.levels import Level

SCHEMA = "tokshard.verify/1"


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing that was looked at.

    Attributes:
        kind: ``"dataset"``, ``"index"``, ``"blend"``, ``"plan"`` or ``"rank"``.
        path: Where it lies.
        findings: What was found, in the order of the checks.
        counts: What was counted on the way, by name.
    """

    kind: str
    path: str
    findings: tuple[Finding, ...]
    counts: dict[str, int]

    @property
    def is_sound(self) -> bool:
        """Whether there are no findings but notes."""
        return not any(one.is_problem for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the subject as a JSON object."""
        return {
            "kind": self.kind,
            "path": self.path,
            "sound": self.is_sound,
            "counts": self.counts,
            "findings": [one.to_json() for one in self.findings],
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What :func:`~tokshard.verification.job.verify` has found.

    Attributes:
        thing: What was to be verified.
        level: How thoroughly.
        subset: The share of the pieces that was held against digests; None for all.
        subjects: What was looked at, from data to plans.
        bytes_read: How much was read.
        seconds: How long it took.
    """

    thing: str
    level: Level
    subset: Fraction | None
    subjects: tuple[Subject, ...]
    bytes_read: int
    seconds: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found."""
        return tuple(finding for subject in self.subjects for finding in subject.findings)

    @property
    def is_sound(self) -> bool:
        """Whether there are no findings but notes."""
        return all(subject.is_sound for subject in self.subjects)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {
            "schema": SCHEMA,
            "thing": self.thing,
            "level": self.level,
            "subset_percent": None if self.subset is None else float(self.subset * 100),
            "sound": self.is_sound,
            "bytes_read": self.bytes_read,
            "seconds": self.seconds,
            "subjects": [one.to_json() for one in self.subjects],
        }


@dataclass(slots=True)
class Ledger:
    """Collects what is found of one subject.

    Attributes:
        kind: See :class:`Subject`.
        path: See :class:`Subject`.
        findings: What was found so far.
        counts: What was counted so far.
    """

    kind: str
    path: str
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def find(
        self,
        code: str,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        """Add a finding; severity and hint are those of its code, if no better hint is given."""
        rule = RULES[code]
        where = self.path if path is None else path
        self.findings.append(Finding(code, rule.severity, message, hint or rule.remedy, where, offset))

    def find_error(self, code: str, error: TokshardError, *, path: str | None = None) -> None:
        """Add the finding that an error of ours is."""
        where = getattr(error, "path", None) or getattr(error, "filename", None) or path
        offset = getattr(error, "offset", None)
        self.find(code, error.message, path=where, offset=offset, hint=error.hint)

    def find_changed(self) -> None:
        """Find that another program has changed the subject: what was found before may be of no one state."""
        self.findings.clear()
        self.find("changed", f"{self.path} was changed while it was looked at")

    @property
    def is_sound(self) -> bool:
        """Whether nothing but notes was found so far."""
        return not any(one.is_problem for one in self.findings)

    def withdraw(self, code: str) -> None:
        """Take back what was found and is not so any more."""
        self.findings = [one for one in self.findings if one.code != code]

    def has(self, *codes: str) -> bool:
        """Tell whether one of the codes was found."""
        return any(one.code in codes for one in self.findings)

    def close(self) -> Subject:
        """Return the subject."""
        return Subject(self.kind, self.path, tuple(self.findings), dict(self.counts))
