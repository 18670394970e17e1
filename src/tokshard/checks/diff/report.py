"""Report of diff."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tokshard.core.codec import Document, Key
from tokshard.dataset.tokenizer_agreement import TokenizerMismatch, allowed_warnings

ProductKind = Literal["plan", "blend", "cache"]


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field with different values."""

    field: Annotated[str, Key("field", "Name of the field.")]
    a: Annotated[Any, Key("a", "Value in A.")]
    b: Annotated[Any, Key("b", "Value in B.")]


def different_fields(a: dict[str, Any], b: dict[str, Any]) -> tuple[FieldDifference, ...]:
    """Return the fields with different values; the value of an absent field is None."""
    return tuple(
        FieldDifference(name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)
    )


Fields = Annotated[
    tuple[FieldDifference, ...], Key("fields", "Fields that differ: of the hash, or of the plan.")
]
Samples = Annotated[tuple[int, int], Key("samples", "Samples of A and of B.", minimum=0)]
FirstSample = Annotated[
    int | None,
    Key("first_sample", "First sample that differs; null if all that both have are equal.", minimum=0),
]


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """Counts of the samples of one dataset."""

    dataset: Annotated[str, Key("dataset", "Path prefix of the dataset.")]
    same: Annotated[
        int,
        Key(
            "same",
            "Samples that both read at the same position; of plans, within the same consumed samples.",
            minimum=0,
        ),
    ]
    moved: Annotated[int, Key("moved", "Samples that both read, at other positions.", minimum=0)]
    added: Annotated[int, Key("added", "Samples that only B reads.", minimum=0)]
    removed: Annotated[int, Key("removed", "Samples that only A reads.", minimum=0)]


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first steps of two plans whose samples differ."""

    a: Annotated[int, Key("a", "Step of A.", minimum=0)]
    b: Annotated[int, Key("b", "Step of B.", minimum=0)]
    consumed_samples: Annotated[
        int, Key("consumed_samples", "Samples consumed before them, over all ranks.", minimum=0)
    ]


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """Difference of a stream of two plans."""

    TAG = ("part", "stream")

    name: Annotated[str, Key("name", "Name of the stream.")]
    fields: Fields
    start: Annotated[
        int, Key("start", "Consumed samples from which on both are compared, over all ranks.", minimum=0)
    ]
    compared: Annotated[
        tuple[int, int],
        Key("compared", "Consumed samples up to which A and B were compared.", minimum=0),
    ]
    first_step: Annotated[
        StepDifference | None,
        Key("first_step", "First steps that differ; null if all that both have are equal."),
    ]
    sources: Annotated[
        tuple[SourceDifference, ...],
        Key("sources", "Samples of each dataset of either; empty if only the first step was compared."),
    ]

    @property
    def reads_same(self) -> bool:
        """True if the steps that were compared hold the same samples, and both end together."""
        return self.first_step is None and self.compared[0] == self.compared[1]


@dataclass(frozen=True, slots=True)
class SplitDifference:
    """Difference of a split of two blends."""

    TAG = ("part", "split")

    name: Annotated[str, Key("name", "Name of the split.")]
    fields: Fields
    samples: Samples
    first_sample: FirstSample
    sources: Annotated[tuple[SourceDifference, ...], Key("sources", "Samples of each source of either.")]

    @property
    def reads_same(self) -> bool:
        """True if both hold the same samples."""
        return self.first_sample is None and self.samples[0] == self.samples[1]


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """Difference of an index, or of the order of a blend, in two caches."""

    TAG = ("part", "index")

    name: Annotated[str, Key("name", "Split and dataset, or blend.")]
    fields: Fields
    hashes: Annotated[tuple[str, str], Key("hashes", "Hash of A and of B.", pattern="[0-9a-f]{32}")]
    samples: Samples
    first_sample: FirstSample
    same: Annotated[int, Key("same", "Samples that begin at the same token of the same document.", minimum=0)]

    @property
    def reads_same(self) -> bool:
        """True if all samples begin at the same tokens."""
        return self.first_sample is None and self.samples[0] == self.samples[1]


@dataclass(frozen=True, slots=True)
class DiffReport(Document):
    """Difference of two plans, blends or index caches."""

    SCHEMA = "tokshard.diff/1"

    kind: Annotated[ProductKind, Key("kind", "Kind of A and B: plan, blend or cache.")]
    reads_same: Annotated[
        bool, Key("reads_same", "Whether both read the same samples in the same order, as far as compared.")
    ]
    same_plan: Annotated[
        bool | None, Key("same_plan", "Whether both are one plan; null for blends and caches.")
    ]
    fields: Annotated[
        tuple[FieldDifference, ...],
        Key("fields", "Fields that differ: topology and tokenizer of plans, or parameters of blends."),
    ]
    parts: Annotated[
        tuple[StreamDifference | SplitDifference | IndexDifference, ...],
        Key("parts", "Streams, splits or indexes that both have."),
    ]
    only_in_a: Annotated[tuple[str, ...], Key("only_in_a", "Names of those that only A has.")]
    only_in_b: Annotated[tuple[str, ...], Key("only_in_b", "Names of those that only B has.")]
    warnings: Annotated[
        tuple[str, ...], Key("warnings", "Mismatches of tokenizers that A or B records as allowed.")
    ] = ()


def report_of(
    kind: ProductKind,
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
