"""Descriptions of index caches, cached indexes and blends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokshard.blending.certificate import SourceCertificate
from tokshard.blending.document import BlendDocument, BlendSplit
from tokshard.blending.plan import KIND_NAMES
from tokshard.core.formatting import Table, count, counted, percent, size, tokenizer_name
from tokshard.core.presentation import (
    Bar,
    BarChart,
    Block,
    CurveChart,
    FactList,
    Paragraph,
    Section,
    Tick,
)
from tokshard.gpt_index.packing_report import PackingReport
from tokshard.index_cache.entry import CacheEntry
from tokshard.inspection.axes import SHARES, linear_axis
from tokshard.inspection.facts import SUMMARY_TITLE, Facts, lengths_chart, mismatch_facts, range_of
from tokshard.inspection.indexes import (
    CacheSummary,
    EntrySummary,
    IndexSummary,
    OrderStatistics,
    SampleStatistics,
)
from tokshard.inspection.packing_facts import describe_cached, describe_job_options, describe_packing

_SHOWN_SOURCES = 100


def describe_cache(summary: CacheSummary) -> list[Section]:
    """Return the description of an index cache."""
    blends = sum(entry.is_blend for entry in summary.entries)
    facts: Facts = [
        ("cache", summary.directory),
        ("entries", f"{len(summary.entries) - blends} indexes of datasets, {blends} orders of blends"),
        ("size", size(summary.size_bytes)),
    ]
    facts += [(entry.condition, f"{entry.hash}: {entry.detail}") for entry in summary.entries if entry.detail]
    facts += dict.fromkeys(fact for entry in summary.entries for fact in _entry_mismatches(entry))
    rows = [
        (
            entry.name,
            entry.split,
            "unknown" if entry.samples is None else count(entry.samples),
            size(entry.size_bytes),
            _maker(entry),
            entry.condition,
            entry.hash,
        )
        for entry in summary.entries
    ]
    header = ("dataset", "split", "samples", "size", "built by", "state", "hash")
    bars = [
        Bar(f"{row[0]}, {row[1]}", entry.samples or 0, row[2])
        for row, entry in zip(rows, summary.entries[:_SHOWN_SOURCES], strict=False)
    ]
    sections = [
        Section(SUMMARY_TITLE, [FactList(facts)]),
        Section(
            "Entries",
            [Table(header, rows, left=(0, 1, 4, 5, 6))],
            [BarChart("Samples of each entry", bars, ("dataset, split", "samples")), *_more(len(rows))],
        ),
    ]
    packed = [
        (entry.name, entry.split, entry.sidecar.packing_report)
        for entry in summary.entries
        if entry.sidecar is not None and entry.sidecar.packing_report is not None
    ]
    return [*sections, describe_cached(packed)] if packed else sections


def _entry_mismatches(entry: EntrySummary) -> Facts:
    return mismatch_facts(entry.sidecar.tokenizer_mismatches if entry.sidecar is not None else None)


def _maker(entry: EntrySummary) -> str:
    if entry.sidecar is None:
        return "another program"
    return f"tokshard {entry.sidecar.tool.version}"


def _more(sources: int) -> list[Paragraph]:
    if sources <= _SHOWN_SOURCES:
        return []
    return [Paragraph(f"{count(sources - _SHOWN_SOURCES)} more are in the table.", soft=True)]


_ORIGINS = {
    "unchanged": "the dataset is unchanged since the index was built",
    "changed": "the dataset has changed since the index was built",
    "unknown": "not built by tokshard, so the content of the dataset at that time is unknown",
    "unreadable": "the dataset cannot be compared from here",
    None: "the order follows from the description alone",
}


def describe_index(summary: IndexSummary) -> list[Section]:
    """Return the description of one index of a cache."""
    entry = summary.entry
    detail = f": {summary.detail}" if summary.detail else ""
    facts: Facts = [
        ("index", f"{entry.hash}, {'the order of a blend' if entry.is_blend else 'an index of a dataset'}"),
        ("in", summary.directory or "."),
        ("files", entry.condition + (f": {entry.detail}" if entry.detail else "")),
        ("made by", _maker(entry)),
        ("dataset", entry.name),
        ("origin", f"{_ORIGINS[summary.dataset_condition]}{detail}"),
        ("split", entry.split),
    ]
    facts += _entry_mismatches(entry)
    if entry.samples is not None:
        facts.append(("samples", count(entry.samples)))
    if entry.description is not None and not entry.is_blend:
        facts += _description_facts(entry.description)
    statistics = summary.statistics
    if statistics is not None:
        facts.append(("epochs", f"{statistics.epochs:g} of {counted(statistics.sequences, 'sequence')}"))
    facts += _packing_facts(entry, statistics)
    sections = [Section(SUMMARY_TITLE, [FactList(facts)])]
    if entry.arrays:
        rows = [
            (array.name, f"{array.dtype} of shape {array.shape}", size(array.size_bytes))
            for array in entry.arrays
        ]
        sections.append(Section("Arrays", [Table(("array", "content", "size"), rows, left=(0, 1))]))
    packing = None if entry.sidecar is None else entry.sidecar.packing_report
    if packing is not None:
        counted_documents = None if statistics is None else statistics.sequences_per_sample
        sections += [describe_packing(packing, counted_documents), describe_job_options()]
    elif statistics is not None and statistics.sequences_per_sample.count:
        lengths = statistics.sequences_per_sample
        columns = ("sequences read", "samples")
        chart = lengths_chart("Samples by the number of sequences they read from", columns, lengths)
        sections.append(
            Section("Sequences per sample", [Paragraph(range_of(lengths, "sequences per sample")), chart])
        )
    if summary.order is not None:
        sections.append(_describe_order(summary.order))
    return sections


def _packing_facts(entry: EntrySummary, statistics: SampleStatistics | None) -> Facts:
    origin = None if entry.sidecar is None else entry.sidecar.origin
    if origin is None:
        return []
    facts: Facts = [("packing", origin.pack)]
    if statistics is not None and statistics.cut_documents is not None:
        documents = origin.epochs * (origin.sequences if origin.packed is None else origin.packed.documents)
        cut = f"{count(statistics.cut_documents)} of {count(documents)}"
        if statistics.cut_tokens is not None and origin.tokens_per_epoch:
            share = statistics.cut_tokens / (origin.epochs * origin.tokens_per_epoch)
            cut += f", which have {percent(share)} of the tokens"
        facts.append(("documents cut", cut))
    return facts


def _description_facts(described: dict[str, Any]) -> Facts:
    wanted, split, tokenizer = described["num_samples"], described["split"], described["tokenizer"]
    facts: Facts = [
        ("requested", "one epoch" if wanted is None else counted(wanted, "sample")),
        ("sequence", f"{count(described['sequence_length'])} tokens"),
        ("seed", described["random_seed"]),
        ("split by", "separate datasets" if split is None else split),
    ]
    if not tokenizer:
        return [*facts, ("tokenizer", "none")]
    others = ", ".join(f"{name}={value}" for name, value in tokenizer.items() if name != "class")
    facts.append(("tokenizer", tokenizer.get("class", "of no class")))
    return [*facts, ("", others)] if others else facts


def _describe_order(order: OrderStatistics) -> Section:
    rows = [
        (
            source.dataset_path,
            percent(source.weight),
            percent(source.share),
            count(source.draws),
            f"{source.weight_error:.2f}",
        )
        for source in order.sources
    ]
    shares = [
        Bar(source.dataset_path, source.share, percent(source.share), mark=source.weight)
        for source in order.sources[:_SHOWN_SOURCES]
    ]
    largest = max(order.weight_error_curve, default=0.0)
    samples = sum(source.draws for source in order.sources)
    header = ("source", "weight", "share", "samples", "error (samples)")
    return Section(
        "Order",
        [Table(header, rows), _weight_error_chart(order.weight_error_curve, largest, samples)],
        [_WEIGHT_ERROR_NOTE, _shares_chart(shares), *_more(len(rows))],
    )


def describe_blend(document: BlendDocument) -> list[Section]:
    """Return the description of a blend."""
    facts: Facts = [
        ("blend", document.path),
        ("id", document.id),
        ("indexes in", document.cache_directory),
        ("sequence", f"{count(document.sequence_length)} tokens"),
        ("seed", document.seed),
        *_tokenizer_facts(document),
        *mismatch_facts(document.tokenizer_mismatches),
    ]
    sections = [
        Section(SUMMARY_TITLE, [FactList(facts)]),
        *(describe_split(split) for split in document.splits.values()),
    ]
    packed = list(_packed_sources(document))
    return [*sections, describe_cached(packed), describe_job_options()] if packed else sections


def _packed_sources(document: BlendDocument) -> Iterator[tuple[str, str, PackingReport]]:
    for split in document.splits.values():
        for source, named in zip(split.sources, split.certificate.sources, strict=True):
            entry = None if source.packing is None else CacheEntry.of_file(source.description)
            sidecar = None if entry is None else entry.readable_sidecar()
            if sidecar is not None and sidecar.packing_report is not None:
                yield named.prefix, split.name, sidecar.packing_report


def _tokenizer_facts(document: BlendDocument) -> Facts:
    names = dict.fromkeys(tokenizer_name(tokenizer.identity) for tokenizer in document.tokenizers or ())
    facts: Facts = [("" if number else "tokenizer", name) for number, name in enumerate(names)]
    if document.job_tokenizer is not None:
        facts.append(("job's tokenizer", tokenizer_name(document.job_tokenizer)))
    return facts


def describe_split(split: BlendSplit) -> Section:
    """Return the description of a split: its certificate, and its weight error over the run."""
    certificate = split.certificate
    if not certificate.samples:
        title = f"{split.name}: {KIND_NAMES[split.kind]}, no samples; built anyway, as Megatron does"
        return Section(title, [])
    title = (
        f"{split.name}: {KIND_NAMES[split.kind]}, {counted(certificate.samples, 'sample')}, "
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
    blocks: list[Block] = [Table(header, rows)]
    if split.kind != "single":
        blocks.append(
            _weight_error_chart(certificate.weight_error_curve, certificate.weight_error, certificate.samples)
        )
    shown = certificate.sources[:_SHOWN_SOURCES]
    shares = [Bar(source.prefix, source.share, percent(source.share), mark=source.weight) for source in shown]
    notes = [] if split.kind == "single" else [_WEIGHT_ERROR_NOTE]
    more = _more(len(certificate.sources))
    return Section(title, blocks, [*notes, _shares_chart(shares), _epochs_chart(shown), *more])


_WEIGHT_ERROR_NOTE = Paragraph(
    "Weight error: the samples drawn from a source so far, compared with its weight times all samples drawn "
    "so far. The curve is the largest difference of any source.",
    soft=True,
)


def _shares_chart(shares: Sequence[Bar]) -> BarChart:
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


def _weight_error_chart(curve: Sequence[float], largest: float, samples: int) -> CurveChart:
    most = max(1.0, largest)
    return CurveChart(
        f"Weight error over the run: max. deviation {largest:.2f} samples",
        [(place / len(curve), value / most) for place, value in enumerate(curve)],
        left=(f"{most:.2f}", "0"),
        below=("first sample", "", f"{count(samples)}th"),
        steps=True,
        across=linear_axis("samples drawn so far", max(samples, 1)),
        up=linear_axis("largest weight error of any source (samples)", most, whole=False),
        bound=Tick(largest / most, f"max. deviation {largest:.2f} samples"),
    )
