"""Diagnosis of a launch script: the verdict and each cause once, then the details."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from tokshard.checks.doctor.causes import DIFFERENCE
from tokshard.checks.doctor.launch.rules import Result
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.lookups import CacheLookup, TokenizerNames
from tokshard.core.codec import Document, Record
from tokshard.core.findings import Finding, Severity
from tokshard.core.formatting import count, counted
from tokshard.core.presentation import Section, first_lines
from tokshard.samples.blend.plan import PlannedSplit
from tokshard.samples.index.sizes import Sizes

_DIFFERENCE_LABEL = "difference"
_SHOWN_OF_A_KIND = 3
_KINDS = {
    "single": "one dataset",
    "exhaustive": "every sample of",
    "proportional": "proportional blend of",
}
# Checks that explain why no cached index was looked up, in the order of preference.
_CHECKS_OF_CACHE = ("cache", "data", "sizes")

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class JobDiagnosis(Record):
    """The diagnosis of one launch command."""

    line: int | None
    program: str | None
    command: str
    arguments: dict[str, Any]
    unknown: dict[str, str]
    sizes: Sizes | None
    tokenizer: TokenizerNames
    lookups: tuple[CacheLookup, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[SkippedCheck, ...]
    splits: tuple[PlannedSplit, ...]
    data_parallel_size: int | None = None
    batch_size: int | None = None
    sequence_length: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing that was checked is wrong."""
        return not any(finding.is_problem for finding in self.findings)

    @property
    def title(self) -> str:
        """The program and its line in the script."""
        return ("" if self.line is None else f"line {self.line}: ") + (self.program or "the job")

    def facts(self) -> Iterator[str]:
        """Yield the sizes of the job and the samples that it requests."""
        parts = []
        if (processes := self.arguments.get("world_size")) is not None:
            parts.append(counted(processes, "process", "processes"))
        if self.data_parallel_size is not None:
            parts.append(counted(self.data_parallel_size, "data-parallel rank"))
        if self.batch_size is not None:
            parts.append(f"batches of {count(self.batch_size)}")
        if self.sequence_length is not None:
            parts.append(f"samples of {count(self.sequence_length)} tokens")
        yield f"job: {', '.join(parts) or 'unknown'}"
        if self.sizes is not None:
            requests = {name: getattr(self.sizes, name) for name in ("train", "valid", "test")}
            sizes = (
                f"{name} {'one epoch' if size is None else count(size)}" for name, size in requests.items()
            )
            yield f"requests: {', '.join(sizes)} samples"

    def details(self) -> Iterator[str]:
        """Yield the plan of each split, and the files that the job looks up."""
        for split in self.splits:
            kind = _KINDS.get(split.kind, "weighted blend of")
            datasets = "" if split.kind == "single" else f" {counted(len(split.sources), 'dataset')}"
            samples = f"{kind}{datasets}, {counted(split.samples, 'sample')}"
            yield f"{split.name}: {samples if split.sources else 'unknown'}"
        if self.lookups:
            yield f"cache files, by the names of {self.tokenizer.label}:"
        for lookup in self.lookups:
            yield from lookup.lines()


