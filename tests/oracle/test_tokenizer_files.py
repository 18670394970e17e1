"""The file of a TikTokenizer against Megatron's own class."""

from __future__ import annotations

import pytest

from oracle.support import megatron_or_skip
from support.tokenizer_definitions import lists_of, random_texts
from support.tokenizer_files import SPELLED, byte_tokens, listed, tiktoken_settings, write_json
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(
    "settings",
    [
        {"vocab_size": 2100},
        {"vocab_size": 1500, "num_special_tokens": 7, "pattern": "v1"},
    ],
)
def test_tiktokenizer(settings, tmp_path):
    megatron_or_skip()
    pytest.importorskip("tiktoken")
    module = pytest.importorskip("megatron.core.tokenizers.text.libraries.tiktoken_tokenizer")
    path = write_json(tmp_path / "x.json", listed(byte_tokens(2000)))
    theirs = module.TikTokenTokenizer(path, **settings)
    ours = load_tokenizer(path, tiktoken=tiktoken_settings(**settings))
    batch = [*random_texts(61, 1000), *SPELLED]
    encoded = lists_of(reference_encoder(ours, special_tokens=False).encode(batch))
    assert encoded == [theirs.text_to_ids(text) for text in batch]
    assert (ours.identity.vocab_size, ours.identity.eod_id) == (theirs.vocab_size, theirs.eod)
