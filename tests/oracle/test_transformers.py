"""Tokenizer directories against transformers itself, and against Megatron's wrapper of it.

scripts/oracle runs a part with transformers 4 and 5; scripts/tokenizer_directories runs all of it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import pytest

from oracle.support import megatron_or_skip
from support import tokenizer_directories as directories
from support.command_line import installed
from support.directory_comparison import PART_TEXTS, WAYS, compare, expected_reading
from support.tokenize_runs import documents, manifest, write_jsonl
from tokshard import export_with_transformers
from tokshard.text.tokenizer import transformers_reader

pytestmark = pytest.mark.oracle

TEXTS = int(os.environ.get("TOKSHARD_DIRECTORIES", PART_TEXTS))
CASES = directories.cases() if TEXTS == PART_TEXTS else directories.all_cases()


@pytest.fixture
def one_process(monkeypatch):
    """Answer in this process: transformers is imported once for all directories."""

    def answer_of(command, request):
        return export_with_transformers.answer(json.loads(request))

    monkeypatch.setattr(transformers_reader, "_answer_of", answer_of)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_ids_sizes_and_eod_tokens_are_those_of_transformers(tmp_path, record_property, family, variant):
    megatron_or_skip()
    files = directories.directory(family, variant)
    path = directories.write_directory(tmp_path / "tokenizer", files)
    texts = directories.hostile_texts(files, TEXTS)
    states = [compare(path, texts, megatron=megatron, special=special) for megatron, special in WAYS]
    record_property("states", ", ".join(state for state, _ in states))
    record_property("reason", next((reason for _, reason in states if reason), ""))
    assert "DIFFERENT" not in dict(states), states


@pytest.mark.parametrize("python", [(), ("--transformers", sys.executable)], ids=["here", "command"])
def test_a_run_reads_a_directory_through_transformers(tmp_path, python):
    megatron_or_skip()
    files = directories.directory("llama2", "additional_special_tokens with flags")
    path = directories.write_directory(tmp_path / "tokenizer", files)
    texts = [text for text in directories.hostile_texts(files, PART_TEXTS) if text]
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": text} for text in texts])
    options = ("--tokenizer", path, "--special-tokens", "--no-append-eod", *python)
    done = installed("tokenize", source, "-o", tmp_path / "out", *options, seconds=60)
    assert done.returncode == 0, done.stderr
    expected = expected_reading(path, texts, megatron=False, special=True)
    assert [ids for (ids,) in documents(tmp_path / "out")] == expected.ids
    version = importlib.import_module("transformers").__version__
    assert manifest(tmp_path / "out")["tokenizer"]["transformers"] == version
