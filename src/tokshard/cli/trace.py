"""``tokshard trace``: options, one call, one rendering as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokshard
from tokshard import TraceOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun
from tokshard.core.formatting import count, counted, listed, shown_path

if TYPE_CHECKING:
    from tokshard.checks.trace.report import (
        DocumentOrigin,
        DocumentRead,
        DocumentReads,
        SampleContents,
        SamplePiece,
        TracedItem,
        TraceDocumentReport,
        TraceReadsReport,
        TraceReport,
        TraceSamplesReport,
    )

_SHOWN_SAMPLES = 16
_SHOWN_READS = 20
_SHOWN_ITEMS = 50
_SHOWN_RANKS = 8
_SHOWN_ID = 12
_SHOWN_TEXT = 48


def trace(options: TraceOptions, run: CommandRun) -> None:
    """Trace a training step to its source files and lines, or a line to every step that reads it.

    With --source or --list, the exit code is 1 if an item is not a document of the data.

    Examples:
        tokshard trace --plan plan --step 41200 --rank 7
        tokshard trace --blend mix --sample 17 --tokenizer tokenizer.json
        tokshard trace --plan plan --source web.jsonl:123 --consumed-samples 10M
        tokshard trace --plan plan --list removals.txt --json > reads.json
    """
    report = tokshard.trace(options, progress=run.progress)
    run.show(report, _show)
    from tokshard.checks.trace.report import TraceReadsReport

    if isinstance(report, TraceReadsReport) and not report.is_complete:
        run.found_problems()


def _show(report: TraceReport) -> None:
    from tokshard.checks.trace.report import TraceDocumentReport, TraceSamplesReport

    if isinstance(report, TraceDocumentReport):
        _show_document(report)
    elif isinstance(report, TraceSamplesReport):
        _show_samples(report)
    else:
        _show_reads(report)
    for warning in report.warnings or ():
        rendering.line(f"warning: {warning}")


def _show_document(report: TraceDocumentReport) -> None:
    detail = report.detail if report.origin is None else report.origin.detail
    shown = [
        ("document", f"{count(report.document)} of {shown_path(report.dataset)}"),
        ("tokens", f"{count(report.tokens)} in {counted(report.sequences, 'sequence')}"),
        ("origin", _origin(report.origin)),
        *([("", detail)] if detail else []),
        ("text", "pass --tokenizer to see it" if report.text is None else ""),
    ]
    rendering.facts(shown)
    if report.text is not None:
        for line in report.text.split("\n"):
            rendering.line(f"  {line}")


def _show_samples(report: TraceSamplesReport) -> None:
    if report.step is not None:
        ranks = "all ranks" if report.rank is None else f"rank {report.rank}"
        samples = counted(len(report.samples), "sample")
        rendering.line(
            f"step {count(report.step)} of {report.stream}, {ranks}: {samples} after "
            f"{count(report.consumed_samples or 0)} consumed samples"
        )
        rendering.line()
    for sample in report.samples[:_SHOWN_SAMPLES]:
        _show_sample(sample, report.stream)
    if len(report.samples) > _SHOWN_SAMPLES:
        rendering.line(f"and {counted(len(report.samples) - _SHOWN_SAMPLES, 'more sample')}: see --json")
    pieces = [piece for sample in report.samples for piece in sample.pieces]
    details = {piece.detail if piece.origin is None else piece.origin.detail for piece in pieces}
    for detail in sorted(detail for detail in details if detail):
        rendering.line(f"note: {detail}")


def _show_sample(sample: SampleContents, stream: str) -> None:
    reader = ""
    if sample.row is not None:
        reader = f"data-parallel rank {sample.data_parallel_rank}, micro-batch {sample.micro_batch}: "
    rendering.line(
        f"{reader}sample {count(sample.sample)} of {stream} is sample {count(sample.dataset_sample)} of "
        f"{shown_path(sample.dataset)}, {counted(sample.tokens, 'token')}"
    )
    with_text = any(piece.text is not None for piece in sample.pieces)
    header = ["at", "document", "its tokens", "from", *["text"] * with_text]
    rows = [_piece_row(piece, with_text=with_text) for piece in sample.pieces]
    rendering.table(header, rows, left=(2, 3, 4))
    rendering.line()


def _piece_row(piece: SamplePiece, *, with_text: bool) -> list[str]:
    row = [
        count(piece.position),
        count(piece.document),
        _range(piece),
        _origin(piece.origin),
    ]
    if with_text:
        text = piece.text or ""
        row.append(text[:_SHOWN_TEXT] + ("..." if len(text) > _SHOWN_TEXT else ""))
    return row


def _show_reads(report: TraceReadsReport) -> None:
    for item in report.items[:_SHOWN_ITEMS]:
        _show_item(item, report)
    if len(report.items) > _SHOWN_ITEMS:
        rendering.line(f"and {counted(len(report.items) - _SHOWN_ITEMS, 'more item')}: see --json")
    for readers in report.ranks:
        rendering.line(f"data-parallel rank {readers.data_parallel_rank}: {_ranks(readers.ranks)}")


def _show_item(item: TracedItem, report: TraceReadsReport) -> None:
    reads = sum(not read.label_only for document in item.documents for read in document.reads)
    shown = f"{item.status}, {counted(reads, 'time')}" if reads else item.status
    if item.detail:
        shown += f": {item.detail}"
    elif item.seen is not None:
        seen = "seen" if item.seen else "not seen"
        shown += f"; {seen} within {count(report.consumed_samples or 0)} consumed samples"
    rendering.line(f"{item.item}: {shown}")
    for document in item.documents:
        _show_document_reads(document)
    rendering.line()


def _show_document_reads(document: DocumentReads) -> None:
    rendering.line(
        f"  document {count(document.document)} of {shown_path(document.dataset)}, "
        f"{counted(document.tokens, 'token')}"
    )
    if not document.reads:
        return
    shown = document.reads[:_SHOWN_READS]
    columns = {name: cells for name, cells in _columns(shown).items() if any(cells)}
    rendering.table(list(columns), list(zip(*columns.values(), strict=True)), left=(0, 3))
    if len(document.reads) > _SHOWN_READS:
        more = counted(len(document.reads) - _SHOWN_READS, "more read")
        rendering.line(f"  and {more}: see --json")


def _columns(reads: tuple[DocumentRead, ...]) -> dict[str, list[str]]:
    several = len({read.plan_id for read in reads}) > 1
    columns: dict[str, list[str]] = {
        "  stream": [f"  {read.stream}" for read in reads],
        "sample": [count(read.sample) for read in reads],
        "of its dataset": [count(read.dataset_sample) for read in reads],
        "tokens": [_range(read) for read in reads],
        "plan": [(read.plan_id or "")[:_SHOWN_ID] if several else "" for read in reads],
    }
    for label, name in (
        ("epoch", "epoch"),
        ("step", "step"),
        ("dp rank", "data_parallel_rank"),
        ("micro-batch", "micro_batch"),
        ("row", "row"),
    ):
        numbers = [getattr(read, name) for read in reads]
        columns[label] = ["" if number is None else count(number) for number in numbers]
    columns["repeated"] = ["repeated" if read.repeated else "" for read in reads]
    columns["seen"] = ["" if read.seen is None else "yes" if read.seen else "no" for read in reads]
    return columns


def _range(piece: SamplePiece | DocumentRead) -> str:
    if piece.label_only:
        return f"{count(piece.first_token)} (label)"
    return f"{count(piece.first_token)} to {count(piece.stop_token - 1)}"


def _origin(origin: DocumentOrigin | None) -> str:
    return "unknown" if origin is None else origin.item


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks, _SHOWN_RANKS)}"
