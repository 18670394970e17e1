"""scripts/compare: its corpus, its tools, and what its page says."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.benchmarks import benchmark_modules

ROOT = Path(__file__).parents[1]
COMPARISON = ROOT / "scripts/comparison"


@pytest.fixture(scope="module")
def comparison():
    """The modules of scripts/comparison by name."""
    before = {*sys.modules}
    sys.path.insert(0, str(COMPARISON))
    try:
        with benchmark_modules("measure"):
            yield {
                name: importlib.import_module(name)
                for name in ("claims", "corpus", "page", "tables", "tools")
            }
    finally:
        sys.path.remove(str(COMPARISON))
        for name in {*sys.modules} - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == COMPARISON:
                del sys.modules[name]


def test_it_starts():
    """Its modules share the import path with those of scripts/bench: no name may occur twice."""
    command = [sys.executable, COMPARISON / "run.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--fault-megabytes" in done.stdout


T1 = "[T1](docs/compare.md#x)"


@pytest.mark.parametrize(
    ("readme", "expected", "reports"),
    [
        (f"It takes 12 MB {T1}.", f"It takes 11.9 MB {T1}.", 0),
        (f"It takes 11.9 MB {T1}, and 1 s.", f"It takes 11.9 MB {T1}, and 1 s.", 1),
        (f"It takes 12 s {T1}.", f"It takes 12 s {T1}.", 1),
        ("It takes 12 MB [T2](docs/compare.md#x).", "It takes 12 MB [T2](docs/compare.md#x).", 1),
        ("In 15 minutes, 36x or 1,000 tokens/s.", "In 15 minutes, 36x or 1,000 tokens/s.", 3),
        (f"It is 1,036 times {T1} as fast.", f"It is 35.6 times {T1} as fast.", 0),
        (
            "```console\n$ time: 1.2 s\n```\n`5 MB` of 3 files",
            "```console\n$ time: 1.2 s\n```\n`5 MB` of 3 files",
            0,
        ),
        (f"| b | 0 MB {T1} | 7 MB |", f"| b | 11.9 MB {T1} | 7 MB |", 1),
    ],
)
def test_numbers_of_the_readme_get_those_of_the_page(comparison, readme, expected, reports):
    header = "| row | tool | on disk, MB | tokshard is faster, times |"
    page = f"{header}\n|---|\n| T1 | x | 11.9 (10-13) | 35.6 (30-40) |"
    reported = []
    assert comparison["claims"].updated(readme, page, reported.append) == expected
    assert len(reported) == reports


def test_the_page_and_the_readme_have_the_numbers_of_the_results(comparison):
    """Every number with a unit in README.md has a row of the page."""
    pages = comparison["page"].render(json.loads((ROOT / "docs/compare.json").read_text()))
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run scripts/compare --page"
    reported = []
    readme = (ROOT / "README.md").read_text()
    updated = comparison["claims"].updated(readme, pages[ROOT / "docs/compare.md"], reported.append)
    assert reported == []
    assert updated == readme, "run scripts/compare --page"


def test_every_tool_has_a_runner_and_pins(comparison):
    tools = comparison["tools"]
    for tool in tools.TOOLS.values():
        assert (COMPARISON / "runners" / f"{tool.runner}.py").is_file()
    peers = {tool.name for tool in tools.TOOLS.values() if tool.is_peer}
    assert peers == {path.stem for path in (COMPARISON / "requirements").glob("*.txt")}
    for name in peers:
        for line in (COMPARISON / "requirements" / f"{name}.txt").read_text().splitlines():
            assert line.startswith("#") or "==" in line, f"{name}: {line} is not pinned"
            assert "://" not in line


def test_the_corpus_has_the_size_and_one_bad_line(comparison, tmp_path):
    corpus = comparison["corpus"]
    made = corpus.make([ROOT / "sample_data/stories.jsonl"], tmp_path / "corpus", 0.1)
    assert 0.1e6 <= made.file_bytes < 0.12e6
    lines = [line for name in made.files for line in Path(name).read_bytes().splitlines()]
    assert len(lines) == made.documents
    assert all(json.loads(line)["text"].strip() == json.loads(line)["text"] != "" for line in lines)
    broken, name, line = corpus.with_bad_line(made, tmp_path / "broken")
    assert broken.documents == made.documents - 1
    assert (tmp_path / "broken" / name).read_text().splitlines()[line - 1] == "This is not JSON."


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"error": "x"}, "no readable dataset"),
        ({"documents": 10}, "readable, complete"),
        ({"documents": 4}, "readable, 40% of the documents"),
        ({"documents": 15}, "readable, 50% of the documents twice"),
        ({"documents": 4, "padding": 1000}, "readable, 40% of the documents, then 1,000 tokens of padding"),
    ],
)
def test_what_a_reader_finds(comparison, facts, expected):
    assert comparison["tables"].state(facts, 10) == expected