@dataclass(frozen=True, slots=True)
class DoctorReport(Document):
    """The diagnosis of a launch script before it is started."""

    SCHEMA = "tokshard.doctor/2"

    verdict: str
    healthy: bool
    complete: bool
    jobs: tuple[JobDiagnosis, ...]

    @classmethod
    def of(cls, jobs: Sequence[JobDiagnosis]) -> DoctorReport:
        """Return the report of the launch commands of one text."""
        report = cls("", all(job.healthy for job in jobs), not any(job.skipped for job in jobs), tuple(jobs))
        return replace(report, verdict=report._problem_lines(limit=1)[0])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all jobs, each once."""
        return tuple(dict.fromkeys(finding for job in self.jobs for finding in job.findings))

    @property
    def skipped(self) -> tuple[SkippedCheck, ...]:
        """The skipped checks of all jobs, each once."""
        return tuple(dict.fromkeys(skipped for job in self.jobs for skipped in job.skipped))

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the verdict, causes and notes with a hint; with ``verbose``, all notes and cache files."""
        limit = None if verbose else _SHOWN_OF_A_KIND
        notes = [finding for finding in self.findings if not finding.is_problem]
        shown = [note for note in notes if verbose or note.hint]
        lookups = sum(len(job.lookups) for job in self.jobs)
        lines = [*self._problem_lines(limit), *self._skipped_lines(), *self._finding_lines(shown, limit)]
        sections = [Section("", lines)]
        for number, job in enumerate(self.jobs, 1):
            title = f"job {number} of {len(self.jobs)}, {job.title}" if len(self.jobs) > 1 else ""
            sections.append(Section(title, [*job.facts(), *(job.details() if verbose else ())]))
        hidden = [counted(len(notes) - len(shown), "note")] if len(notes) > len(shown) else []
        hidden += [_indexes(lookups)] if lookups else []
        if hidden and not verbose:
            sections.append(Section("", [f"--verbose lists {' and '.join(hidden)}"]))
        return sections

    def _problem_lines(self, limit: int | None) -> list[str]:
        """Return the verdict, followed by the other problems and the hints."""
        problems = sorted((finding for finding in self.findings if finding.is_problem), key=_rank)
        if problems:
            first, *lines = self._finding_lines(problems, limit)
            label, _, text = first.partition(": ")
            number = sum(_label(finding) == label for finding in problems)
            return [f"{counted(number, label)}: {text}", *lines]
        lookups = sum(len(job.lookups) for job in self.jobs)
        if lookups:
            skipped = f"; {counted(len(self.skipped), 'check was', 'checks were')} skipped" * bool(
                self.skipped
            )
            indexes = _indexes(lookups)
            return [f"no problems found: the job will find its {indexes}{skipped}"]
        unchecked = min(self.skipped, key=_rank_of_skipped, default=None)
        if unchecked is None:
            return ["the cache was not checked: the job looks up no indexes"]
        return [f"the cache was not checked: {unchecked.reason}", *_hint(unchecked.hint)]

    def _finding_lines(self, findings: Iterable[Finding], limit: int | None) -> Iterator[str]:
        """Yield the findings; those of one code with the same hint share it."""
        for kind, group in _grouped(findings, lambda finding: (finding.severity, finding.code, finding.hint)):
            label = _label(group[0])
            code = "" if label == _DIFFERENCE_LABEL else f"{kind[1]}: "
            lines = [f"{label}: {code}{finding.message}{self._where(finding)}" for finding in group]
            is_cause = label == _DIFFERENCE_LABEL  # No cause is hidden.
            yield from first_lines(lines, len(lines) if is_cause else limit or len(lines))
            yield from _hint(kind[2])

    def _skipped_lines(self) -> Iterator[str]:
        """Yield the skipped checks; those with the same reason share a line."""
        groups = _grouped(self.skipped, lambda check: (check.reason, check.hint))
        if self.healthy and not any(job.lookups for job in self.jobs):
            # The verdict already contains this reason.
            first = min(self.skipped, key=_rank_of_skipped)
            groups = [group for group in groups if group[0] != (first.reason, first.hint)]
        for (reason, hint), group in groups:
            checks = ", ".join(dict.fromkeys(check.check for check in group))
            yield f"not checked: {checks}: {reason}{self._where(group[0])}"
            yield from _hint(hint)

    def _where(self, result: Result) -> str:
        """Return the jobs that a result concerns in parentheses, or an empty text if it concerns all."""
        titles = [job.title for job in self.jobs if result in (*job.findings, *job.skipped)]
        return "" if len(titles) == len(self.jobs) else f" ({', '.join(titles)})"

    def command_sections(self) -> list[Section]:
        """Return the launch commands as they were understood."""
        lines = []
        for job in self.jobs:
            lines += [f"# {job.title}"] if len(self.jobs) > 1 else []
            lines.append(job.command or json.dumps(job.arguments, ensure_ascii=False))
        return [Section("", lines)]


def _grouped(
    items: Iterable[ItemT], key: Callable[[ItemT], tuple[Any, ...]]
) -> list[tuple[tuple[Any, ...], list[ItemT]]]:
    groups: dict[tuple[Any, ...], list[ItemT]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def _indexes(number: int) -> str:
    return counted(number, "cached index", "cached indexes")


def _hint(hint: str | None) -> list[str]:
    return [f"  hint: {hint}"] if hint else []


def _label(finding: Finding) -> str:
    return _DIFFERENCE_LABEL if finding.code == DIFFERENCE else finding.severity


def _rank(finding: Finding) -> tuple[bool, int]:
    """Return the sort key of a problem: differences first, because they cause other warnings."""
    return finding.code != DIFFERENCE, get_args(Severity).index(finding.severity)


def _rank_of_skipped(check: SkippedCheck) -> int:
    names = (*_CHECKS_OF_CACHE, check.check)
    return names.index(check.check)
