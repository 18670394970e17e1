"""Tokenizer directories against transformers itself: a small part of scripts/tokenizer_matrix, and the check.

scripts/oracle runs it with transformers 4 and with transformers 5.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.support import skip_unless_first
from support import tokenizer_directories as directories
from support import tokenizer_matrix as matrix
from support.tokenize_runs import run_tokenize, write_jsonl
from tokshard.encode_with_transformers import Session
from tokshard.tokenizer.definition import load_tokenizer
from tokshard.tokenizer.encoders import reference_encoder

pytestmark = pytest.mark.oracle

FAMILIES = (
    "gpt2",
    "llama2_metaspace",
    "llama3",
    "nemotron",
    "mistral",
    "qwen2",
    "deepseek",
    "falcon",
    "bloom",
    "bert",
)
VARIANTS = (
    "as published",
    "no config.json",
    "truncation",
    "padding",
    "clean_up_tokenization_spaces",
    "decoder: eos not special",
    "decoder: eos lstrip",
    "decoder: new special",
    "added_tokens.json: new, no decoder",
    "additional: new",
    "pad new",
    "add_prefix_space",
    "add_bos off",
    "add_eos",
    "split_special_tokens",
    "eos in map new, no decoder",
    "sep alone",
    "class GPT2",
    "class Llama",
)


class InThisProcess:
    """transformers as it is installed in this environment."""

    def __init__(self):
        transformers = importlib.import_module("transformers")
        self.version = transformers.__version__
        self.major = self.version.split(".")[0]
        self._session = Session()

    def ask(self, **request):
        return self._session.answer(request)


@pytest.fixture(scope="module")
def transformers():
    if os.environ.get("TOKSHARD_ORACLE") != "required":
        pytest.importorskip("transformers")
    return InThisProcess()


# Each variant of three families or four, and each family as published: scripts/tokenizer_matrix has them all.
CASES = [
    (family, variant)
    for row, family in enumerate(FAMILIES)
    for column, variant in enumerate(VARIANTS)
    if variant == "as published" or (row + column) % 3 == 0
]


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_ids_sizes_and_eod_tokens_are_those_of_transformers(tmp_path, transformers, family, variant):
    directory = directories.directory(family, variant, count=10)
    path = directory.write(tmp_path / "tokenizer")
    expected = matrix.reference(directory, path, transformers)
    verdict = matrix.judge(directory, path, expected)
    wanted = {"no reference", "refused"} if expected.error else {"equal", "refused"}
    assert verdict.state in wanted, verdict.reason


@pytest.mark.parametrize(
    ("special_tokens", "against"), [(True, "transformers"), (False, sys.executable)], ids=["here", "command"]
)
def test_a_run_checks_against_transformers(tmp_path, transformers, special_tokens, against):
    if against == sys.executable:
        skip_unless_first()  # another interpreter is asked in the same way, whatever it has
    directory = directories.directory("llama3", "as published")
    path = directory.write(tmp_path / "tokenizer")
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": text} for text in directory.texts])
    report = run_tokenize(
        source,
        str(tmp_path / "out"),
        tokenizer=str(path),
        special_tokens=special_tokens,
        check_against=against,
    )
    assert report.transformers_check.version == transformers.version
    assert report.transformers_check.texts > len(directory.texts)


PAGE = Path(__file__).parents[2] / "docs/reference/tokenizers.md"


@pytest.mark.parametrize(
    "variant", ["as published", "added tokens normalized in file", "decoder: eos lstrip"]
)
@pytest.mark.parametrize("family", ["llama2", "qwen2"])
def test_the_documented_program_saves_what_auto_tokenizer_loads(tmp_path, transformers, family, variant):
    (program,) = re.findall(r"```python\n(# python save_tokenizer\.py .*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "save_tokenizer.py").write_text(program)
    directory = directories.directory(family, variant, count=10)
    path = directory.write(tmp_path / "tokenizer")
    saved = tmp_path / "saved/tokenizer.json"
    saved.parent.mkdir()
    subprocess.run([sys.executable, tmp_path / "save_tokenizer.py", path, saved], check=True, timeout=300)
    transformers.ask(directory=str(path))
    added = [f"a{text}b {text} {text}{text}" for text in ("<s>", "</s>", "<unk>", "<|im_end|>", "<|eot_id|>")]
    texts = [*directory.texts, *added]
    expected = transformers.ask(texts=texts, special_tokens=False)["ids"]
    encoder = reference_encoder(load_tokenizer(str(saved), need_eod=False), special_tokens=False)
    assert [encoder.encode([text]).ids.tolist() for text in texts] == expected
