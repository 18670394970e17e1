"""Descriptions of index caches and cached indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokshard.checks.inspect.blend_facts import (
    SHOWN_SOURCES,
    WEIGHT_ERROR_NOTE,
    more_sources,
    shares_chart,
    weight_error_line,
)
from tokshard.checks.inspect.facts import Facts, lengths_chart, mismatch_facts, range_of
from tokshard.checks.inspect.indexes import (
    CacheSummary,
    EntrySummary,
    IndexSummary,
    SampleStatistics,
    SourceStatistics,
)
from tokshard.checks.inspect.packing_facts import describe_packed
from tokshard.core.formatting import count, counted, percent, size
from tokshard.core.presentation import (
    Bar,
    BarChart,
    FactList,
    Section,
    Table,
)


def describe_cache(summary: CacheSummary) -> list[Section]:
    """Return the description of an index cache."""
    blends = sum(entry.is_blend for entry in summary.entries)
    indexes = counted(len(summary.entries) - blends, "index of a dataset", "indexes of datasets")
    facts: Facts = [
        ("cache", summary.directory),
        ("entries", f"{indexes}, {counted(blends, 'order of a blend', 'orders of blends')}"),
        ("size", size(summary.size_bytes)),
    ]
    facts += [(entry.condition, f"{entry.hash}: {entry.reason}") for entry in summary.entries if entry.reason]
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
        for row, entry in zip(rows, summary.entries[:SHOWN_SOURCES], strict=False)
    ]
    sections = [
        Section("", [FactList(facts)]),
        Section(
            "Entries",
            [Table(header, rows, left=(0, 1, 4, 5, 6), hide=("built by", "size", "hash"))],
            [
                BarChart("Samples of each entry", bars, ("dataset, split", "samples")),
                *more_sources(len(rows)),
            ],
        ),
    ]
    return sections + _packed_sections(summary.entries)


def _packed_sections(entries: Sequence[EntrySummary]) -> list[Section]:
    return describe_packed(
        (entry.name, entry.split, entry.sidecar.origin.plan)
        for entry in entries
        if entry.sidecar is not None and entry.sidecar.origin is not None
    )


def _entry_mismatches(entry: EntrySummary) -> Facts:
    return mismatch_facts(entry.sidecar.tokenizer_mismatches if entry.sidecar is not None else None)


def _maker(entry: EntrySummary) -> str:
    if entry.sidecar is None:
        return "unknown" if entry.condition == "differs" else "another program"
    return f"tokshard {entry.sidecar.tool.version}"


_ORIGINS = {
    "unchanged": "the dataset is unchanged since the index was built",
    "changed": "the dataset has changed since the index was built",
    "unknown": "the content of the dataset at that time is not recorded",
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
        ("files", entry.condition + (f": {entry.reason}" if entry.reason else "")),
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
    sections = [Section("", [FactList(facts)])]
    if entry.arrays:
        rows = [
            (array.name, f"{array.dtype} of shape {array.shape}", size(array.size_bytes))
            for array in entry.arrays
        ]
        sections.append(Section("Arrays", [Table(("array", "content", "size"), rows, left=(0, 1))]))
    sections += _packed_sections([entry])
    if statistics is not None and statistics.sequences_per_sample.count:
        lengths = statistics.sequences_per_sample
        columns = ("sequences read", "samples")
        chart = lengths_chart("Samples by the number of sequences they read from", columns, lengths)
        sections.append(Section("Sequences per sample", [range_of(lengths, "sequences per sample"), chart]))
    if summary.sources is not None:
        sections.append(_describe_order(summary.sources))
    return sections


def _packing_facts(entry: EntrySummary, statistics: SampleStatistics | None) -> Facts:
    origin = None if entry.sidecar is None else entry.sidecar.origin
    if origin is None:
        return []
    facts: Facts = [("packing", origin.pack)]
    if statistics is not None and statistics.cut_documents is not None:
        plan = origin.plan
        documents = plan.documents - (plan.packed is not None)
        cut = f"{count(statistics.cut_documents)} of {count(documents)}"
        if statistics.cut_tokens is not None and plan.tokens:
            share = statistics.cut_tokens / plan.tokens
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


def _describe_order(sources: Sequence[SourceStatistics]) -> Section:
    rows = [
        (
            source.dataset_path,
            percent(source.weight),
            percent(source.share),
            count(source.draws),
            f"{source.weight_error:.2f}",
        )
        for source in sources
    ]
    shares = [
        Bar(source.dataset_path, source.share, percent(source.share), mark=source.weight)
        for source in sources[:SHOWN_SOURCES]
    ]
    largest = max(source.weight_error for source in sources)
    header = ("source", "weight", "share", "samples", "error (samples)")
    return Section(
        "Order",
        [Table(header, rows, hide=("error (samples)",)), weight_error_line(largest)],
        [WEIGHT_ERROR_NOTE, shares_chart(shares), *more_sources(len(rows))],
    )
