"""Tokenizer directories without transformers: read as transformers 4 and 5 read them, or refused.

tests/golden/tokenizer_directories/record.py recorded the sizes, the EOD tokens and digests of the ids.
"""

import json
from pathlib import Path

import pytest

from support import tokenizer_directories as directories
from support.directory_comparison import PART_TEXTS, WAYS, tokshard_reading
from tokshard.errors import TokshardError

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizer_directories"
RECORDED = [json.loads((GOLDEN / f"transformers{major}.json").read_text(encoding="utf-8")) for major in "45"]
# Families that need transformers as published: version 5 builds another tokenizer than tokenizer.json, or
# tokshard does not know the class (BERT).
NOT_PLAIN = {"smollm", "llama2", "llama2_2023", "t5", "bert"}


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(("family", "variant"), directories.cases())
def test_a_directory_is_read_as_both_versions_do_or_refused(tmp_path, family, variant):
    files = directories.directory(family, variant)
    path = directories.write_directory(tmp_path / "tokenizer", files)
    texts = directories.hostile_texts(files, PART_TEXTS)
    for place, (megatron, special) in enumerate(WAYS):
        try:
            reading, is_plain = tokshard_reading(path, texts, megatron=megatron, special=special)
        except TokshardError:
            # Megatron without special tokens does not find tokens with lstrip, rstrip or normalized.
            assert variant != "as published" or family in NOT_PLAIN or (megatron and not special)
            continue
        assert is_plain
        expected = [recorded[f"{family}: {variant}"][place] for recorded in RECORDED]
        loaded = [each for each in expected if isinstance(each, list)]
        assert loaded, expected
        for size, eod, digest in loaded:
            assert [reading.size, reading.digest()] == [size, digest]
            assert None in {reading.eod, eod} or reading.eod == eod
