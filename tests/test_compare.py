"""scripts/compare: its corpus, its tools, and what its page says."""

from __future__ import annotations

import importlib
import json
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


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        ("It takes 12 MB [T1](docs/compare.md#x).", []),
        ("It takes 11.9 MB [T1](docs/compare.md#x).", []),
        ("It takes 13 MB [T1](docs/compare.md#x).", ["13 MB: not in T1"]),
        ("It takes 12 s [T1](docs/compare.md#x).", ["12 s: not in T1"]),
        ("It takes 12 MB.", ["12 MB: no id"]),
        ("It is 36 times as fast [T1](docs/compare.md#x). It takes 12 MB.", ["12 MB: no id"]),
        ("It is 36x as fast [T1](docs/compare.md#x).", []),
        ("It is 37 times as fast [T1](docs/compare.md#x).", ["37 times: not in T1"]),
        ("```console\n$ time: 1.2 s\n```\n`5 MB` of 3 files", []),
        ("| a | size, MB |\n|---|---:|\n| b | 12 [T1](docs/compare.md#x) |", []),
        ("| a | size, MB |\n|---|---:|\n| b | 14 [T1](docs/compare.md#x) |", ["14 MB: not in T1"]),
        ("| a | size |\n|---|---:|\n| b | 14 MB |", ["14 MB: no id"]),
    ],
)
def test_wrong_claims_are_found(comparison, readme, expected):
    header = "| row | tool | on disk, MB | tokshard is faster, times |"
    page = f"{header}\n|---|\n| T1 | x | 11.9 (10-13) | 35.6 (30-40) |"
    assert [text.rpartition(": ")[0] for text in comparison["claims"].wrong(readme, page)] == expected


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
