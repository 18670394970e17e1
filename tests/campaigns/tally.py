"""Counts of a class of a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass
class Result:
    """What came of a case.

    Attributes:
        outcome: How it ended, in a word or two.
        count: Of how many things the case is (strings, for example).
        failure: What is wrong, or None.
        counts: How often which outcome, where there are several.
    """

    outcome: str
    count: int = 1
    failure: str | None = None
    counts: Counter[str] | None = None

    @property
    def outcomes(self) -> Counter[str]:
        return Counter({self.outcome: self.count}) if self.counts is None else self.counts


@dataclass(frozen=True)
class Place:
    """Where a campaign works, and with what.

    Attributes:
        directory: An empty directory for the files of the cases.
        logs: An empty directory for others.
        tokenizers: A directory of ``*.json`` definitions, or None.
        texts: A JSONL file of real text, or None.
    """

    directory: Path
    logs: Path
    tokenizers: str | None = None
    texts: str | None = None


class Campaign(Protocol):
    """A class of cases. It is made once in each process, with a :class:`Place`."""

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        """Yield the names of the cases that one of several processes does; all of them for any number."""

    def run(self, case: str) -> Result:
        """Do a case. The name is enough to repeat it."""

    def controls(self) -> Iterator[tuple[str, str | None]]:
        """Do experiments whose end is known: yield a name, and what is wrong with the campaign or None."""


@dataclass
class Tally:
    """The counts of a class.

    Attributes:
        cases: How many things were tried.
        outcomes: How often which outcome.
        failures: ``case`` and ``reason`` of each.
        controls: What is wrong with each control experiment, or None.
        seconds: How long it took, on the clock.
        skipped: Why nothing was tried, or None.
    """

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    controls: dict[str, str | None] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: str | None = None

    def add(self, other: Tally) -> None:
        """Add the counts of another process."""
        self.cases += other.cases
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.controls |= other.controls
        self.seconds = max(self.seconds, other.seconds)
        self.skipped = self.skipped or other.skipped

    @property
    def failed(self) -> bool:
        return bool(self.failures) or any(self.controls.values())

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "outcomes": dict(self.outcomes)}

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Tally:
        return cls(**{**value, "outcomes": Counter(value["outcomes"])})
