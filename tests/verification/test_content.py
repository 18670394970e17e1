"""What is counted of tokens is what a slow count says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import Plain
from tokshard import IndexedDataset
from tokshard.verification import content
from tokshard.verification.content import TokenRules, TokenTally, scan_tokens
from tokshard.verification.context import CountingRunner, VerifyContext
from tokshard.verification.report import ProductFindings

TOKENS = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=3), max_size=10)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(content, "_BLOCK_TOKENS", 3)
    monkeypatch.setattr(content, "_TASK_DOCUMENTS", 2)
    monkeypatch.setattr("tokshard.verification.context._WORTH_THREADS_BYTES", 0)


def slow_tally(documents, limit, eod):
    flat = [token for document in documents for sequence in document for token in sequence]
    ends = [[token for sequence in document for token in sequence] for document in documents]
    filled = [(place, tokens) for place, tokens in enumerate(ends) if tokens]
    without = [place for place, tokens in filled if tokens[-1] != eod]
    outside = [(place, token) for place, token in enumerate(flat) if token >= limit]
    return TokenTally(
        outside=len(outside),
        first_outside=outside[0] if outside else None,
        eod=flat.count(eod),
        documents=len(filled),
        without_eod=len(without),
        first_without=without[0] if without else None,
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(documents=TOKENS, limit=st.integers(1, 10), eod=st.integers(0, 9))
def test_the_tally_is_that_of_a_slow_count(tmp_path, small_pieces, documents, limit, eod):
    prefix = str(tmp_path / "x")
    Plain("int32", documents).write(prefix)
    context = VerifyContext("deep", CountingRunner(2))
    findings = ProductFindings("dataset", prefix)
    right = slow_tally(documents, limit, eod)
    appended = right.documents - right.without_eod
    rules = TokenRules(limit, eod, True, right.eod - appended)
    assert scan_tokens(IndexedDataset(prefix), rules, findings, context) == right
    found = {finding.code for finding in findings.findings}
    assert found == {
        *(["token-range"] if right.outside else []),
        *(["eod-missing"] if right.without_eod else []),
    }
    findings.findings.clear()
    scan_tokens(IndexedDataset(prefix), TokenRules(None, eod, None, right.eod + 1), findings, context)
    assert [finding.code for finding in findings.findings] == ["eod-count"]


def test_negative_ids_are_out_of_range(tmp_path):
    prefix = str(tmp_path / "x")
    Plain("int32", [[[1, -2, 3]]]).write(prefix)
    findings = ProductFindings("dataset", prefix)
    context = VerifyContext("deep", CountingRunner(1))
    scan_tokens(IndexedDataset(prefix), TokenRules(10, None, None, None), findings, context)
    (finding,) = findings.findings
    assert (finding.code, finding.offset) == ("token-range", 4)
    assert Path(finding.path) == tmp_path / "x.bin"
