"""Samples of token ids: small datasets are read whole, large ones in bounded blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plain_datasets import Plain
from tokshard.index_cache import tokenizer_check
from tokshard.index_cache.tokenizer_check import TokenBeyond, find_beyond, job_tokenizer


@given(
    st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    st.lists(st.lists(st.lists(st.integers(0, 120), max_size=5), max_size=3), max_size=6),
    st.integers(1, 130),
)
def test_a_small_dataset_is_read_whole(tmp_path_factory, dtype, documents, size):
    prefix = str(tmp_path_factory.mktemp("plain") / "data")
    plain = Plain(dtype, documents)
    plain.write(prefix)
    expected = next(
        (
            TokenBeyond(token, sequence, offset)
            for sequence, tokens in enumerate(plain.sequences)
            for offset, token in enumerate(tokens)
            if token >= size
        ),
        None,
    )
    assert find_beyond(prefix, size) == expected


def test_a_large_dataset_is_read_in_blocks_over_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_check, "BLOCK_BYTES", 64)
    prefix = str(tmp_path / "data")
    Plain("uint16", [[list(range(1000))], [list(range(9000))]]).write(prefix)
    starts = list(tokenizer_check._block_starts(10_000, 32, 8))
    assert [start // 1250 for start in starts] == list(range(8))
    assert all(start + 32 <= 10_000 for start in starts)
    assert starts == list(tokenizer_check._block_starts(10_000, 32, 8))
    found = find_beyond(prefix, 5000, blocks=8)
    assert (found.sequence, found.token_id) == (1, found.offset)
    assert found.offset + 1000 in {start for start in starts if start >= 6000} | {6000}


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 255, 256, 257, 300])
def test_blocks_stay_inside(tokens):
    for start in tokenizer_check._block_starts(tokens, 32, 8):
        assert 0 <= start < tokens


def test_the_job_of_a_null_tokenizer_or_of_an_unreadable_path(tmp_path):
    assert job_tokenizer(None) is None
    null = job_tokenizer({"class": "X", "tokenizer_path": None, "vocab_size": "100"})
    assert (null.identity, null.null_vocab_size) == (None, 101)
    assert job_tokenizer({"class": "X"}) is None
    (tmp_path / "broken").mkdir()
    assert job_tokenizer({"tokenizer_path": str(tmp_path / "broken")}).identity is None
    assert job_tokenizer({"tokenizer_path": "hf:org/name"}).identity is None
