"""Tracing of samples, documents and records through a product."""

from __future__ import annotations

from tokshard.checks.products import PRODUCTS
from tokshard.checks.trace.options import TraceOptions
from tokshard.checks.trace.queries import trace_document, trace_items, trace_sample, trace_step
from tokshard.checks.trace.report import TraceReport
from tokshard.core.progress import Progress, reporting
from tokshard.samples.index.splits import TRAIN


def trace(options: TraceOptions, *, progress: Progress | None = None) -> TraceReport:
    """Trace a step, a sample or a document to its records, or lines and documents to their reads.

    Args:
        options: What to trace, and through what.
        progress: Receives the activities.

    Returns:
        A :class:`~tokshard.checks.trace.report.TraceSamplesReport` for a step or a sample, a
        :class:`~tokshard.checks.trace.report.TraceDocumentReport` for a document, a
        :class:`~tokshard.checks.trace.report.TraceReadsReport` for items.

    Raises:
        UsageError: There is no such stream, step, rank, sample or document.
        InputError: A dataset was changed while it was read, or the list cannot be read.
        MissingFileError: A file is missing.
        IntegrityError: A file is damaged, or has changed since the plan was made.
    """
    with reporting(progress) as listener:
        return _trace(options, listener)


def _trace(options: TraceOptions, progress: Progress) -> TraceReport:
    items = options.parsed_items()
    kind, path = options.through
    stream = options.split if options.query == "source" else options.split or TRAIN
    progress.start(f"reading the {kind}")
    data = PRODUCTS[kind](path).streams(options, stream)
    progress.start("tracing")
    if items:
        streams = None if stream is None else [stream]
        return trace_items(data, items, streams=streams, consumed_samples=options.consumed_samples)
    if options.document is not None:
        return trace_document(data, options.document, tokenizer=options.tokenizer)
    if options.step is not None:
        return trace_step(data, stream or TRAIN, options.step, options.rank, tokenizer=options.tokenizer)
    return trace_sample(data, stream or TRAIN, options.sample or 0, tokenizer=options.tokenizer)
