"""Report of diff."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokshard.core.codec import Count, Document, Md5, Record
from tokshard.core.formatting import count, short_id, shortened, shown_path
from tokshard.core.presentation import Section, Table
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch, allowed_warnings

ComparedKind = Literal["plan", "blend", "cache"]
_DIGEST = re.compile(r"[0-9a-f]{32,64}")


@dataclass(frozen=True, slots=True)
class FieldDifference(Record):
    """A field with different values."""

    field: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"  {self.field}: {_shown(self.a)} -> {_shown(self.b)}"


def _shown(value: Any) -> str:
    text = str(value)
    return short_id(text) if _DIGEST.fullmatch(text) else shortened(text)


def different_fields(a: dict[str, Any], b: dict[str, Any]) -> tuple[FieldDifference, ...]:
    """Return the fields with different values; the value of an absent field is None."""
    return tuple(
        FieldDifference(name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)
    )


@dataclass(frozen=True, slots=True)
class DatasetDifference(Record):
    """Samples of one dataset that are read."""

    dataset: str
    a: Count
    b: Count


def dataset_differences(
    names: Iterable[str], a: Iterable[int], b: Iterable[int]
) -> tuple[DatasetDifference, ...]:
    """Return counts per dataset; those of one dataset with several indexes are added up."""
    counts: dict[str, tuple[int, int]] = {}
    for name, *more in zip(names, a, b, strict=True):
        before = counts.get(name, (0, 0))
        counts[name] = (before[0] + int(more[0]), before[1] + int(more[1]))
    return tuple(DatasetDifference(name, *both) for name, both in counts.items())


def _section(
    part: StreamDifference | SplitDifference | IndexDifference,
    title: str,
    lines: Sequence[str],
    datasets: Sequence[DatasetDifference] = (),
    estimated: str = "",
) -> Section:
    header = (f"samples of{estimated}", "in A", "in B", "difference")
    rows = [
        (shown_path(each.dataset), count(each.a), count(each.b), f"{each.b - each.a:+,}".replace("+0", "0"))
        for each in datasets
    ]
    table = [Table(header, rows)] if rows else []
    return Section(title, [*map(str, part.fields), *lines, *table])


def _samples_title(part: SplitDifference | IndexDifference) -> str:
    return f"{part.name}: {count(part.samples[0])} and {count(part.samples[1])} samples"


def _first_sample(part: SplitDifference | IndexDifference) -> str:
    if part.first_sample is None:
        return "every sample that both have is the same"
    return f"first sample that differs: {count(part.first_sample)}"


@dataclass(frozen=True, slots=True)
class DifferentRead(Record):
    """A read of a step that the step of the other plan does not have; the row is that of the rank."""

    data_parallel_rank: Count
    row: Count
    sample: Count
    dataset: str
    dataset_sample: Count

    def __str__(self) -> str:
        return (
            f"data-parallel rank {self.data_parallel_rank}, row {self.row}: sample "
            f"{count(self.dataset_sample)} of {shown_path(self.dataset)} (id {self.sample})"
        )


@dataclass(frozen=True, slots=True)
class StepDifference(Record):
    """The first steps of two plans whose samples differ."""

    a: Count
    b: Count
    consumed_samples: Count
    read_a: DifferentRead | None
    read_b: DifferentRead | None


@dataclass(frozen=True, slots=True)
class StreamDifference(Record):
    """Difference of a stream of two plans."""

    TAG = ("part", "stream")

    name: str
    fields: tuple[FieldDifference, ...]
    start: Count
    compared: tuple[Count, Count]
    first_step: StepDifference | None
    datasets: tuple[DatasetDifference, ...]
    is_exact: bool

    @property
    def reads_same(self) -> bool:
        """True if the steps that were compared hold the same samples, and both end together."""
        return self.first_step is None and self.compared[0] == self.compared[1]

    def section(self) -> Section:
        """Return the differences for people."""
        lines = ["every step that both have holds the same samples"]
        step = self.first_step
        if step is not None:
            steps = f"{count(step.a)} of A, {count(step.b)} of B"
            lines = [f"first step that differs: {steps}, at {count(step.consumed_samples)} consumed samples"]
            for name, read in (("A", step.read_a), ("B", step.read_b)):
                lines += [] if read is None else [f"  only in {name}: {read}"]
        title = f"{self.name}, starting at {count(self.start)} consumed samples"
        estimated = "" if self.is_exact else " (estimated)"
        return _section(self, title, lines, self.datasets, estimated)


@dataclass(frozen=True, slots=True)
class SplitDifference(Record):
    """Difference of a split of two blends."""

    TAG = ("part", "split")

    name: str
    fields: tuple[FieldDifference, ...]
    samples: tuple[Count, Count]
    first_sample: Count | None
    datasets: tuple[DatasetDifference, ...]

    @property
    def reads_same(self) -> bool:
        """True if both hold the same samples."""
        return self.first_sample is None and self.samples[0] == self.samples[1]

    def section(self) -> Section:
        """Return the differences for people."""
        return _section(self, _samples_title(self), [_first_sample(self)], self.datasets)


@dataclass(frozen=True, slots=True)
class IndexDifference(Record):
    """Difference of an index, or of the order of a blend, in two caches."""

    TAG = ("part", "index")

    name: str
    fields: tuple[FieldDifference, ...]
    hashes: tuple[Md5, Md5]
    samples: tuple[Count, Count]
    first_sample: Count | None

    @property
    def reads_same(self) -> bool:
        """True if all samples begin at the same tokens."""
        return self.first_sample is None and self.samples[0] == self.samples[1]

    def section(self) -> Section:
        """Return the differences for people."""
        first, second = self.hashes
        hashes = f"same hash {short_id(first)}"
        if first != second:
            hashes = f"hashes {short_id(first)} and {short_id(second)}"
        return _section(self, _samples_title(self), [hashes, _first_sample(self)])


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
