"""Descriptions of inspected products: the same facts, tables and charts in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokshard.blending.certificate import SourceCertificate
from tokshard.blending.document import BlendDocument, BlendSplit
from tokshard.blending.plan import KIND_NAMES
from tokshard.core.formatting import (
    SPACE,
    Table,
    count,
    counted,
    percent,
    shown_token,
    size,
    tokenizer_name,
)
from tokshard.core.lengths import LengthSummary
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
from tokshard.dataset.manifest import Manifest
from tokshard.dataset.tokenizer_agreement import TokenizerMismatch, allowed_warnings
from tokshard.inspection.axes import SHARES, linear_axis, log_axis, log_position
from tokshard.inspection.datasets import DatasetSummary, DocumentSummary, TokenizerSummary
from tokshard.inspection.frequencies import TokenCount, TokenFrequencies
from tokshard.inspection.indexes import CacheSummary, EntrySummary, IndexSummary, OrderStatistics

SUMMARY_TITLE = "Summary"
Facts = list[tuple[str, object]]


_SHOWN_INPUTS = 10
_SHOWN_LENGTHS = 10
_SHOWN_TOKENS = 64
_SHOWN_SOURCES = 100


def describe_dataset(summary: DatasetSummary, frequencies: TokenFrequencies | None = None) -> list[Section]:
    """Return the description of a dataset; the frequencies of its tokens are for the page."""
    modes = ", multimodal" if summary.multimodal else ""
    empty = f" ({count(summary.empty_documents)} empty)" if summary.empty_documents else ""
    facts: Facts = [
        ("dataset", f"{summary.path_prefix} ({summary.dtype}{modes})"),
        ("documents", f"{count(summary.documents)}{empty}"),
        ("sequences", count(summary.sequences)),
        ("tokens", count(summary.tokens)),
        ("size", f".bin {size(summary.bin_bytes)}, .idx {size(summary.idx_bytes)}"),
    ]
    if summary.ends_with_eod is not None:
        facts.append(("EOD", _eod(summary, summary.ends_with_eod)))
    if summary.manifest is None:
        facts.append(("manifest", "none: the structure is sound, but the content is unverified"))
    else:
        facts += _manifest_facts(summary.manifest)
    sections = [Section(SUMMARY_TITLE, [FactList(facts)])]
    if summary.document_lengths.count:
        columns = ("tokens in a document", "documents")
        chart = _lengths_chart("Documents by length", columns, summary.document_lengths)
        sections.append(
            Section(
                "Document lengths",
                [Paragraph(_range_of(summary.document_lengths, "tokens per document")), chart],
            )
        )
    if frequencies is not None and frequencies.distinct:
        sections.append(_describe_frequencies(frequencies))
    return sections


def _eod(summary: DatasetSummary, share: float) -> str:
    checked = count(summary.eod_documents_checked)
    if share == 1:
        return f"token {summary.eod_id} ends all {checked} non-empty documents"
    return f"token {summary.eod_id} ends {100 * share:.4g}% of {checked} non-empty documents"


def _manifest_facts(manifest: Manifest) -> Facts:
    identity = manifest.tokenizer
    vocabulary = f", {count(identity.vocab_size)} tokens" if identity else ""
    encoded = ", ".join(
        f"{counted(documents, 'document')} encoded by the {name} encoder"
        for name, documents in manifest.encoder.documents.items()
    )
    compared = manifest.encoder.compared
    checked = f"; {count(compared)} checked against the reference, all equal" if compared else ""
    facts: Facts = [
        ("tokenizer", f"{tokenizer_name(identity)}{vocabulary}"),
        ("encoder", f"{encoded}{checked}"),
        ("made by", f"{manifest.tool.name} {manifest.tool.version}"),
        *_mismatch_facts(manifest.tokenizer_mismatches),
    ]
    for number, entry in enumerate(manifest.inputs[:_SHOWN_INPUTS]):
        rejected = f", {count(entry.rejected)} rejected" if entry.rejected else ""
        content = f"{size(entry.content_bytes)}, {counted(entry.documents, 'document')}"
        facts.append(("" if number else "inputs", f"{entry.path}: {content}{rejected}"))
    if len(manifest.inputs) > _SHOWN_INPUTS:
        facts.append(("", f"and {len(manifest.inputs) - _SHOWN_INPUTS} more"))
    for number, (reason, records) in enumerate(sorted(manifest.counts.rejected.items())):
        facts.append(("" if number else "rejected", f"{count(records)} {reason}"))
    return facts


def _lengths_chart(caption: str, columns: tuple[str, str], lengths: LengthSummary) -> BarChart:
    bars = [
        Bar(
            count(length.low)
            if length.low == length.high
            else f"{count(length.low)} to {count(length.high)}",
            length.count,
            count(length.count),
        )
        for length in lengths.bins
    ]
    return BarChart(caption, bars, columns)


def _range_of(lengths: LengthSummary, noun: str) -> str:
    mean = f"{lengths.mean:,.1f}" if lengths.mean >= 100 else f"{lengths.mean:.3g}"
    return f"{count(lengths.shortest)} to {count(lengths.longest)} {noun}, mean {mean}."


def _describe_frequencies(found: TokenFrequencies) -> Section:
    counted_tokens = f"All {count(found.tokens)} tokens were counted."
    if found.counted < found.tokens:
        counted_tokens = (
            f"{count(found.counted)} of {count(found.tokens)} tokens ({percent(found.share)}) were counted, "
            "in evenly spread blocks."
        )
    vocabulary = "" if found.vocabulary is None else f" of the {count(found.vocabulary)} in the vocabulary"
    outside = f" {count(found.outside)} ids were too large to count." if found.outside else ""
    text = f"{counted_tokens} {count(found.distinct)} distinct tokens{vocabulary} occur.{outside}"
    with_text = any(token.text is not None for token in (*found.head, *found.tail))
    tables = [_token_table("Most frequent tokens", found.head, found.counted, with_text=with_text)]
    if found.tail:
        caption = "Least frequent tokens that occur"
        tables.append(_token_table(caption, found.tail, found.counted, with_text=with_text))
    note = Paragraph(_TEXT_NOTE if with_text else _NO_TEXT_NOTE, soft=True)
    return Section("Token frequency", [Paragraph(text), _rank_curve(found), *tables, note])


_TEXT_NOTE = (
    f"{SPACE} is a space. Control characters are shown as escapes such as \\n, and a backslash as \\\\. "
    "\N{REPLACEMENT CHARACTER} is an incomplete UTF-8 sequence."
)
_NO_TEXT_NOTE = (
    "The text of the tokens is not shown because the tokenizer was not found: pass --tokenizer to show it."
)


def _token_table(caption: str, tokens: Sequence[TokenCount], total: int, *, with_text: bool) -> Table:
    rows = []
    for token in tokens:
        shown = "" if token.text is None else shown_token(token.text)
        share = token.count / total
        numbers = (count(token.count), "< 0.01%" if share < 0.00005 else percent(share))
        rows.append((str(token.id), shown, *numbers) if with_text else (str(token.id), *numbers))
    header = ("token id", "text", "occurrences", "share of tokens")
    if with_text:
        return Table(header, rows, left=(1,), caption=caption)
    return Table((header[0], *header[2:]), rows, left=(), caption=caption)


def _rank_curve(found: TokenFrequencies) -> CurveChart:
    most = found.curve[0][1]
    return CurveChart(
        "Occurrences of each token, from the most to the least frequent (logarithmic axes)",
        [(log_position(rank, found.distinct), log_position(times, most)) for rank, times in found.curve],
        left=(count(most), "1"),
        below=("1st", "", f"{count(found.distinct)}th token"),
        across=log_axis("rank of the token by frequency", found.distinct),
        up=log_axis("occurrences", most),
    )


def describe_document(summary: DocumentSummary) -> list[Section]:
    """Return the description of a document: its tokens, and its text."""
    lengths = ", ".join(map(count, summary.sequence_lengths[:_SHOWN_LENGTHS]))
    more = ", ..." if len(summary.sequence_lengths) > _SHOWN_LENGTHS else ""
    shown = " ".join(map(str, summary.tokens[:_SHOWN_TOKENS]))
    rest = (
        f" ... and {len(summary.tokens) - _SHOWN_TOKENS} more" if len(summary.tokens) > _SHOWN_TOKENS else ""
    )
    facts: Facts = [
        ("document", f"{count(summary.document)} of {summary.path_prefix}"),
        ("sequences", f"{count(len(summary.sequence_lengths))} of {lengths or 'no'}{more} tokens"),
        ("tokens", f"{shown}{rest}" if shown else "none"),
    ]
    if summary.text is None:
        return [Section(SUMMARY_TITLE, [FactList([*facts, ("text", "pass --tokenizer to see it")])])]
    lines = [Paragraph(f"  {line}".rstrip()) for line in summary.text.split("\n")]
    return [Section(SUMMARY_TITLE, [FactList([*facts, ("text", "")]), *lines])]


def describe_tokenizer(summary: TokenizerSummary) -> list[Section]:
    """Return the description of a tokenizer."""
    identity = summary.identity
    detail = f": {summary.encoder_detail}" if summary.encoder_detail else ""
    eod = f"{summary.eod_token} ({summary.eod_id})" if summary.eod_token else "ambiguous: pass --eod"
    facts: Facts = [
        ("tokenizer", f"{summary.argument} ({identity.kind})"),
        ("vocabulary", f"{count(identity.vocab_size)} tokens, largest id {count(summary.max_token_id)}"),
        ("dtype", summary.dtype),
        ("EOD", eod),
        ("encoder", f"{summary.encoder}{detail}"),
        ("definition", f"SHA-256 {identity.digest}"),
    ]
    if summary.applied:
        facts.append(("beside it", "; ".join(summary.applied)))
    warnings = [("warning", text) for text in summary.warnings]
    return [Section(SUMMARY_TITLE, [FactList([*facts, *warnings])])]


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
    return [
        Section(SUMMARY_TITLE, [FactList(facts)]),
        Section(
            "Entries",
            [Table(header, rows, left=(0, 1, 4, 5, 6))],
            [BarChart("Samples of each entry", bars, ("dataset, split", "samples")), *_more(len(rows))],
        ),
    ]


def _entry_mismatches(entry: EntrySummary) -> Facts:
    return _mismatch_facts(entry.sidecar.tokenizer_mismatches if entry.sidecar is not None else None)


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
    sections = [Section(SUMMARY_TITLE, [FactList(facts)])]
    if entry.arrays:
        rows = [
            (array.name, f"{array.dtype} of shape {array.shape}", size(array.size_bytes))
            for array in entry.arrays
        ]
        sections.append(Section("Arrays", [Table(("array", "content", "size"), rows, left=(0, 1))]))
    if statistics is not None and statistics.sequences_per_sample.count:
        lengths = statistics.sequences_per_sample
        columns = ("sequences read", "samples")
        chart = _lengths_chart("Samples by the number of sequences they read from", columns, lengths)
        sections.append(
            Section("Sequences per sample", [Paragraph(_range_of(lengths, "sequences per sample")), chart])
        )
    if summary.order is not None:
        sections.append(_describe_order(summary.order))
    return sections


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
        *_mismatch_facts(document.tokenizer_mismatches),
    ]
    splits = [describe_split(split) for split in document.splits.values()]
    return [Section(SUMMARY_TITLE, [FactList(facts)]), *splits]


def _tokenizer_facts(document: BlendDocument) -> Facts:
    names = dict.fromkeys(tokenizer_name(tokenizer.identity) for tokenizer in document.tokenizers or ())
    facts: Facts = [("" if number else "tokenizer", name) for number, name in enumerate(names)]
    if document.job_tokenizer is not None:
        facts.append(("job's tokenizer", tokenizer_name(document.job_tokenizer)))
    return facts


def _mismatch_facts(mismatches: Iterable[TokenizerMismatch] | None) -> Facts:
    return [("warning", warning) for warning in allowed_warnings(mismatches)]


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
