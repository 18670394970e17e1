"""Reports of tracing: what samples and documents consist of, and which samples read documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Count, Document, Positive, Record, Sha256
from tokshard.core.formatting import count, counted, listed, short_id, shown_path
from tokshard.core.presentation import Block, FactList, Section, Table
from tokshard.dataset.parameters import InputFormat

_SHOWN_SAMPLES = 16
_SHOWN_READS = 20
_SHOWN_ITEMS = 50
_SHOWN_RANKS = 8
_SHOWN_TEXT = 48

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

    def sections(self) -> list[Section]:
        """Return the document for people."""
        detail = self.detail if self.origin is None else self.origin.detail
        facts = [
            ("document", f"{count(self.document)} of {shown_path(self.dataset)}"),
            ("tokens", f"{count(self.tokens)} in {counted(self.sequences, 'sequence')}"),
            ("origin", _item(self.origin)),
            *([("", detail)] if detail else []),
            ("text", "pass --tokenizer to see it" if self.text is None else ""),
        ]
        text = [] if self.text is None else [f"  {line}" for line in self.text.split("\n")]
        return [Section("", [FactList(facts), *text, *_warning_lines(self.warnings)])]


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

    def row(self) -> list[str]:
        """Return the cells of the piece in a table for people."""
        text = self.text or ""
        return [
            count(self.position),
            count(self.document),
            _token_range(self),
            _item(self.origin),
            text[:_SHOWN_TEXT] + ("..." if len(text) > _SHOWN_TEXT else ""),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRead(Record):
    """One read of a sample by a plan."""

    plan_id: Sha256 | None = None
    epoch: Count | None = None
    step: Count | None = None
    data_parallel_rank: Count | None = None
    row: Count | None = None
    micro_batch: Count | None = None
    repeated: bool | None = None
    seen: bool | None = None

    def cells(self) -> dict[str, str]:
        """Return the cells of the read in a table for people, by the titles of their columns."""
        numbers = {
            "epoch": self.epoch,
            "step": self.step,
            "dp rank": self.data_parallel_rank,
            "micro-batch": self.micro_batch,
            "row": self.row,
        }
        return {
            "plan": short_id(self.plan_id or ""),
            **{title: "" if number is None else count(number) for title, number in numbers.items()},
            "repeated": "repeated" if self.repeated else "",
            "seen": "" if self.seen is None else "yes" if self.seen else "no",
        }


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

    def section(self, stream: str) -> Section:
        """Return the pieces of the sample for people."""
        reader = ""
        if self.row is not None:
            reader = f"data-parallel rank {self.data_parallel_rank}, micro-batch {self.micro_batch}: "
        title = (
            f"{reader}sample {count(self.sample)} of {stream} is sample {count(self.dataset_sample)} of "
            f"{shown_path(self.dataset)}, {counted(self.tokens, 'token')}"
        )
        columns = 5 if any(piece.text is not None for piece in self.pieces) else 4
        header = ("at", "document", "its tokens", "from", "text")[:columns]
        rows = [piece.row()[:columns] for piece in self.pieces]
        return Section(title, [Table(header, rows, (2, 3, 4), hide=("its tokens",))])


@dataclass(frozen=True, slots=True)
class RankReaders(Record):
    """The ranks of the job that belong to a data-parallel rank."""

    data_parallel_rank: Count
    ranks: tuple[Count, ...]

    def line(self) -> str:
        """Return the ranks for people."""
        noun = "rank" if len(self.ranks) == 1 else "ranks"
        return f"data-parallel rank {self.data_parallel_rank}: {noun} {listed(self.ranks, _SHOWN_RANKS)}"


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
    reads: tuple[SampleRead, ...] | None = None
    ranks: tuple[RankReaders, ...] | None = None
    warnings: tuple[str, ...] | None = None

    def sections(self) -> list[Section]:
        """Return the samples for people."""
        sections = []
        if self.step is not None:
            ranks = "all ranks" if self.rank is None else f"rank {self.rank}"
            samples = counted(len(self.samples), "sample")
            consumed = counted(self.consumed_samples or 0, "consumed sample")
            step = f"step {count(self.step)} of {self.stream}, {ranks}: {samples} after {consumed}"
            sections.append(Section("", [step]))
        sections += [sample.section(self.stream) for sample in self.samples[:_SHOWN_SAMPLES]]
        if self.reads is not None:
            times = f"read {counted(len(self.reads), 'time')}" if self.reads else "not read"
            readers = [each.line() for each in self.ranks or ()]
            sections.append(Section(times, [*_read_blocks(self.reads), *readers]))
        more = len(self.samples) - _SHOWN_SAMPLES
        lines = [f"and {counted(more, 'more sample')}: see --json"] if more > 0 else []
        pieces = [piece for sample in self.samples for piece in sample.pieces]
        details = {piece.detail if piece.origin is None else piece.origin.detail for piece in pieces}
        lines += [f"note: {detail}" for detail in sorted(detail for detail in details if detail)]
        lines += _warning_lines(self.warnings)
        return [*sections, *([Section("", lines)] if lines else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRead(SampleRead):
    """One read of a part of a document."""

    stream: str
    sample: Count
    dataset_sample: Count
    sequence: Count
    first_token: Count
    stop_token: Count
    label_only: bool

    def cells(self) -> dict[str, str]:
        """Return the cells of the read in a table for people, by the titles of their columns."""
        return {
            "  stream": f"  {self.stream}",
            "sample": count(self.sample),
            "of its dataset": count(self.dataset_sample),
            "tokens": _token_range(self),
            **SampleRead.cells(self),
        }


@dataclass(frozen=True, slots=True)
class DocumentReads(Record):
    """A document and all reads of it."""

    dataset: str
    document: Count
    tokens: Count
    reads: tuple[DocumentRead, ...]

    def blocks(self) -> Iterator[Block]:
        """Return the reads for people."""
        document = f"document {count(self.document)} of {shown_path(self.dataset)}"
        yield f"  {document}, {counted(self.tokens, 'token')}"
        yield from _read_blocks(self.reads)


def _read_blocks(reads: Sequence[SampleRead]) -> Iterator[Block]:
    """Yield the table of reads for people: the first ones, without the columns that tell nothing."""
    rows = [read.cells() for read in reads[:_SHOWN_READS]]
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    if len({read.plan_id for read in reads}) == 1 and "plan" in columns:
        columns.remove("plan")
    if rows:
        left = [number for number, name in enumerate(columns) if name in {"  stream", "tokens"}]
        hide = [name for name in ("row", "of its dataset", "micro-batch", "plan") if name in columns]
        yield Table(columns, [[row[name] for name in columns] for row in rows], left=left, hide=hide)
    if len(reads) > _SHOWN_READS:
        yield f"  and {counted(len(reads) - _SHOWN_READS, 'more read')}: see --json"


@dataclass(frozen=True, slots=True)
class TracedItem(Record):
    """A requested line or document, and the samples that read it."""

    item: str
    status: ItemStatus
    detail: str | None
    seen: bool | None
    documents: tuple[DocumentReads, ...]

    def section(self, consumed_samples: int) -> Section:
        """Return the reads of the item for people."""
        reads = sum(not read.label_only for document in self.documents for read in document.reads)
        text = f"{self.status}, {counted(reads, 'time')}" if reads else self.status
        if self.detail:
            text += f": {self.detail}"
        elif self.seen is not None:
            text += (
                f"; {'seen' if self.seen else 'not seen'} within {count(consumed_samples)} consumed samples"
            )
        blocks = (block for document in self.documents for block in document.blocks())
        return Section("", [f"{self.item}: {text}", *blocks])


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

    def sections(self) -> list[Section]:
        """Return the reads of each item for people."""
        sections = [item.section(self.consumed_samples or 0) for item in self.items[:_SHOWN_ITEMS]]
        more = len(self.items) - _SHOWN_ITEMS
        lines = [f"and {counted(more, 'more item')}: see --json"] if more > 0 else []
        lines += [readers.line() for readers in self.ranks]
        lines += _warning_lines(self.warnings)
        return [*sections, *([Section("", lines)] if lines else [])]

    @property
    def is_complete(self) -> bool:
        """True if every item is a document."""
        return all(item.status in {"read", "unread", "found"} for item in self.items)


TraceReport = TraceDocumentReport | TraceSamplesReport | TraceReadsReport


def _token_range(piece: SamplePiece | DocumentRead) -> str:
    if piece.label_only:
        return f"{count(piece.first_token)} (label)"
    return f"{count(piece.first_token)} to {count(piece.stop_token - 1)}"


def _item(origin: DocumentOrigin | None) -> str:
    return "unknown" if origin is None else origin.item


def _warning_lines(warnings: Iterable[str] | None) -> list[str]:
    return [f"warning: {warning}" for warning in warnings or ()]
