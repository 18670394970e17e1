"""Words that may not come back in user-facing text; see "Language" in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# pattern: say this instead
WORDS = {
    r"data sets?": "dataset",
    r"(?:go|goes|gone|going|went) on(?! to)": "continue, resume",
    r"anew": "again",
    r"mend(?:s|ed|ing)?": "fix",
    r"laps?": "epoch",
    r"off by(?! default)": "deviation, weight error",
    r"(?:put|puts|putting) (?:\w+ ){0,3}(?:together|behind)": "assemble, concatenate",
    r"behind (?:each|one) (?:an)?other|one behind the other": "concatenated",
    r"(?:be|is|are|was|were|been) (?:said|told|asked for|meant)": "name the actor and the action",
    r"(?:what|which) fills": "incomplete batch, tail",
    r"say(?:s)? (?:what|whether|which|who|how|where)": "show, report, check",
    r"cannot be meant": "invalid",
    r"hold(?:s|ing)? (?:\w+ ){0,4}against|held against": "compare, check",
    r"nurser(?:y|ies)|crews?": "worker pool",
    r"errands?": "unit of work, task",
    r"holdings": "snapshot",
    r"provisions?": "build or reuse",
    r"likeness(?:es)?": "description",
    r"wish(?:es|ed)?": "request",
    r"lie(?:s)? (?:in|on|at|beside|below|outside|behind|there|within)": "is stored, is",
    r"come(?:s)? to (?:an|its) end": "finish",
    r"in (?:the )?way of": "block",
    r"how many [\w ]+ are there": "the number of ... is required",
    r"there is no(?:t)? \w+ at": "not found",
    r"has a meaning (?:only )?with": "requires",
    r"licence": "license",
}
PATTERN = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", re.IGNORECASE)

GENERATED = [ROOT / "docs/reference/api.md", ROOT / "docs/reference/cli.md"]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "sample_data/README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in GENERATED),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def prose(page):
    """Return a page without blocks and spans of code, and without the targets of links."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def unwanted(text):
    """Return the words of a text that may not come back, each with what surrounds it."""
    text = " ".join(text.split())
    return [text[max(0, match.start() - 40) : match.end() + 20] for match in PATTERN.finditer(text)]


def texts(source):
    """Yield the strings of a module, without the docstrings of private names and without code."""
    tree = ast.parse(source.read_text())
    hidden = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if node.body and isinstance(node.body[0], ast.Expr) else None
            if docstring is not None and getattr(node, "name", "_").startswith("_"):
                hidden.add(docstring.value)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if is_text and node not in hidden:
            yield re.sub(r"``.*?``|`[^`\n]*`", "", node.value, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page):
    assert unwanted(prose(page)) == []


def test_the_help_of_all_commands_uses_the_words_of_the_field():
    assert unwanted(GENERATED[1].read_text()) == []


def package_of(source):
    return source.relative_to(ROOT / "src/tokshard").parts[0]


@pytest.mark.parametrize("package", sorted({package_of(source) for source in SOURCES}))
def test_messages_and_docstrings_use_the_words_of_the_field(package):
    found = {
        str(source.relative_to(ROOT)): words
        for source in SOURCES
        if package_of(source) == package
        if (words := [word for text in texts(source) for word in unwanted(text)])
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The data set goes on.", 2),
        ("Parts are put together, one behind\nthe other.", 2),
        ("a dataset; an overlap; amend; assemble the parts; `data set`", 0),
        ("Say what a thing is. Nothing was said of it.", 2),
    ],
)
def test_the_list_finds_what_it_should(text, count, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len(unwanted(prose(page))) == count


# In dataset/ and text/tokenize/, consecutive documents are a unit, a part or a piece. A plan is a shard plan.
ONE_MEANING = re.compile(
    r"(?<![a-z_])(?:plans?|shards?|segments?|stretch(?:es)?|bundles?|portions?|fragments?)(?![a-z_])",
    re.IGNORECASE,
)
DATA_PATH = [
    source
    for source in SOURCES
    if source.relative_to(ROOT / "src/tokshard").parts[0] == "dataset"
    or source.relative_to(ROOT / "src/tokshard").parts[:2] == ("text", "tokenize")
]


@pytest.mark.parametrize("source", DATA_PATH, ids=lambda source: str(source.relative_to(ROOT)))
def test_the_data_path_has_units_parts_and_pieces_and_no_plan(source):
    if source.name == "products.py":  # it names all products, shard plans among them
        return
    text = source.read_text().replace('"plan.json"', "")  # of an unfinished run of an earlier version
    assert ONE_MEANING.findall(text) == []
