"""Reports of tracing: what samples and documents consist of, and which samples read documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import SHA256, Document, Key

TraceKind = Literal["plan", "blend", "index", "dataset"]
ItemStatus = Literal["read", "unread", "found", "rejected", "not-found"]
OriginFormat = Literal["jsonl", "parquet", "arrow", "indexed", "nanogpt", "olmo", "datatrove"]

PlanId = Annotated[str | None, Key("plan_id", "Id of the plan; null without a plan.", pattern=SHA256)]
Dataset = Annotated[str, Key("dataset", "Path prefix of the dataset.")]
Sequence = Annotated[int, Key("sequence", "Number of the sequence in the dataset.", minimum=0)]
FirstToken = Annotated[int, Key("first_token", "First token, counted in the document.", minimum=0)]
StopToken = Annotated[int, Key("stop_token", "One past the last token, counted in the document.", minimum=0)]
DatasetSample = Annotated[
    int,
    Key(
        "dataset_sample",
        "Number of the sample in the dataset's index; of documents, the document.",
        minimum=0,
    ),
]
LabelOnly = Annotated[
    bool, Key("label_only", "Whether its only token is the last label of the sample, and no input of it.")
]
Row = Annotated[int | None, Key("row", "Row in the micro-batch.", minimum=0)]
MicroBatch = Annotated[int | None, Key("micro_batch", "Micro-batch of the step.", minimum=0)]
Kind = Annotated[TraceKind, Key("kind", "Kind of input that was traced through.")]
Path = Annotated[str, Key("path", "Path of the plan, blend, index or dataset.")]


@dataclass(frozen=True, slots=True)
class DocumentOrigin:
    """The record that a document was made from."""

    path: Annotated[str, Key("path", "The input, as it was named when the dataset was made.")]
    format: Annotated[
        OriginFormat,
        Key("format", "Format of the input; `indexed` for a dataset that was merged without a manifest."),
    ]
    line: Annotated[
        int | None,
        Key("line", "Line, from 1; null in tables, and where it cannot be counted.", minimum=1),
    ] = None
    offset: Annotated[
        int | None,
        Key("offset", "Byte of the decompressed input where the line begins; null if unknown.", minimum=0),
    ] = None
    row: Annotated[int | None, Key("row", "Row of a table, from 0.", minimum=0)] = None
    document: Annotated[int | None, Key("document", "Document of an `indexed` input.", minimum=0)] = None
    detail: Annotated[str | None, Key("detail", "Reason why the line or the record is unknown.")] = None

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


KnownOrigin = Annotated[
    DocumentOrigin | None, Key("origin", "The record that the document was made from; null if unknown.")
]
AllowedMismatches = Annotated[
    tuple[str, ...] | None,
    Key("warnings", "Mismatches of tokenizers that were allowed; absent if there are none.", omit_none=True),
]
OriginDetail = Annotated[str | None, Key("detail", "Reason why the origin is unknown.")]


@dataclass(frozen=True, slots=True)
class TraceDocumentReport(Document):
    """A document and the record that it was made from."""

    SCHEMA = "tokshard.trace-document/1"

    dataset: Dataset
    document: Annotated[int, Key("document", "Number of the document.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Number of its sequences.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Number of its tokens.", minimum=0)]
    origin: KnownOrigin
    detail: OriginDetail
    text: Annotated[str | None, Key("text", "Its text; null where the tokenizer is unknown.")]
    warnings: AllowedMismatches = None


@dataclass(frozen=True, slots=True)
class SamplePiece:
    """A part of a document in a sample."""

    document: Annotated[int, Key("document", "Number of the document in the dataset.", minimum=0)]
    sequence: Sequence
    first_token: FirstToken
    stop_token: StopToken
    position: Annotated[int, Key("position", "Position of the first token in the sample.", minimum=0)]
    label_only: LabelOnly
    origin: KnownOrigin
    detail: OriginDetail
    text: Annotated[str | None, Key("text", "Text of the part; null where the tokenizer is unknown.")]


@dataclass(frozen=True, slots=True)
class SampleContents:
    """A sample and the parts of documents that it consists of."""

    sample: Annotated[int, Key("sample", "Number of the sample in the stream.", minimum=0)]
    dataset: Dataset
    dataset_sample: DatasetSample
    tokens: Annotated[int, Key("tokens", "Number of tokens, without padding.", minimum=0)]
    pieces: Annotated[tuple[SamplePiece, ...], Key("pieces", "Parts of documents, in order.")]
    data_parallel_rank: Annotated[
        int | None,
        Key("data_parallel_rank", "Data-parallel rank that reads it, if a step was traced.", minimum=0),
    ] = None
    row: Row = None
    micro_batch: MicroBatch = None


@dataclass(frozen=True, slots=True)
class TraceSamplesReport(Document):
    """The contents of one sample, or of the samples of a step."""

    SCHEMA = "tokshard.trace-samples/1"

    kind: Kind
    path: Path
    stream: Annotated[str, Key("stream", "Stream of the samples.")]
    plan_id: PlanId
    step: Annotated[int | None, Key("step", "Step of the plan; null for one sample.", minimum=0)]
    consumed_samples: Annotated[
        int | None, Key("consumed_samples", "Samples consumed before the step, over all ranks.", minimum=0)
    ]
    rank: Annotated[int | None, Key("rank", "Rank whose samples were traced; null for all.", minimum=0)]
    samples: Annotated[
        tuple[SampleContents, ...], Key("samples", "The samples, by data-parallel rank and row.")
    ]
    warnings: AllowedMismatches = None


@dataclass(frozen=True, slots=True)
class DocumentRead:
    """One read of a part of a document."""

    stream: Annotated[str, Key("stream", "Stream that reads it.")]
    sample: Annotated[int, Key("sample", "Sample of the stream.", minimum=0)]
    dataset_sample: DatasetSample
    sequence: Sequence
    first_token: FirstToken
    stop_token: StopToken
    label_only: LabelOnly
    plan_id: PlanId = None
    epoch: Annotated[int | None, Key("epoch", "Epoch; null without a plan.", minimum=0)] = None
    step: Annotated[int | None, Key("step", "Step of that plan.", minimum=0)] = None
    data_parallel_rank: Annotated[int | None, Key("data_parallel_rank", "Data-parallel rank.", minimum=0)] = (
        None
    )
    row: Row = None
    micro_batch: MicroBatch = None
    repeated: Annotated[
        bool | None,
        Key("repeated", "Whether it is read as padding, after it was read in the same epoch."),
    ] = None
    seen: Annotated[
        bool | None,
        Key("seen", "Whether it is read within the consumed samples; null if none were given."),
    ] = None


@dataclass(frozen=True, slots=True)
class DocumentReads:
    """A document and all reads of it."""

    dataset: Dataset
    document: Annotated[int, Key("document", "Number of the document.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Number of its tokens.", minimum=0)]
    reads: Annotated[
        tuple[DocumentRead, ...], Key("reads", "Every read of a part of it, in the order of time.")
    ]


@dataclass(frozen=True, slots=True)
class TracedItem:
    """A requested line or document, and the samples that read it."""

    item: Annotated[str, Key("item", "The item as the user wrote it.")]
    status: Annotated[
        ItemStatus,
        Key(
            "status",
            "`read`; `unread`: it is a document that no sample reads as input; `found`: it is a document of "
            "a dataset, which has no reads; `rejected`: its record was not made a document; `not-found`.",
        ),
    ]
    detail: Annotated[str | None, Key("detail", "Reason why it is not read.")]
    seen: Annotated[
        bool | None,
        Key(
            "seen",
            "Whether any of its reads as input was seen; null if no consumed samples were given.",
        ),
    ]
    documents: Annotated[tuple[DocumentReads, ...], Key("documents", "The documents that were made of it.")]


@dataclass(frozen=True, slots=True)
class RankReaders:
    """The ranks of the job that belong to a data-parallel rank."""

    data_parallel_rank: Annotated[int, Key("data_parallel_rank", "Data-parallel rank.", minimum=0)]
    ranks: Annotated[tuple[int, ...], Key("ranks", "Ranks of the job.", minimum=0)]


@dataclass(frozen=True, slots=True)
class TraceReadsReport(Document):
    """The reads of some lines or documents."""

    SCHEMA = "tokshard.trace-reads/1"

    kind: Kind
    path: Path
    streams: Annotated[tuple[str, ...], Key("streams", "Streams that were searched.")]
    plan_id: PlanId
    consumed_samples: Annotated[
        int | None, Key("consumed_samples", "Consumed samples that `seen` refers to.", minimum=0)
    ]
    ranks: Annotated[
        tuple[RankReaders, ...],
        Key("ranks", "For each data-parallel rank that reads any of it, the ranks of the job."),
    ]
    warnings: Annotated[
        tuple[str, ...],
        Key("warnings", "Reads that were not searched, and allowed mismatches of tokenizers."),
    ]
    items: Annotated[tuple[TracedItem, ...], Key("items", "The items, in the order of the options.")]

    @property
    def is_complete(self) -> bool:
        """True if every item is a document."""
        return all(item.status in {"read", "unread", "found"} for item in self.items)


TraceReport = TraceDocumentReport | TraceSamplesReport | TraceReadsReport
