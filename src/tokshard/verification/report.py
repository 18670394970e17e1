"""What a verification says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tokshard.core.codec import encode
from tokshard.core.findings import Finding, FindingCollector
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
            "findings": [encode(finding) for finding in self.findings],
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


class ProductFindings(FindingCollector):
    """Findings about one product of a kind that can be verified."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(RULES, path)
        self.kind = kind

    def find_changed(self) -> None:
        """Find that another program has changed the product: earlier findings may be about no one state."""
        self.findings.clear()
        self.find("changed", f"{self.path} was changed while it was looked at")

    def close(self) -> Subject:
        """Return the verified product."""
        return Subject(self.kind, self.path, tuple(self.findings), dict(self.counts))
