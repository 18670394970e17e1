"""The sections of a blend, of a cache, and of one index."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.blending.document import BlendSplit
from tokshard.core.formatting import Table, count, percent
from tokshard.inspection import facts as told
from tokshard.inspection.blends import BlendSummary
from tokshard.inspection.caches import CacheSummary
from tokshard.inspection.indexes import IndexSummary, OrderStatistics
from tokshard.inspection.page.charts import Bar, bars, curve
from tokshard.inspection.page.datasets import lengths_chart
from tokshard.inspection.page.document import facts, section, table
from tokshard.inspection.page.markup import Markup, tag

_SHOWN_SOURCES = 100


def blend_sections(summary: BlendSummary) -> list[Markup]:
    """Return the sections of a blend: one for each split."""
    splits = [_split_section(one) for one in summary.document.splits.values()]
    return [section("What it is", facts(told.blend_facts(summary))), *splits]


def _split_section(split: BlendSplit) -> Markup:
    certificate = split.certificate
    title = told.split_title(split)
    if not certificate.samples:
        return section(title)
    sources = certificate.sources[:_SHOWN_SOURCES]
    shares = [Bar(one.prefix, one.share, percent(one.share), mark=one.weight) for one in sources]
    epochs = [Bar(one.prefix, one.epochs, f"{one.epochs:.2f}") for one in sources]
    drift = None
    if split.kind != "single":
        drift = drift_chart(certificate.weight_error_curve, certificate.weight_error, certificate.samples)
    return section(
        title,
        bars("Share of the samples; the line is the share that was asked for", shares),
        bars("Epochs: how often the tokens of a source are read", epochs),
        _more(len(certificate.sources)),
        drift,
        _table(told.certificate_table(split), "What was counted"),
    )


def _more(sources: int) -> Markup | None:
    if sources <= _SHOWN_SOURCES:
        return None
    return tag("p", f"{count(sources - _SHOWN_SOURCES)} more sources are in the table below.", class_="soft")


def drift_chart(drift: Sequence[float], largest: float, samples: int) -> Markup:
    """Return how far a blend is from its weights over the run."""
    most = max(1.0, largest)
    points = [(place / len(drift), value / most) for place, value in enumerate(drift)]
    return curve(
        f"Drift: the largest distance of any source from its share, {told.drift_note(largest)}",
        points,
        left=(f"{most:.2f}", "0"),
        below=("first sample", "", f"{count(samples)}th"),
        steps=True,
    )


def cache_sections(summary: CacheSummary) -> list[Markup]:
    """Return the sections of a cache."""
    rows = [
        Bar(
            f"{one.subject}, {one.split}",
            one.samples or 0,
            "unknown" if one.samples is None else count(one.samples),
        )
        for one in summary.indexes[:_SHOWN_SOURCES]
    ]
    return [
        section("What it is", facts(told.cache_facts(summary))),
        section(
            "Indexes", bars("Samples", rows), _more(len(summary.indexes)), _table(told.cache_table(summary))
        ),
    ]


def index_sections(summary: IndexSummary) -> list[Markup]:
    """Return the sections of an index."""
    found = [section("What it is", facts(told.index_facts(summary)))]
    if summary.files.arrays:
        found.append(section("Arrays", _table(told.array_table(summary.files))))
    if summary.samples is not None and summary.samples.pieces.count:
        pieces = summary.samples.pieces
        chart = lengths_chart("Samples by the number of sequences that they read from", pieces)
        found.append(section("What samples are made of", tag("p", told.range_of(pieces)), chart))
    if summary.order is not None:
        found.append(_order_section(summary.order))
    return found


def _order_section(order: OrderStatistics) -> Markup:
    rows = [
        Bar(one.dataset_path, one.share, percent(one.share), mark=one.weight)
        for one in order.sources[:_SHOWN_SOURCES]
    ]
    return section(
        "The order",
        bars("Share of the samples; the line is the share that was asked for", rows),
        _more(len(order.sources)),
        drift_chart(order.drift, max(order.drift, default=0.0), sum(one.draws for one in order.sources)),
        _table(told.order_table(order), "What was counted"),
    )


def _table(one: Table, caption: str = "") -> Markup:
    return table(one.header, one.rows, left=one.left, caption=caption)
