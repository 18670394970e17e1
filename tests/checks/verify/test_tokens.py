"""What is counted of tokens is what a slow count says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import Plain
from tokshard import IndexedDataset
from tokshard.checks.verify import tokens as scanner
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.checks.verify.tokens import TokenRules, TokenTally, scan_tokens

DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=3), max_size=10)
TEMPLATES = st.lists(st.integers(0, 2), max_size=2).map(tuple)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(scanner, "_BLOCK_TOKENS", 3)
    monkeypatch.setattr(scanner, "_TASK_DOCUMENTS", 2)
    monkeypatch.setattr("tokshard.checks.verify.context._WORTH_THREADS_BYTES", 0)


def slow_tally(documents, rules):
    """Count token by token what :class:`TokenTally` describes."""
    tally = TokenTally.of(rules)
    flat = [token for document in documents for sequence in document for token in sequence]
    outside = [(place, token) for place, token in enumerate(flat) if token >= (rules.limit or 100)]
    tally.outside, tally.first_outside = len(outside), outside[0] if outside else None
    for number, document in enumerate(documents):
        filled = [sequence for sequence in document if sequence]
        tally.documents += bool(filled)
        if not filled or not tally.ids:
            continue
        for identifier, counts in tally.ids.items():
            counts.occurrences += sum(sequence.count(identifier) for sequence in filled)
            counts.starts += filled[0][0] == identifier
            counts.ends += filled[-1][-1] == identifier
        tally.sequences += len(filled)
        filled[-1] = without_eod(filled[-1], rules, tally, number)
        for sequence in filled:
            text = without_template(sequence, rules, tally, number)
            for identifier in set(text) & set(tally.ids):
                counts = tally.ids[identifier]
                counts.elsewhere += text.count(identifier)
                if counts.first_elsewhere is None:
                    counts.first_elsewhere = number
    return tally


def without_eod(sequence, rules, tally, number):
    if rules.eod_id is None:
        return sequence
    if sequence[-1] != rules.eod_id:
        miss(tally.without_eod, number)
        return sequence
    return sequence if rules.ends_with_eod is False else sequence[:-1]


def without_template(sequence, rules, tally, number):
    if rules.has_template is False:
        return sequence
    if tuple(sequence[: len(rules.prefix)]) == rules.prefix:
        sequence = sequence[len(rules.prefix) :]
    else:
        miss(tally.without_prefix, number)
    start = len(sequence) - len(rules.suffix)
    if start >= 0 and tuple(sequence[start:]) == rules.suffix:
        return sequence[:start]
    miss(tally.without_suffix, number)
    return sequence


def miss(missing, document):
    missing.count += 1
    if missing.first is None:
        missing.first = document


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=400,
)
@given(
    documents=DOCUMENTS,
    dtype=st.sampled_from(["uint16", "int32"]),
    rules=st.builds(
        TokenRules,
        limit=st.none() | st.integers(1, 3),
        eod_id=st.none() | st.integers(0, 2),
        ends_with_eod=st.sampled_from([True, False, None]),
        prefix=TEMPLATES,
        suffix=TEMPLATES,
        has_template=st.sampled_from([True, False, None]),
        special=st.lists(st.sampled_from([0, 1, 2, 4, 70_000])).map(tuple),
    ),
    ranges=st.sampled_from([0, 8]),
)
def test_the_tally_is_that_of_a_slow_count(
    tmp_path, small_pieces, monkeypatch, documents, dtype, rules, ranges
):
    prefix = str(tmp_path / "x")
    Plain(dtype, documents).write(prefix)
    monkeypatch.setattr(scanner, "_MOST_RANGES", ranges)
    context = VerifyContext("deep", CountingRunner(2))
    assert scan_tokens(IndexedDataset(prefix), rules, context) == slow_tally(documents, rules)
