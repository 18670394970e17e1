"""Descriptions of packed samples: an epoch of them, compared with concatenated documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tokshard.checks.inspect.axes import SHARES
from tokshard.checks.inspect.facts import lengths_chart
from tokshard.core.formatting import count, counted, percent
from tokshard.core.presentation import Bar, BarChart, Block, FactList, Section, Table

if TYPE_CHECKING:
    from tokshard.core.lengths import LengthSummary
    from tokshard.samples.index.job import BuildIndicesReport
    from tokshard.samples.index.packing_report import PackingReport

_SHOWN_INDEXES = 4
_SHOWN_BARS = 100
_CONCAT = "concatenated documents (expected)"
_JOB_OPTIONS = (
    ("--eod-mask-loss", "required, or a --reset option: else padding masks other samples"),
    ("--dataloader-inter-document-masking", "attention within documents, from Megatron 0.19 on"),
    ("--reset-position-ids", "positions from 0 in each document, for learned embeddings"),
    ("--reset-attention-mask", "attention within documents; Transformer Engine ignores it"),
    ("--dataloader-defer-npy-index-mmap", "excluded: the job would expect concatenated samples"),
)


def describe_built(report: BuildIndicesReport) -> list[Section]:
    """Return the descriptions of the packed samples of indexes, none for concatenated documents."""
    packed = {
        (index.path_prefix, index.description.index_split, index.plan.sequence_length): index.packing_report
        for index in report.indices
        if index.packing_report is not None
    }
    sections = []
    for (prefix, split, length), packing in list(packed.items())[:_SHOWN_INDEXES]:
        title = f"Packing of {prefix}, {split}, in samples of {count(length)} tokens"
        sections.append(describe_packing(packing, title=title, global_batch_size=report.global_batch_size))
    if len(packed) > _SHOWN_INDEXES:
        more = f"{count(len(packed) - _SHOWN_INDEXES)} more: run tokshard inspect CACHE"
        sections.append(Section("Other indexes", [more]))
    return [*sections, describe_job_options()] if packed else []


def describe_packing(
    report: PackingReport,
    documents_per_sample: LengthSummary | None = None,
    *,
    title: str = "Packing",
    global_batch_size: int | None = None,
) -> Section:
    """Return the description of packed samples.

    Args:
        report: The report of an epoch.
        documents_per_sample: The documents of all samples of an index; None for those of the epoch.
        title: The title.
        global_batch_size: The samples of a step, if known.
    """
    blocks: list[Block] = [
        Table(("per epoch", "best-fit", "concat (expected)"), list(_rows(report))),
        _size_of_epoch(report, global_batch_size),
        _documents_chart(documents_per_sample or report.documents_per_sample),
    ]
    cut = report.cut_documents / report.documents, report.concat.cut_documents / report.documents
    tokens = report.cut_tokens / report.tokens, report.concat.cut_tokens / report.tokens
    bars = [
        Bar("fill", report.fill, percent(report.fill)),
        Bar("documents cut", cut[0], percent(cut[0]), mark=cut[1]),
        Bar("tokens in these", tokens[0], percent(tokens[0]), mark=tokens[1]),
    ]
    return Section(title, blocks, [BarChart("Shares", bars, full=1.0, ticks=SHARES, mark=_CONCAT)])


def _rows(report: PackingReport) -> Iterator[tuple[str, str, str]]:
    concat = report.concat
    cut, documents = round(concat.cut_documents), count(report.documents)
    yield "samples", count(report.samples), count(concat.samples)
    yield "lower bound of samples", count(report.minimum_samples), ""
    yield "fill", percent(report.fill), percent(1)
    yield "padding tokens", count(report.padding_tokens), "0"
    yield "documents cut", f"{count(report.cut_documents)} of {documents}", f"{count(cut)} of {documents}"
    yield f"... of at most {count(report.sequence_length)} tokens", "0", count(cut - report.cut_documents)
    shares = (tokens / report.tokens for tokens in (report.cut_tokens, concat.cut_tokens))
    packed, concatenated = map(percent, shares)
    yield "tokens in cut documents", packed, concatenated


def _size_of_epoch(report: PackingReport, batch: int | None) -> str:
    packed, concatenated = report.samples, report.concat.samples
    change = f" ({(packed / concatenated - 1):+.2%})" if concatenated else ""
    text = f"An epoch has {count(packed)} samples instead of {count(concatenated)}{change}"
    if batch is None:
        return f"{text}."
    steps = f"{packed / batch:,.2f} instead of {concatenated / batch:,.2f} steps"
    return f"{text}: {steps} of {counted(batch, 'sample')}."


def _documents_chart(documents: LengthSummary, samples: str = "Samples") -> BarChart:
    caption = f"{samples} by the number of their documents (mean {documents.mean:.3g})"
    return lengths_chart(caption, ("documents", "samples"), documents)


def describe_job_options() -> Section:
    """Return the options of a Megatron job that reads packed samples."""
    return Section("Options of the job", [FactList(_JOB_OPTIONS)])


def describe_cached(packed: Sequence[tuple[str, str, PackingReport]]) -> Section:
    """Return the packed samples of a cache or a blend: tuples of dataset, split and report."""
    packed = sorted(packed, key=lambda each: (*each[:2], each[2].sequence_length))
    header = (
        *("dataset", "split", "sequence", "samples", "fill", "documents cut", "concat cuts"),
        *("tokens in these", "concat tokens"),
    )
    rows = [
        (
            name,
            split,
            count(report.sequence_length),
            count(report.samples),
            percent(report.fill),
            count(report.cut_documents),
            count(round(report.concat.cut_documents)),
            percent(report.cut_tokens / report.tokens),
            percent(report.concat.cut_tokens / report.tokens),
        )
        for name, split, report in packed
    ]
    shown = [
        (f"{row[0]}, {row[1]}, {row[2]}", report) for row, (*_, report) in zip(rows, packed, strict=True)
    ]
    bars = [
        Bar(
            label,
            report.cut_tokens / report.tokens,
            percent(report.cut_tokens / report.tokens),
            mark=report.concat.cut_tokens / report.tokens,
        )
        for label, report in shown[:_SHOWN_BARS]
    ]
    columns = ("dataset, split, sequence", "tokens")
    cuts = BarChart("Tokens in documents that are cut", bars, columns, full=1.0, ticks=SHARES, mark=_CONCAT)
    charts = [
        _documents_chart(report.documents_per_sample, f"{label}: samples")
        for label, report in shown[:_SHOWN_INDEXES]
    ]
    caption = "An epoch of packed samples, compared with the expected cuts of concatenated documents"
    return Section(
        "Packed samples",
        [Table(header, rows, (0, 1), caption, ("concat tokens", "tokens in these", "concat cuts"))],
        [cuts, *charts],
    )
