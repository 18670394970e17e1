"""Report of diff."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokshard.core.codec import Count, Document, Md5, Record
from tokshard.dataset.tokenizer_agreement import TokenizerMismatch, allowed_warnings

ComparedKind = Literal["plan", "blend", "cache"]


@dataclass(frozen=True, slots=True)
class FieldDifference(Record):
    """A field with different values."""

    field: str
    a: Any
    b: Any


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
