"""Report of diff."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokshard.core.codec import Count, Document, Md5, Record
from tokshard.core.formatting import count, counted, shortened, shown_path
from tokshard.core.presentation import Section, Table
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch, allowed_warnings

ComparedKind = Literal["plan", "blend", "cache"]


@dataclass(frozen=True, slots=True)
class FieldDifference(Record):
    """A field with different values."""

    field: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"  {self.field}: {shortened(str(self.a))} -> {shortened(str(self.b))}"


def different_fields(a: dict[str, Any], b: dict[str, Any]) -> tuple[FieldDifference, ...]:
    """Return the fields with different values; the value of an absent field is None."""
    return tuple(
        FieldDifference(name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)
    )


@dataclass(frozen=True, slots=True)
class SourceDifference(Record):
    """Counts of the samples of one dataset."""

    dataset: str
    same: Count
    moved: Count
    added: Count
    removed: Count


def _section(
    part: StreamDifference | SplitDifference | IndexDifference,
    title: str,
    lines: Sequence[str],
    sources: Sequence[SourceDifference] = (),
) -> Section:
    names = ("same", "moved", "added", "removed")
    rows = [
        (shown_path(source.dataset), *(count(getattr(source, name)) for name in names)) for source in sources
    ]
    table = [Table(("dataset", *names), rows)] if rows else []
    return Section(title, [*map(str, part.fields), *lines, *table])


def _samples_title(part: SplitDifference | IndexDifference) -> str:
    return f"{part.name}: {count(part.samples[0])} and {count(part.samples[1])} samples"


def _first_sample(part: SplitDifference | IndexDifference) -> str:
    if part.first_sample is None:
        return "every sample that both have is the same"
    return f"first sample that differs: {count(part.first_sample)}"


@dataclass(frozen=True, slots=True)
class StepDifference(Record):
    """The first steps of two plans whose samples differ."""

    a: Count
    b: Count
    consumed_samples: Count


@dataclass(frozen=True, slots=True)
class StreamDifference(Record):
    """Difference of a stream of two plans."""

    TAG = ("part", "stream")

    name: str
    fields: tuple[FieldDifference, ...]
    start: Count
    compared: tuple[Count, Count]
    first_step: StepDifference | None
    sources: tuple[SourceDifference, ...]

    @property
    def reads_same(self) -> bool:
        """True if the steps that were compared hold the same samples, and both end together."""
        return self.first_step is None and self.compared[0] == self.compared[1]

    def section(self) -> Section:
        """Return the differences for people."""
        line = "every step that both have holds the same samples"
        step = self.first_step
        if step is not None:
            line = (
                f"first step that differs: {count(step.a)} of A, {count(step.b)} of B, at "
                f"{count(step.consumed_samples)} consumed samples"
            )
        title = f"{self.name}, starting at {count(self.start)} consumed samples"
        return _section(self, title, [line], self.sources)


@dataclass(frozen=True, slots=True)
class SplitDifference(Record):
    """Difference of a split of two blends."""

    TAG = ("part", "split")

    name: str
    fields: tuple[FieldDifference, ...]
    samples: tuple[Count, Count]
    first_sample: Count | None
    sources: tuple[SourceDifference, ...]

    @property
    def reads_same(self) -> bool:
        """True if both hold the same samples."""
        return self.first_sample is None and self.samples[0] == self.samples[1]

    def section(self) -> Section:
        """Return the differences for people."""
        return _section(self, _samples_title(self), [_first_sample(self)], self.sources)


@dataclass(frozen=True, slots=True)
class IndexDifference(Record):
    """Difference of an index, or of the order of a blend, in two caches."""

    TAG = ("part", "index")

    name: str
    fields: tuple[FieldDifference, ...]
    hashes: tuple[Md5, Md5]
    samples: tuple[Count, Count]
    first_sample: Count | None
    same: Count

    @property
    def reads_same(self) -> bool:
        """True if all samples begin at the same tokens."""
        return self.first_sample is None and self.samples[0] == self.samples[1]

    def section(self) -> Section:
        """Return the differences for people."""
        first, second = self.hashes
        hashes = f"same hash {first}" if first == second else f"hashes {first} and {second}"
        same = f"{counted(self.same, 'sample is', 'samples are')} the same at the same position"
        return _section(self, _samples_title(self), [hashes, _first_sample(self), same])


@dataclass(frozen=True, slots=True)
class DiffReport(Document):
    """Difference of two plans, blends or index caches."""

    SCHEMA = "tokshard.diff/2"

    kind: ComparedKind
    reads_same: bool
    same_plan: bool | None
    fields: tuple[FieldDifference, ...]
    parts: tuple[StreamDifference | SplitDifference | IndexDifference, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return the differences for people."""
        same = [] if self.same_plan is None else ["the same plan" if self.same_plan else "two plans"]
        only = [
            f"only in {letter}: {name}"
            for letter, names in (("A", self.only_in_a), ("B", self.only_in_b))
            for name in names
        ]
        summary = Section("", [*same, *map(str, self.fields), *only])
        return [*([summary] if summary.blocks else []), *(part.section() for part in self.parts)]


def report_of(
    kind: ComparedKind,
    fields: tuple[FieldDifference, ...],
    parts: Sequence[StreamDifference | SplitDifference | IndexDifference],
    names: tuple[Collection[str], Collection[str]] = ((), ()),
    *,
    same_plan: bool | None = None,
    mismatches: Iterable[TokenizerMismatch] = (),
) -> DiffReport:
    """Return the report of the parts that both have.

    Args:
        kind: The kind of A and B.
        fields: Their fields that differ.
        parts: The parts that both have.
        names: The names of all parts of A and of B.
        same_plan: Whether both are one plan; None for other products.
        mismatches: Mismatches of tokenizers that A or B records as allowed.
    """
    only_in_a = tuple(name for name in names[0] if name not in names[1])
    only_in_b = tuple(name for name in names[1] if name not in names[0])
    reads_same = not only_in_a and not only_in_b and all(part.reads_same for part in parts)
    warnings = tuple(dict.fromkeys(allowed_warnings(mismatches)))
    return DiffReport(kind, reads_same, same_plan, fields, tuple(parts), only_in_a, only_in_b, warnings)
