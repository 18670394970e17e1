"""Findings about the content of a dataset."""

from __future__ import annotations

from pathlib import Path

from support.plain_datasets import Plain
from tokshard import IndexedDataset
from tokshard.checks.verify.content import Expectations, examine_tokens
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.checks.verify.report import ProductFindings
from tokshard.checks.verify.tokens import TokenRules


def examined(tmp_path, documents, rules, **expected):
    prefix = str(tmp_path / "x")
    Plain("int32", documents).write(prefix)
    findings = ProductFindings("dataset", prefix)
    context = VerifyContext("deep", CountingRunner(1))
    examine_tokens(IndexedDataset(prefix), Expectations(rules, **expected), findings, context)
    return findings


def test_negative_ids_are_out_of_range(tmp_path):
    (finding,) = examined(tmp_path, [[[1, -2, 3]]], TokenRules(limit=10)).findings
    assert (finding.code, finding.offset) == ("token-range", 4)
    assert Path(finding.path) == tmp_path / "x.bin"


def test_the_eod_tokens_of_the_text_are_counted_without_those_at_the_ends(tmp_path):
    documents = [[[1, 9, 2, 9]], [[9]], []]
    rules = TokenRules(eod_id=9, ends_with_eod=True)
    assert not examined(tmp_path, documents, rules, eod_in_text=1).findings
    (finding,) = examined(tmp_path, documents, rules, eod_in_text=2).findings
    assert finding.code == "eod-count"
    (finding,) = examined(
        tmp_path, documents, TokenRules(eod_id=9, ends_with_eod=False), eod_in_text=1
    ).findings
    assert (finding.code, finding.message.endswith("got 3")) == ("eod-count", True)
