"""Findings: what is wrong or worth knowing, with a stable code each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tokshard.core.codec import Key
from tokshard.errors import TokshardError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class FindingRule:
    """The meaning of a code.

    Attributes:
        severity: See :class:`Finding`.
        meaning: What is the case.
        remedy: What can be done.
    """

    severity: Severity
    meaning: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    A finding of severity ``"error"`` means that a job will fail, hang or read wrong data; ``"warning"``,
    that it will run, but probably not as intended; ``"note"`` is good to know.
    """

    code: Annotated[str, Key("code", "Stable code, listed in docs/reference/findings.md.")]
    severity: Annotated[Severity, Key("severity", "error, warning or note.")]
    message: Annotated[str, Key("message", "One sentence for people.")]
    hint: Annotated[str | None, Key("hint", "What can be done.")] = None
    path: Annotated[str | None, Key("path", "The file that it is about.")] = None
    offset: Annotated[int | None, Key("offset", "The place in the file, in bytes.", minimum=0)] = None

    @property
    def is_problem(self) -> bool:
        """Whether it is more than a note."""
        return self.severity != "note"

    @classmethod
    def of_error(cls, code: str, error: TokshardError) -> Finding:
        """Return the finding that reports a caught error."""
        return cls(code, "error", error.message, error.hint)


@dataclass(slots=True)
class FindingCollector:
    """Findings about one product, collected while it is examined.

    Attributes:
        rules: The codes that can be found.
        path: The product; findings that name no file are about it.
        findings: What was found so far.
        counts: What was counted so far, by name.
    """

    rules: Mapping[str, FindingRule]
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
        """Add a finding; its severity and, unless a better one is passed, its hint are those of its rule."""
        rule = self.rules[code]
        where = self.path if path is None else path
        self.findings.append(Finding(code, rule.severity, message, hint or rule.remedy, where, offset))

    def find_error(self, code: str, error: TokshardError, *, path: str | None = None) -> None:
        """Add the finding that reports a caught error; ``path`` is used if the error names no file."""
        where = getattr(error, "path", None) or getattr(error, "filename", None) or path
        offset = getattr(error, "offset", None)
        self.find(code, error.message, path=where, offset=offset, hint=error.hint)

    def withdraw(self, code: str) -> None:
        """Remove findings that do not hold any more."""
        self.findings = [finding for finding in self.findings if finding.code != code]

    def has(self, *codes: str) -> bool:
        """Return whether one of the codes was found."""
        return any(finding.code in codes for finding in self.findings)

    @property
    def is_sound(self) -> bool:
        """Whether nothing but notes was found so far."""
        return not any(finding.is_problem for finding in self.findings)
