"""From samples to records, and back, through a plan, a blend, an index or a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from tokshard.checks.trace.contents import DatasetContents, StreamContents
from tokshard.checks.trace.options import TraceItem
from tokshard.checks.trace.provenance import Provenance
from tokshard.checks.trace.reads import DocumentId, find_reads, reads_of_sample
from tokshard.checks.trace.report import (
    DocumentRead,
    DocumentReads,
    TracedItem,
    TraceDocumentReport,
    TraceReadsReport,
    TraceSamplesReport,
)
from tokshard.checks.trace.sequence_table import SequenceTable
from tokshard.checks.trace.traced_data import TracedData
from tokshard.core.formatting import counted
from tokshard.dataset.fingerprint import unchanged
from tokshard.errors import MissingFileError, UsageError
from tokshard.samples.index.splits import TRAIN
from tokshard.storage.fs import exists, realpath
from tokshard.storage.paths import idx_path

Arguments = ParamSpec("Arguments")
Report = TypeVar("Report")


def _of_unchanged_datasets(
    work: Callable[Concatenate[TracedData, Arguments], Report],
) -> Callable[Concatenate[TracedData, Arguments], Report]:
    # The function fails with an InputError if a dataset changes while it runs.
    @wraps(work)
    def watched(data: TracedData, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Report:
        with unchanged(data.datasets):
            return work(data, *arguments, **options)

    return watched


@_of_unchanged_datasets
def trace_document(data: TracedData, document: int, *, tokenizer: str | None = None) -> TraceDocumentReport:
    """Return the record and the text of a document of a dataset.

    Raises:
        UsageError: The document does not exist.
        InputError: A dataset was changed while it was read.
    """
    if len(data.datasets) != 1:
        raise UsageError(
            f"--document requires a single dataset, got {data.path}, which has {len(data.datasets)}",
            hint="pass one of them: tokshard trace PREFIX --document N",
        )
    prefix, multimodal = next(iter(data.datasets.items()))
    dataset = DatasetContents(prefix, multimodal=multimodal, tokenizer=tokenizer)
    count = dataset.table.document_count
    if not 0 <= document < count:
        raise UsageError(f"document must be from 0 to {count - 1} for {prefix}, got {document}")
    documents = np.array([document], np.int64)
    pieces = dataset.pieces(dataset.spans_of(documents))
    origin, detail = dataset.origins(documents)[0]
    first, stop = dataset.table.sequences_of(documents)
    return TraceDocumentReport(
        dataset=prefix,
        document=document,
        sequences=int(stop[0] - first[0]),
        tokens=sum(piece.stop_token - piece.first_token for piece in pieces),
        origin=origin,
        detail=detail,
        text="".join(piece.text or "" for piece in pieces) if dataset.has_text else None,
        warnings=data.allowed_mismatches or None,
    )


@_of_unchanged_datasets
def trace_sample(
    data: TracedData, stream: str, sample: int, *, tokenizer: str | None = None
) -> TraceSamplesReport:
    """Return the contents of a sample of a blend, an index or a plan, and its reads by a plan.

    Raises:
        UsageError: The stream or the sample does not exist.
        InputError: A dataset was changed while it was read.
    """
    traced = data.stream(stream)
    total = traced.source.total
    if not 0 <= sample < total:
        raise UsageError(f"sample must be from 0 to {total - 1} for {stream} of {data.path}, got {sample}")
    samples = StreamContents(traced.source, tokenizer).samples(np.array([sample], np.int64))
    reads = reads_of_sample(traced.stages, sample, traced.key_of) if traced.stages else None
    return TraceSamplesReport(
        kind=data.kind,
        path=data.path,
        stream=stream,
        plan_id=data.plan_id,
        step=None,
        consumed_samples=None,
        rank=None,
        samples=tuple(samples),
        reads=reads,
        ranks=data.readers(reads or ()) or None,
        warnings=(*data.warnings, *data.allowed_mismatches) or None,
    )


@_of_unchanged_datasets
def trace_step(
    data: TracedData, stream: str, step: int, *, tokenizer: str | None = None
) -> TraceSamplesReport:
    """Return the contents of the samples of a step of a plan.

    Raises:
        UsageError: There is no such stream or step.
        InputError: A dataset was changed while it was read.
    """
    if data.plan is None:
        raise UsageError(
            f"--step requires a plan, got {data.path}", hint="pass --sample N or --document N, or a plan"
        )
    traced = data.stream(stream)
    assert traced.stream is not None  # noqa: S101 - the streams of a plan have it
    order = traced.stream.order
    if not 0 <= step < order.steps:
        raise UsageError(f"step must be from 0 to {order.steps - 1} for {stream} of {data.path}, got {step}")
    rank = data.rank
    dp_ranks = range(order.ranks) if rank is None else [data.plan.topology.coordinates(rank).dp]
    first = order.first_number(step) // order.ranks
    count = order.first_number(step + 1) // order.ranks - first
    ids = [order.ids(order.numbers(dp_rank, first, count), traced.key_of) for dp_rank in dp_ranks]
    contents = StreamContents(traced.source, tokenizer).samples(np.concatenate(ids))
    samples = []
    for number, sample in enumerate(contents):
        turn, row_of_step = divmod(number, count)
        micro_batch, row = divmod(row_of_step, order.micro_batch_size)
        reader = dp_ranks[turn]
        samples.append(replace(sample, data_parallel_rank=reader, row=row, micro_batch=micro_batch))
    return TraceSamplesReport(
        kind=data.kind,
        path=data.path,
        stream=stream,
        plan_id=data.plan_id,
        step=step,
        consumed_samples=order.consumed_after(step),
        rank=rank,
        samples=tuple(samples),
        warnings=data.allowed_mismatches or None,
    )


@_of_unchanged_datasets
def trace_items(
    data: TracedData,
    items: Sequence[TraceItem],
    *,
    streams: Sequence[str] | None = None,
    consumed_samples: int | None = None,
) -> TraceReadsReport:
    """Return every read of some lines or documents.

    Memory grows with the items and the reads, not with the data. The time is that of one pass over the
    indexes of the datasets that hold the documents, and over the order of the blend: about 2 ns an entry.

    ``consumed_samples`` marks what was seen when all ranks had consumed so many samples of training, or of
    the one stream that is named; without a plan, samples are taken to be consumed in their order.

    Raises:
        UsageError: The stream does not exist.
        InputError: A dataset was changed while it was read.
        MissingFileError: A file of a dataset or of an index is not there.
        IntegrityError: An index does not fit its dataset, or something has changed since the plan was made.
    """
    names = tuple(data.streams if streams is None else dict.fromkeys(streams))
    searched = [data.stream(name) for name in names]
    resolver = _Resolver(data.datasets)
    resolved = [resolver.resolve(item) for item in items]
    targets = sorted({target for item in resolved for target in item.targets})
    found: dict[DocumentId, list[DocumentRead]] = {target: [] for target in targets}
    limited = names[0] if streams is not None and len(names) == 1 else TRAIN
    for stream in searched:
        for target, read in find_reads(
            stream.source,
            stream.name,
            targets,
            resolver.table,
            stages=stream.stages,
            key_of=stream.key_of,
            consumed_samples=consumed_samples if stream.name == limited else None,
        ):
            found[target].append(read)
    documents = {
        target: DocumentReads(*target, tokens, tuple(found[target]))
        for target, tokens in resolver.tokens_of(targets).items()
    }
    return TraceReadsReport(
        kind=data.kind,
        path=data.path,
        streams=names,
        plan_id=data.plan_id,
        consumed_samples=consumed_samples,
        ranks=data.readers(read for reads in found.values() for read in reads),
        warnings=(*data.warnings, *data.allowed_mismatches),
        items=tuple(
            _traced_item(item, documents, searched=bool(names), with_seen=consumed_samples is not None)
            for item in resolved
        ),
    )


@dataclass(frozen=True, slots=True)
class _ResolvedItem:
    item: TraceItem
    targets: tuple[DocumentId, ...]
    detail: str | None = None
    rejected: bool = False


def _traced_item(
    resolved: _ResolvedItem,
    documents: Mapping[DocumentId, DocumentReads],
    *,
    searched: bool,
    with_seen: bool,
) -> TracedItem:
    text = resolved.item.text
    if resolved.detail is not None:
        status: Literal["rejected", "not-found"] = "rejected" if resolved.rejected else "not-found"
        return TracedItem(text, status, resolved.detail, None, ())
    mine = tuple(documents[target] for target in resolved.targets)
    if not searched:
        return TracedItem(text, "found", None, None, mine)
    reads = [read for document in mine for read in document.reads]
    detail = None
    if not any(document.tokens for document in mine):
        detail = "the document has no tokens"
    elif not reads:
        detail = "the document is never read"
    inputs = [read for read in reads if not read.label_only]
    if reads and not inputs:
        detail = "only its first token is read, as the last label of a sample"
    seen = any(read.seen for read in inputs) if with_seen else None
    return TracedItem(text, "read" if inputs else "unread", detail, seen, mine)


class _Resolver:
    def __init__(self, datasets: Mapping[str, bool]) -> None:
        self._datasets = datasets
        self._tables: dict[str, SequenceTable] = {}
        self._real_path = lru_cache(maxsize=4096)(realpath)
        self._provenance: dict[str, Provenance | None] = {}

    def resolve(self, item: TraceItem) -> _ResolvedItem:
        if item.kind == "document":
            real = self._real_path(item.path)
            named = [prefix for prefix in self._datasets if self._real_path(prefix) == real]
            if named:
                return self._numbered(item, named)
        matches = [
            (prefix, match)
            for prefix in self._datasets
            if (provenance := self._provenance_of(prefix)) is not None
            for match in provenance.matches(item)
        ]
        targets = tuple((prefix, match.document) for prefix, match in matches if match.document is not None)
        if targets:
            return _ResolvedItem(item, targets)
        for _, match in matches:
            return _ResolvedItem(item, (), match.detail, match.rejected)
        return _ResolvedItem(item, (), self._unknown(item))

    def tokens_of(self, targets: Sequence[DocumentId]) -> dict[DocumentId, int]:
        found: dict[DocumentId, int] = {}
        for prefix in {prefix for prefix, _ in targets}:
            mine = [target for target in targets if target[0] == prefix]
            documents = np.array([document for _, document in mine], np.int64)
            found |= dict(zip(mine, self.table(prefix).tokens_of(documents).tolist(), strict=True))
        return found

    def table(self, prefix: str) -> SequenceTable:
        if prefix not in self._tables:
            path = idx_path(prefix)
            if not exists(path):
                raise MissingFileError(f"dataset not found: {prefix} ({path} missing)", path=path)
            self._tables[prefix] = SequenceTable(prefix, multimodal=self._datasets[prefix])
        return self._tables[prefix]

    def _numbered(self, item: TraceItem, prefixes: list[str]) -> _ResolvedItem:
        count = self.table(prefixes[0]).document_count
        if item.number >= count:
            return _ResolvedItem(item, (), f"{item.path} has {counted(count, 'document')}, numbered from 0")
        return _ResolvedItem(item, tuple((prefix, item.number) for prefix in prefixes))

    def _provenance_of(self, prefix: str) -> Provenance | None:
        if prefix not in self._provenance:
            self._provenance[prefix] = Provenance.open(prefix)
        return self._provenance[prefix]

    def _unknown(self, item: TraceItem) -> str:
        if item.kind == "document":
            searched = counted(len(self._datasets), "dataset")
            return f"{item.path} is not in the {searched} searched, and was not merged into any of them"
        known = [self._provenance_of(prefix) for prefix in self._datasets]
        silent = sum(provenance is None or provenance.is_silent for provenance in known)
        detail = f"no dataset lists {item.path} as an input"
        if silent:
            datasets = counted(len(known), "dataset")
            detail += f"; inputs unknown for {silent} of {datasets} (no manifest)"
        return detail
