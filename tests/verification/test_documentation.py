"""docs/findings.md lists every code, with the words of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tokshard import preflight
from tokshard.verification.codes import RULES

PAGE = (Path(__file__).parents[2] / "docs/findings.md").read_text()
VERIFY, DOCTOR = PAGE.split("\n## `tokshard doctor`\n")


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
    for path in Path(preflight.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                constants.add(node.value)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Finding", "Finding.of_error"}:
                called |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
    listed = [code for code, *_ in rows(DOCTOR)]
    assert len(listed) == len(set(listed))
    assert called <= set(listed) <= constants
    assert len(called) > 20


def test_problems_have_remedies_and_sentences_have_no_end():
    for code, rule in RULES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
        assert rule.remedy or rule.severity == "note"
        assert not rule.meaning.endswith(".")
        assert "|" not in rule.meaning + (rule.remedy or "")
