"""Descriptions of datasets and tokenizers: the same facts, tables and charts in terminals and on pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokshard.checks.inspect.axes import log_axis, log_position
from tokshard.core.formatting import SPACE, count, counted, percent, shown_token, size
from tokshard.core.presentation import (
    Aside,
    Bar,
    BarChart,
    CurveChart,
    FactList,
    Section,
    Table,
)
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.dataset.pieces import shuffle_text
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch, allowed_warnings
from tokshard.dataset.tokenizer_identity import tokenizer_name

if TYPE_CHECKING:
    from tokshard.checks.inspect.datasets import DatasetSummary, DocumentSummary, TokenizerSummary
    from tokshard.checks.inspect.frequencies import TokenCount, TokenFrequencies
    from tokshard.core.lengths import LengthSummary
    from tokshard.dataset.manifest import Manifest

Facts = list[tuple[str, object]]


_SHOWN_INPUTS = 10
_ENCODED = {"none": "of token ids, written as they are"}
_SHOWN_LENGTHS = 10
_SHOWN_TOKENS = 64


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
    sections = [Section("", [FactList(facts)])]
    if summary.document_lengths.count:
        columns = ("tokens in a document", "documents")
        chart = lengths_chart("Documents by length", columns, summary.document_lengths)
        sections.append(
            Section(
                "Document lengths",
                [range_of(summary.document_lengths, "tokens per document"), chart],
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
    if identity and identity.transformers:
        vocabulary += f", read by transformers {identity.transformers}"
    if identity and identity.special_tokens_in_text == "split":
        vocabulary += ", special tokens in text split"
    if identity is None and manifest.id_limit is not None:
        vocabulary = f", ids below {count(manifest.id_limit)}"
    encoded = ", ".join(
        f"{counted(documents, 'document')} {_ENCODED.get(name, f'encoded by the {name} encoder')}"
        for name, documents in manifest.counts.encoders.items()
    )
    compared, uncompared = manifest.counts.compared, manifest.counts.uncompared
    checked = f"; {count(compared)} checked against the reference, all equal" if compared else ""
    if uncompared:
        checked += f"; {count(uncompared)} above 1 MB not checked"
    facts: Facts = [
        ("tokenizer", f"{tokenizer_name(identity)}{vocabulary}"),
        ("encoder", f"{encoded}{checked}"),
        ("made by", f"{manifest.tool.name} {manifest.tool.version}"),
        *_subset_facts(manifest),
        *mismatch_facts(manifest.tokenizer_mismatches),
    ]
    if (shuffled := shuffle_text(manifest)) is not None:
        facts.append(("order", shuffled))
    for number, dataset in enumerate(manifest.hub_datasets or ()):
        what = ", ".join([*dataset.selection, f"commit {dataset.commit}"])
        facts.append(("" if number else "hub dataset", f"{dataset.url}: {what}"))
    for number, entry in enumerate(manifest.inputs[:_SHOWN_INPUTS]):
        read = entry.counts
        rejected = f", {count(read.rejected_total)} rejected" if read.rejected else ""
        excluded = f", {count(read.excluded_total)} excluded" if read.excluded else ""
        partial = " (not read to its end)" if entry.partial else ""
        content = f"{size(read.content_bytes)}, {counted(read.documents, 'document')}"
        facts.append(("" if number else "inputs", f"{entry.path}: {content}{rejected}{excluded}{partial}"))
    if len(manifest.inputs) > _SHOWN_INPUTS:
        facts.append(("", f"and {len(manifest.inputs) - _SHOWN_INPUTS} more"))
    if (lost := manifest.counts.unrepresented) is not None and lost.count:
        facts.append((lost.name, lost.describe()))
    for number, (reason, records) in enumerate(sorted(manifest.counts.rejected.items())):
        facts.append(("" if number else "rejected", f"{count(records)} {reason}"))
    for number, (code, records) in enumerate(sorted((manifest.counts.excluded or {}).items())):
        facts.append(("" if number else "excluded", f"{count(records)} {code}"))
    return facts


def _subset_facts(manifest: Manifest) -> Facts:
    found: Facts = []
    if isinstance(manifest.options, TokenizeParameters) and manifest.options.subset is not None:
        found.append(("subset", manifest.options.subset))
    if manifest.dataset.split is not None:
        found.append(("split", manifest.dataset.split))
    return found


def lengths_chart(caption: str, columns: tuple[str, str], lengths: LengthSummary) -> BarChart:
    """Return a histogram of lengths."""
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


def range_of(lengths: LengthSummary, noun: str) -> str:
    """Return the range and the mean of lengths, as a sentence."""
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
    note = Aside(_TEXT_NOTE if with_text else _NO_TEXT_NOTE)
    return Section("Token frequency", [text, _rank_curve(found), *tables, note])


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
        return [Section("", [FactList([*facts, ("text", "pass --tokenizer to see it")])])]
    lines = [f"  {line}".rstrip() for line in summary.text.split("\n")]
    return [Section("", [FactList([*facts, ("text", "")]), *lines])]


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
    if summary.setting is not None:
        facts.append(("read by", f"transformers {identity.transformers}, because of {summary.setting}"))
    return [Section("", [FactList(facts)])]


def mismatch_facts(mismatches: Iterable[TokenizerMismatch] | None) -> Facts:
    """Return the mismatches of tokenizers that were allowed, as warnings."""
    return [("warning", warning) for warning in allowed_warnings(mismatches)]
