"""The tokenizer of a job."""

from __future__ import annotations

from tokshard.samples.index.tokenizer_check import job_tokenizer


def test_the_job_of_a_null_tokenizer_or_of_an_unreadable_path(tmp_path):
    assert job_tokenizer(None) is None
    null = job_tokenizer({"class": "X", "tokenizer_path": None, "vocab_size": "100"})
    assert (null.identity, null.null_vocab_size) == (None, 101)
    assert job_tokenizer({"class": "X"}) is None
    (tmp_path / "broken").mkdir()
    assert job_tokenizer({"tokenizer_path": str(tmp_path / "broken")}).identity is None
    assert job_tokenizer({"tokenizer_path": "hf:org/name"}).identity is None
