"""Descriptions of blends."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.checks.inspect.axes import SHARES, linear_axis
from tokshard.checks.inspect.facts import Facts, mismatch_facts
from tokshard.checks.inspect.packing_facts import describe_packed
from tokshard.core.formatting import count, counted, percent, short_id
from tokshard.core.presentation import (
    Aside,
    Bar,
    BarChart,
    Block,
    FactList,
    Section,
    Table,
)
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.samples.blend.certificate import Certificate, SourceCertificate
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.plan import KIND_NAMES
from tokshard.samples.blend.sources import Kind

SHOWN_SOURCES = 100
"""Bars of a chart at most."""


def describe_blend(document: BlendDocument, path: str) -> list[Section]:
    """Return the description of the blend at a path."""
    facts: Facts = [
        ("blend", path),
        ("id", short_id(document.id)),
        ("indexes in", document.cache_directory),
        ("sequence", f"{count(document.builder.sequence_length)} tokens"),
        ("seed", document.builder.seed),
        *_tokenizer_facts(document),
        *mismatch_facts(document.tokenizer_mismatches),
    ]
    sections = [
        Section("", [FactList(facts)]),
        *(
            describe_split(name, split.kind, document.certificates[name])
            for name, split in document.splits.items()
        ),
    ]
    return sections + describe_packed(
        (named.prefix, name, source.epochs)
        for name, split in document.splits.items()
        for source, named in zip(split.sources, document.certificates[name].sources, strict=True)
    )


def _tokenizer_facts(document: BlendDocument) -> Facts:
    names = dict.fromkeys(tokenizer_name(tokenizer.identity) for tokenizer in document.tokenizers)
    facts: Facts = [("" if number else "tokenizer", name) for number, name in enumerate(names)]
    if document.job_tokenizer is not None:
        facts.append(("job's tokenizer", tokenizer_name(document.job_tokenizer)))
    return facts


def describe_split(name: str, kind: Kind, certificate: Certificate) -> Section:
    """Return the description of a split: its certificate."""
    if not certificate.samples:
        title = f"{name}: {KIND_NAMES[kind]}, no samples (Megatron also builds such a split)"
        return Section(title, [])
    title = (
        f"{name}: {KIND_NAMES[kind]}, {counted(certificate.samples, 'sample')}, "
        f"{counted(certificate.tokens, 'token')}"
    )
    rows = [
        (
            source.prefix,
            percent(source.weight),
            percent(source.share),
            count(source.samples),
            count(source.tokens),
            f"{source.epochs:.2f}",
            f"{count(source.documents_drawn)} of {count(source.documents)}",
            _times(source.document_least, source.document_most),
            f"{source.weight_error:.2f}",
        )
        for source in certificate.sources
    ]
    header = (
        *("source", "weight", "share", "samples", "tokens", "epochs"),
        *("documents read", "times each", "error (samples)"),
    )
    blocks: list[Block] = [
        Table(header, rows, hide=("error (samples)", "times each", "documents read", "tokens"))
    ]
    if kind != "single":
        blocks.append(weight_error_line(certificate.weight_error))
    shown = certificate.sources[:SHOWN_SOURCES]
    shares = [Bar(source.prefix, source.share, percent(source.share), mark=source.weight) for source in shown]
    notes = [] if kind == "single" else [WEIGHT_ERROR_NOTE]
    more = more_sources(len(certificate.sources))
    return Section(title, blocks, [*notes, shares_chart(shares), _epochs_chart(shown), *more])


WEIGHT_ERROR_NOTE = Aside(
    "Weight error: the samples drawn from a source so far, compared with its weight times all samples drawn "
    "so far."
)


def shares_chart(shares: Sequence[Bar]) -> BarChart:
    """Return the chart of the shares of sources."""
    return BarChart(
        "Share of samples drawn from each source",
        shares,
        ("source", "share"),
        full=1.0,
        ticks=SHARES,
        mark="weight of the source",
    )


def _epochs_chart(sources: Sequence[SourceCertificate]) -> BarChart:
    bars = [Bar(source.prefix, source.epochs, f"{source.epochs:.2f}", mark=1.0) for source in sources]
    most = max([1.0, *(source.epochs for source in sources)])
    ticks = linear_axis("epochs", most, whole=most >= 3).ticks
    return BarChart(
        "Epochs: tokens drawn from each source, divided by its tokens in this split",
        bars,
        ("source", "epochs"),
        full=most,
        ticks=ticks,
        mark="one epoch: each token is read once",
    )


def _times(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def weight_error_line(largest: float) -> str:
    """Return the line with the largest weight error of any source."""
    return f"Weight error over the run: max. deviation {largest:.2f} samples"


def more_sources(sources: int) -> list[Aside]:
    """Return a note if a chart does not show all sources."""
    if sources <= SHOWN_SOURCES:
        return []
    return [Aside(f"{count(sources - SHOWN_SOURCES)} more are in the table.")]
