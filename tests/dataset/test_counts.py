"""Counts are sums over units, inputs and datasets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokshard.dataset.counts import NO_COUNTS, UnrepresentedText

WEB = replace(
    NO_COUNTS,
    records=9,
    documents=3,
    lines=10,
    blank_lines=1,
    content_bytes=8000,
    rejected={"not-object": 1},
    sequences=4,
    tokens=30,
    empty_documents=1,
    longest_sequence=17,
    eod_in_text=2,
    encoders={"fast": 3},
    compared=2,
    uncompared=1,
    excluded={"not-sampled": 5},
)
BOOKS = replace(
    NO_COUNTS,
    records=7,
    documents=2,
    lines=7,
    content_bytes=9000,
    rejected={"not-object": 1, "bad-text": 1},
    sequences=1,
    tokens=10,
    longest_sequence=10,
    encoders={"fast": 1, "reference": 1},
    excluded={"beyond-limit": 3},
)


def test_all_counts_are_added_and_the_longest_sequence_is_kept():
    both = WEB + BOOKS
    assert both == replace(
        NO_COUNTS,
        records=16,
        documents=5,
        lines=17,
        blank_lines=1,
        content_bytes=17000,
        rejected={"not-object": 2, "bad-text": 1},
        sequences=5,
        tokens=40,
        empty_documents=1,
        longest_sequence=17,
        eod_in_text=2,
        encoders={"fast": 4, "reference": 1},
        compared=2,
        uncompared=1,
        excluded={"not-sampled": 5, "beyond-limit": 3},
    )
    assert both == BOOKS + WEB
    assert both.records == both.documents + both.rejected_total + both.excluded_total
    assert both.excluded_as("beyond-limit") == 3


@pytest.mark.parametrize("counts", [NO_COUNTS, WEB, BOOKS])
def test_adding_nothing_changes_nothing(counts):
    assert counts + NO_COUNTS == NO_COUNTS + counts == counts


def test_text_that_is_not_represented_is_unknown_if_it_is_unknown_on_a_side_with_documents():
    lost = UnrepresentedText("tokens", 1000, 12)
    known = replace(WEB, unrepresented=lost)
    assert (known + known).unrepresented == UnrepresentedText("tokens", 2000, 24)
    assert (known + known).unrepresented.describe() == "24 of 2,000 (1.20%)"
    assert (known + NO_COUNTS).unrepresented == (NO_COUNTS + known).unrepresented == lost
    assert (known + BOOKS).unrepresented is None
    characters = replace(BOOKS, unrepresented=UnrepresentedText("characters", 1000, 12))
    assert (known + characters).unrepresented is None
    assert (characters + characters).unrepresented.describe() == "24 of 2,000 checked (1.20%)"
