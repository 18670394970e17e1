"""Reports of tracing: what samples and documents consist of, and which samples read documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Count, Document, Positive, Record, Sha256
from tokshard.dataset.plan import InputFormat

TraceKind = Literal["plan", "blend", "index", "dataset"]
ItemStatus = Literal["read", "unread", "found", "rejected", "not-found"]


@dataclass(frozen=True, slots=True)
class DocumentOrigin(Record):
    """The record that a document was made from."""

    path: str
    format: InputFormat
    line: Positive | None = None
    offset: Count | None = None
    row: Count | None = None
    document: Count | None = None
    detail: str | None = None

    @property
    def item(self) -> str:
        """The record as a text that trace accepts as an item.

        Example:
            >>> DocumentOrigin("web.jsonl", "jsonl", line=3, offset=90).item
            'web.jsonl:3'
        """
        if self.document is not None:
            return f"{self.path.removesuffix('.bin')}#{self.document}"
        if self.row is not None:
            return f"{self.path}@{self.row}"
        if self.line is not None:
            return f"{self.path}:{self.line}"
        return self.path if self.offset is None else f"{self.path}@{self.offset}"


@dataclass(frozen=True, slots=True)
class TraceDocumentReport(Document):
    """A document and the record that it was made from."""

    SCHEMA = "tokshard.trace-document/2"

    dataset: str
    document: Count
    sequences: Count
    tokens: Count
    origin: DocumentOrigin | None
    detail: str | None
    text: str | None
    warnings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SamplePiece(Record):
    """A part of a document in a sample."""

    document: Count
    sequence: Count
    first_token: Count
    stop_token: Count
    position: Count
    label_only: bool
    origin: DocumentOrigin | None
    detail: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class SampleContents(Record):
    """A sample and the parts of documents that it consists of."""

    sample: Count
    dataset: str
    dataset_sample: Count
    tokens: Count
    pieces: tuple[SamplePiece, ...]
    data_parallel_rank: Count | None = None
    row: Count | None = None
    micro_batch: Count | None = None


@dataclass(frozen=True, slots=True)
class TraceSamplesReport(Document):
    """The contents of one sample, or of the samples of a step."""

    SCHEMA = "tokshard.trace-samples/2"

    kind: TraceKind
    path: str
    stream: str
    plan_id: Sha256 | None
    step: Count | None
    consumed_samples: Count | None
    rank: Count | None
    samples: tuple[SampleContents, ...]
    warnings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DocumentRead(Record):
    """One read of a part of a document."""

    stream: str
    sample: Count
    dataset_sample: Count
    sequence: Count
    first_token: Count
    stop_token: Count
    label_only: bool
    plan_id: Sha256 | None = None
    epoch: Count | None = None
    step: Count | None = None
    data_parallel_rank: Count | None = None
    row: Count | None = None
    micro_batch: Count | None = None
    repeated: bool | None = None
    seen: bool | None = None


@dataclass(frozen=True, slots=True)
class DocumentReads(Record):
    """A document and all reads of it."""

    dataset: str
    document: Count
    tokens: Count
    reads: tuple[DocumentRead, ...]


@dataclass(frozen=True, slots=True)
class TracedItem(Record):
    """A requested line or document, and the samples that read it."""

    item: str
    status: ItemStatus
    detail: str | None
    seen: bool | None
    documents: tuple[DocumentReads, ...]


@dataclass(frozen=True, slots=True)
class RankReaders(Record):
    """The ranks of the job that belong to a data-parallel rank."""

    data_parallel_rank: Count
    ranks: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class TraceReadsReport(Document):
    """The reads of some lines or documents."""

    SCHEMA = "tokshard.trace-reads/2"

    kind: TraceKind
    path: str
    streams: tuple[str, ...]
    plan_id: Sha256 | None
    consumed_samples: Count | None
    ranks: tuple[RankReaders, ...]
    warnings: tuple[str, ...]
    items: tuple[TracedItem, ...]

    @property
    def is_complete(self) -> bool:
        """True if every item is a document."""
        return all(item.status in {"read", "unread", "found"} for item in self.items)


TraceReport = TraceDocumentReport | TraceSamplesReport | TraceReadsReport
