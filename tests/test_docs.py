"""README and docs tell the truth: their commands are run, their links and codes exist."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tokshard
from tokshard import errors
from tokshard.corpus.records import REASONS

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.fixture(scope="module")
def update_docs():
    loader = importlib.machinery.SourceFileLoader("update_docs", str(ROOT / "scripts/update_docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("update_docs", loader))
    loader.exec_module(module)
    return module


def test_the_readme_shows_real_output_and_its_python_runs(update_docs):
    text = (ROOT / "README.md").read_text()
    assert len(update_docs.BLOCK.findall(text)) >= 8
    printed = []
    with update_docs.workshop() as directory:
        assert update_docs.timeless(text) == update_docs.timeless(update_docs.readme(text, directory))
        for block in update_docs.PYTHON_BLOCK.findall(text):
            done = subprocess.run(
                [sys.executable, "-c", block], cwd=directory, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            printed.append(done.stdout)
    assert printed[0] == "(4, 256)\n"
    assert printed[1].startswith("430 ")


def test_the_command_line_reference_is_the_help(update_docs):
    assert (ROOT / "docs/reference/cli.md").read_text() == update_docs.cli_reference()


def test_the_api_reference_is_that_of_the_docstrings(update_docs):
    assert (ROOT / "docs/reference/api.md").read_text() == update_docs.api_reference()


def test_a_stale_page_is_seen(update_docs):
    text = "```console\n$ echo new\nold\n```"
    assert update_docs.readme(text, ".") == "```console\n$ echo new\nnew\n```"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_exit_code_is_in_the_readme():
    codes = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TokshardError)
    }
    text = (ROOT / "README.md").read_text()
    for code in codes | {130, 143}:
        assert re.search(rf"^\| ({code}|130, {code}|{code}, 143) \|", text, re.MULTILINE), code


def test_every_reason_is_documented():
    text = (ROOT / "docs/reference/bad-records.md").read_text()
    for code, meaning in REASONS.items():
        assert f"| `{code}` | {meaning} |" in text


def test_public_names_are_importable():
    for name in tokshard.__all__:
        assert getattr(tokshard, name) is not None
    with pytest.raises(AttributeError):
        tokshard.nonsense  # noqa: B018
