"""Tracing of samples, documents and records through a product."""

from __future__ import annotations

from tokshard.checks.products import open_product
from tokshard.checks.trace.options import TraceOptions
from tokshard.checks.trace.queries import trace_document, trace_items, trace_sample, trace_step
from tokshard.checks.trace.report import TraceReport
from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
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
    progress.start(f"reading {options.path}")
    product = open_product(str(options.path))
    is_plan = product.inspected_as == "plan"
    if options.path_as and is_plan:
        raise UsageError(
            f"--path-as cannot be used with {product.described}",
            hint="pass --moved OLD=NEW for the data of a plan",
        )
    if options.moved and not is_plan:
        raise UsageError(
            f"--moved cannot be used with {product.described}",
            hint="pass --path-as LOCAL=TRAINING for the data of an index",
        )
    data = product.streams(options)
    progress.start("tracing")
    if items:
        streams = None if options.stream is None else [options.stream]
        return trace_items(data, items, streams=streams, consumed_samples=options.consumed_samples)
    if options.document is not None:
        return trace_document(data, options.document, tokenizer=options.tokenizer)
    stream = options.stream or TRAIN
    if options.step is not None:
        return trace_step(data, stream, options.step, tokenizer=options.tokenizer)
    return trace_sample(data, stream, options.sample or 0, tokenizer=options.tokenizer)
