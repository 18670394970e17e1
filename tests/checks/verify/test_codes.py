"""Every code has an example with no other findings, and docs/reference/findings.md lists them all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support import bad_datasets, bad_exports, bad_products
from support.bad_examples import EXAMPLES
from tokshard.checks import doctor
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.options import LEVELS, VerifyOptions
from tokshard.checks.verify.report import RULES

UNKNOWN = {"tokenizer-unchecked"}


def codes(report, *severities):
    return {finding.code for finding in report.findings if finding.severity in severities}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_bad_example_has_its_findings_and_no_others(tmp_path, monkeypatch, example):
    monkeypatch.chdir(tmp_path)
    thing = example.build(tmp_path)
    listener = example.listener(thing)
    report = verify(
        VerifyOptions(path=thing, level=example.level, workers=2, **example.options), progress=listener
    )
    assert codes(report, "error", "warning") == example.codes
    # Most products are made of data without manifests, whose tokenizers are unknown.
    assert codes(report, "note") - UNKNOWN == example.notes - UNKNOWN
    assert example.notes <= codes(report, "note")
    assert report.sound == (not example.codes)
    for finding in report.findings:
        assert finding.severity == RULES[finding.code].severity
        assert finding.path
        assert finding.hint or not finding.is_problem


def test_every_code_has_an_example():
    assert {code for example in EXAMPLES for code in example.codes | example.notes} == set(RULES)
    assert len(RULES) >= 30


@pytest.mark.parametrize(
    "build",
    [
        bad_datasets.sound,
        bad_products.sound_cache,
        bad_products.sound_blend,
        bad_products.sound_plan,
        bad_products.goes_on,
        bad_exports.sound_export,
    ],
    ids=lambda build: build.__name__,
)
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_sound_has_no_findings(tmp_path, monkeypatch, build, level):
    monkeypatch.chdir(tmp_path)
    report = verify(VerifyOptions(path=build(tmp_path), level=level, recursive=True))
    assert codes(report, "error", "warning") == set()
    assert codes(report, "note") <= {"unverified", "vocabulary-unknown", *UNKNOWN}
    assert report.sound


PAGE = (Path(__file__).parents[3] / "docs/reference/findings.md").read_text()
VERIFY, DOCTOR = PAGE.split("\n## `tokshard doctor`\n")
DOCTOR, SKIPPED = DOCTOR.split("\n### Checks that were skipped\n")


def rows(text):
    return [
        tuple(row)
        for row in re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \| ?(.*?) ?\|$", text, re.MULTILINE)
    ]


def test_the_page_is_the_table_of_verify():
    listed = [(code, rule.severity, rule.meaning, rule.remedy or "") for code, rule in RULES.items()]
    assert rows(VERIFY) == listed


def test_the_doctors_codes_are_those_of_its_code():
    """Names of codes are constants: the first argument of a finding, or of what becomes it."""
    called, constants = set(), set()
    for path in Path(doctor.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                constants.add(node.value)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Finding", "Finding.of_error"}:
                called |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    listed = [code for code, *_ in rows(DOCTOR)]
    assert len(listed) == len(set(listed))
    assert called <= set(listed) <= constants
    assert len(called) > 20


def test_each_error_and_warning_of_the_doctor_has_a_hint():
    count = 0
    for path in Path(doctor.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {
                "Finding",
                "Finding.of_error",
            }:
                continue
            assert ast.unparse(node.func) == "Finding", f"{path}: an error may have no hint"
            _, severity, _, *more = [ast.unparse(argument) for argument in node.args]
            if severity != "'note'":
                count += 1
                assert more, f"{path}:{node.lineno}"
                assert more[0] != "None", f"{path}:{node.lineno}"
    assert count > 20


def test_the_skipped_checks_are_those_of_the_doctors_code():
    called = set()
    for path in Path(doctor.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(
                r"\bSkippedCheck$|\.skipped$", ast.unparse(node.func)
            ):
                (first, *_) = node.args
                called |= {n.value for n in ast.walk(first) if isinstance(n, ast.Constant)}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", SKIPPED, re.MULTILINE)) == called


def test_problems_have_remedies_and_sentences_have_no_end():
    for code, rule in RULES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
        assert rule.remedy or rule.severity == "note"
        assert not rule.meaning.endswith(".")
        assert "|" not in rule.meaning + (rule.remedy or "")
