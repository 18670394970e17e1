"""Every code has an example, and every example has its codes and no others."""

from __future__ import annotations

import pytest

from support.bad_products import datasets, products
from support.bad_products.examples import EXAMPLES
from tokshard.verification.codes import RULES
from tokshard.verification.job import verify
from tokshard.verification.options import LEVELS, VerifyOptions


def codes(report, *severities):
    return {one.code for one in report.findings if one.severity in severities}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_bad_example_has_its_findings_and_no_others(tmp_path, monkeypatch, example):
    monkeypatch.chdir(tmp_path)
    thing = example.build(tmp_path)
    listener = example.listener(thing)
    report = verify(
        VerifyOptions(thing, level=example.level, workers=2, **example.options), progress=listener
    )
    assert codes(report, "error", "warning") == example.codes
    assert codes(report, "note") == example.notes
    assert report.is_sound == (not example.codes)
    for finding in report.findings:
        assert finding.severity == RULES[finding.code].severity
        assert finding.path
        assert finding.hint or not finding.is_problem


def test_every_code_has_an_example():
    assert {code for example in EXAMPLES for code in example.codes | example.notes} == set(RULES)
    assert len(RULES) >= 30


@pytest.mark.parametrize(
    "build",
    [datasets.sound, products.sound_cache, products.sound_blend, products.sound_plan, products.goes_on],
    ids=lambda build: build.__name__,
)
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_sound_has_no_findings(tmp_path, monkeypatch, build, level):
    monkeypatch.chdir(tmp_path)
    report = verify(VerifyOptions(build(tmp_path), level=level, recursive=True))
    assert codes(report, "error", "warning") == set()
    assert codes(report, "note") <= {"unverified", "vocabulary-unknown"}
    assert report.is_sound
