"""README and docs tell the truth: their commands are run, their links and codes exist."""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import tokshard
from support import forked_commands
from tokshard import errors
from tokshard.text.corpus.rejection import REASONS

ROOT = Path(__file__).parents[1]
EXECUTED = [
    "README.md",
    "docs/tutorial.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/how-to").glob("*.md")),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "sample_data/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.fixture(scope="module")
def update_docs():
    loader = importlib.machinery.SourceFileLoader("update_docs", str(ROOT / "scripts/update_docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("update_docs", loader))
    loader.exec_module(module)
    by_shell = module.printed

    def printed(command, directory, environment):
        words = shlex.split(command.replace("\\\n", ""))
        if words[0] != "tokshard" or re.search(r"[|&;<>$`*?~{}()]", command):
            return by_shell(command, directory, environment)
        done = forked_commands.run(words[1:], directory=directory, environment=environment, one_stream=True)
        return done.stdout.decode()

    module.printed = printed
    return module


def test_the_pages_show_real_output_and_their_python_runs(update_docs):
    """One test, because all pages are executed at once."""
    executed = update_docs.executed_pages()
    assert list(executed) == EXECUTED
    differences = []
    for page, text in executed.items():
        shown, real = (
            update_docs.timeless(value).splitlines() for value in ((ROOT / page).read_text(), text)
        )
        differences += difflib.unified_diff(shown, real, page, "real output", n=0, lineterm="")
    assert differences == [], "run scripts/update_docs"


def test_the_executed_pages_have_blocks(update_docs):
    blocks = {page: len(update_docs.BLOCK.findall((ROOT / page).read_text())) for page in EXECUTED}
    assert blocks["README.md"] >= 6
    assert blocks["docs/tutorial.md"] >= 10
    assert sum(blocks.values()) >= 25


def test_the_command_line_reference_is_the_help(update_docs):
    assert (ROOT / "docs/reference/cli.md").read_text() == update_docs.cli_reference()


def test_the_api_reference_is_that_of_the_docstrings(update_docs):
    assert (ROOT / "docs/reference/api.md").read_text() == update_docs.api_reference()


def test_a_stale_page_is_seen(update_docs):
    text = "```console\n$ echo new\nold\n```"
    assert update_docs.executed(text, ".") == "```console\n$ echo new\nnew\n```"
    text = "```python\nprint(2)\n```\n\n```text\n1\n```"
    assert update_docs.executed(text, ".") == text.replace("1", "2")
    with pytest.raises(RuntimeError, match="failed"):
        update_docs.executed("```python\n1 / 0\n```", ".")


def test_a_long_command_may_have_several_lines(update_docs):
    assert update_docs.with_output("$ echo \\\n    new\nold\n", ".") == "$ echo \\\n    new\nnew\n"


def anchors(page):
    """Return the anchors of a page's headings, as repository pages and the site make them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_their_anchors_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            other = (page.parent / path) if path else page
            assert other.is_file(), target
            assert not anchor or anchor in anchors(other), target


def test_every_exit_code_is_documented():
    codes = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TokshardError)
    }
    text = (ROOT / "docs/reference/exit-codes.md").read_text()
    for code in codes | {130, 141, 143}:
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


def test_times_and_rates_may_differ(update_docs):
    first = (
        "time: 676 kB of text in 0.5 s (1.31 MB/s of text, 357k tokens/s)\ntime: 0.2 s\n52 kB read in 1 ms\n"
    )
    other = "time: 676 kB of text in 3.1 s (1 kB/s of text, 3 tokens/s)\ntime: 4 s\n52 kB read in 9.1 s\n"
    assert update_docs.timeless(first) == update_docs.timeless(other)
    assert update_docs.timeless(first) != update_docs.timeless(first.replace("676", "677"))
