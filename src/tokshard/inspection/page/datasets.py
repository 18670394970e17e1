"""The sections of a dataset: what it is, how long its documents are, how often its tokens occur."""

from __future__ import annotations

import math

from tokshard.core.formatting import count, percent
from tokshard.inspection.datasets import DatasetSummary
from tokshard.inspection.facts import bin_labels, dataset_facts, range_of
from tokshard.inspection.frequencies import TokenCount, TokenFrequencies
from tokshard.inspection.lengths import LengthSummary
from tokshard.inspection.page.charts import Bar, bars, curve
from tokshard.inspection.page.document import facts, section, table
from tokshard.inspection.page.markup import Markup, tag


def dataset_sections(summary: DatasetSummary, frequencies: TokenFrequencies | None) -> list[Markup]:
    """Return the sections of a dataset."""
    found = [section("What it is", facts(dataset_facts(summary)))]
    if summary.document_lengths.count:
        chart = lengths_chart("Documents by their tokens", summary.document_lengths)
        found.append(section("Length of documents", tag("p", range_of(summary.document_lengths)), chart))
    if frequencies is not None and frequencies.distinct:
        found.append(_frequencies_section(frequencies))
    return found


def lengths_chart(caption: str, lengths: LengthSummary) -> Markup:
    """Return a histogram of lengths."""
    labels = bin_labels(lengths)
    rows = [Bar(label, one.count, count(one.count)) for label, one in zip(labels, lengths.bins, strict=True)]
    return bars(caption, rows)


def _frequencies_section(found: TokenFrequencies) -> Markup:
    whole = "all of them were counted"
    if found.counted < found.tokens:
        whole = f"counted were {count(found.counted)}, {percent(found.share)}, evenly spread in blocks"
    vocabulary = "" if found.vocabulary is None else f" of the {count(found.vocabulary)} of the tokenizer"
    outside = f"; {count(found.outside)} ids lie outside what is counted" if found.outside else ""
    told = (
        f"{count(found.tokens)} tokens: {whole}. "
        f"{count(found.distinct)} different tokens{vocabulary} occur{outside}."
    )
    ends = [_head(found)]
    if found.tail:
        ends.append(_tail(found.tail))
    return section("Token frequency", tag("p", told), _rank_curve(found), tag("div", *ends, class_="tokens"))


def _head(found: TokenFrequencies) -> Markup:
    rows = [
        Bar(_named(one), one.count, f"{count(one.count)} ({percent(one.count / found.counted)})")
        for one in found.head
    ]
    return bars("The most frequent tokens", rows)


def _tail(tokens: tuple[TokenCount, ...]) -> Markup:
    rows = [(_named(one), count(one.count)) for one in tokens]
    return table(("token", "occurs"), rows, caption="The least frequent tokens that occur")


def _named(one: TokenCount) -> str:
    return str(one.id) if one.text is None else f"{one.id} “{one.text}”"


def _rank_curve(found: TokenFrequencies) -> Markup:
    most = found.curve[0][1]
    across, up = math.log(max(found.distinct, 2)), math.log(max(most, 2))
    points = [(math.log(rank) / across, math.log(times) / up) for rank, times in found.curve]
    return curve(
        "How often each token occurs, from the most to the least frequent one; both scales are logarithmic",
        points,
        left=(count(most), "1"),
        below=("1st", "", f"{count(found.distinct)}th token"),
    )
