"""Findings: problems and notes, each with a stable code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tokshard.core.codec import Count, Record
from tokshard.errors import TokshardError, raise_exhaustion

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class FindingRule:
    """The meaning of a code.

    Attributes:
        severity: See :class:`Finding`.
        meaning: A description of the problem.
        remedy: An instruction for the user.
    """

    severity: Severity
    meaning: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """A problem or a note.

    Severity ``"error"`` means that a job will fail, hang or read wrong data; ``"warning"``, that it will run
    but probably not as intended; ``"note"`` is for information.
    """

    code: str
    severity: Severity
    message: str
    hint: str | None = None
    path: str | None = None
    offset: Count | None = None

    @property
    def is_problem(self) -> bool:
        """True for errors and warnings."""
        return self.severity != "note"


def finding_lines(findings: Iterable[Finding], indent: str = "") -> Iterator[str]:
    """Return lines with the findings and their hints, errors first."""
    severities = get_args(Severity)
    for finding in sorted(findings, key=lambda finding: severities.index(finding.severity)):
        yield f"{indent}{finding.severity}: {finding.code}: {finding.message}"
        if finding.hint:
            yield f"{indent}  hint: {finding.hint}"


@dataclass(slots=True)
class FindingCollector:
    """Collector of the findings about one product.

    Attributes:
        rules: The rules by code.
        path: The product; used for findings that name no file.
        findings: The findings so far.
        counts: Counters, by name.
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
        """Add a finding with the severity of its rule, and the rule's remedy unless a hint is passed."""
        rule = self.rules[code]
        where = self.path if path is None else path
        self.findings.append(Finding(code, rule.severity, message, hint or rule.remedy, where, offset))

    def find_error(self, code: str, error: TokshardError, *, path: str | None = None) -> None:
        """Add a finding that reports a caught error; ``path`` is used if the error names no file.

        The error is raised again if no more files can be opened.
        """
        raise_exhaustion(error)
        where = getattr(error, "path", None) or getattr(error, "filename", None) or path
        offset = getattr(error, "offset", None)
        self.find(code, error.message, path=where, offset=offset, hint=error.hint)

    def withdraw(self, code: str) -> None:
        """Remove the findings with this code."""
        self.findings = [finding for finding in self.findings if finding.code != code]

    def has(self, *codes: str) -> bool:
        """Return whether any of the codes was found."""
        return any(finding.code in codes for finding in self.findings)

    @property
    def sound(self) -> bool:
        """True if only notes were found so far."""
        return not any(finding.is_problem for finding in self.findings)
