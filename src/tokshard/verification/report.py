"""The report of a verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import Document, Key
from tokshard.core.findings import Finding, FindingCollector
from tokshard.verification.codes import RULES
from tokshard.verification.options import Level

ProductKind = Literal["dataset", "index", "blend", "plan", "rank"]


@dataclass(frozen=True, slots=True)
class VerifiedProduct:
    """One product that was examined."""

    kind: Annotated[ProductKind, Key("kind", "dataset, index (of a cache), blend, plan or rank.")]
    path: Annotated[str, Key("path", "The path prefix of a dataset; the main file of other products.")]
    is_sound: Annotated[bool, Key("sound", "Whether there are no findings but notes.")]
    counts: Annotated[dict[str, int], Key("counts", "What was counted on the way, by name.")]
    findings: Annotated[tuple[Finding, ...], Key("findings", "In the order of the checks.")]


@dataclass(frozen=True, slots=True)
class VerifyReport(Document):
    """What a verification has found."""

    SCHEMA = "tokshard.verify/1"

    path: Annotated[str, Key("path", "What was to be verified.")]
    level: Annotated[Level, Key("level", "How thoroughly: each level includes those before it.")]
    subset_percent: Annotated[
        float | None, Key("subset_percent", "Share of the pieces whose digests were checked; null for all.")
    ]
    is_sound: Annotated[bool, Key("sound", "Whether there are no findings but notes.")]
    bytes_read: Annotated[int, Key("bytes_read", "Bytes that were read.", minimum=0)]
    seconds: Annotated[float, Key("seconds", "Duration.", minimum=0)]
    products: Annotated[tuple[VerifiedProduct, ...], Key("products", "From datasets to plans.")]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found."""
        return tuple(finding for product in self.products for finding in product.findings)


class ProductFindings(FindingCollector):
    """Findings about one product of a kind that can be verified."""

    def __init__(self, kind: ProductKind, path: str) -> None:
        super().__init__(RULES, path)
        self.kind = kind

    def find_changed(self) -> None:
        """Find that another program has changed the product: earlier findings may be about no one state."""
        self.findings.clear()
        self.find("changed", f"{self.path} was changed while it was looked at")

    def close(self) -> VerifiedProduct:
        """Return the verified product."""
        return VerifiedProduct(self.kind, self.path, self.is_sound, dict(self.counts), tuple(self.findings))
