"""Pages for maintainers: cited promises are defined, and the tests and files that pages name exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/reliability.md").read_text()
CITED = re.compile(r"\bP(\d{1,2})[a-z]?\b")


def promises() -> list[int]:
    return [int(number) for number in re.findall(r"(?m)^\| P(\d+) \|", PAGE)]


def test_every_promise_has_a_number_of_its_own():
    assert len(promises()) == len(set(promises())) > 40


def test_every_cited_promise_is_on_the_page():
    cited = {}
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*.py")]:
        docstring = path.read_text().split('"""')[1:2]
        for text in docstring:
            first, *more = [int(number) for number in CITED.findall(text)] or [0]
            last = more[0] if re.search(r"\bP\d+ to P\d+\b", text) else first
            cited.update(dict.fromkeys([first, *range(first, last + 1), *more], path))
    cited.pop(0, None)
    assert len(cited) > 15
    assert {number: path for number, path in cited.items() if number not in promises()} == {}


def test_every_test_named_on_the_page_exists():
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_file_named_on_the_page_of_the_architecture_exists():
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    named = re.findall(r"`((?:\w+/)+[\w.]+\.py)`", text)
    assert len(named) > 40
    found = [ROOT / ("" if name.startswith("tests/") else "src/tokshard") / name for name in named]
    assert [str(path) for path in found if not path.is_file()] == []
