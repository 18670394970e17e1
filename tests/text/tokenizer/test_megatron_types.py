"""Tokenizers read as Megatron's SentencePiece types and TikTokenizer read them."""

import base64
import io
import json

import pytest

from support.tokenizer_files import tiktoken_settings
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.definition import load_tokenizer, reopen_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings

DEFAULT = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a SentencePiece model beside a file that names other BOS and EOS tokens."""
    library = pytest.importorskip("sentencepiece")
    directory = tmp_path_factory.mktemp("model")
    content = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three four five six"] * 20),
        model_writer=content,
        vocab_size=30,
        hard_vocab_limit=False,
        user_defined_symbols=["<end>"],
        minloglevel=2,
    )
    (directory / "x.model").write_bytes(content.getvalue())
    settings = {"tokenizer_class": "LlamaTokenizer", "eos_token": "<end>", "add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(directory / "x.model")


def test_a_sentencepiece_model_without_the_files_beside_it(model):
    beside = load_tokenizer(model)
    assert (beside.identity.eod_token, beside.identity.prefix_ids) == ("<end>", ())
    alone = load_tokenizer(model, files_beside=False)
    assert (alone.identity.eod_token, alone.identity.eod_id, alone.identity.prefix_ids) == ("</s>", 2, (1,))
    plain = reference_encoder(alone, special_tokens=False).encode(["one two"]).ids.tolist()
    assert reference_encoder(alone, special_tokens=True).encode(["one two"]).ids.tolist() == [1, *plain]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the path of a TikTokenizer's file with the bytes and the token ab."""
    pytest.importorskip("tiktoken")
    path = tmp_path_factory.mktemp("ranks") / "vocab.json"
    tokens = [*(bytes([n]) for n in range(256)), b"ab"]
    listed = [
        {"rank": n, "token_bytes": base64.b64encode(token).decode(), "token_str": ""}
        for n, token in enumerate(tokens)
    ]
    path.write_text(json.dumps(listed))
    return str(path)


def settings(*special_tokens):
    return tiktoken_settings(num_special_tokens=10, vocab_size=267, special_tokens=special_tokens or DEFAULT)


def test_the_special_tokens_of_a_tiktokenizer(ranks):
    own = ("</s>", "a-[b]", *(token for token in DEFAULT if token != "</s>"))
    tokenizer = load_tokenizer(ranks, tiktoken=settings(*own))
    assert tokenizer.identity.eod_id == 0
    assert load_tokenizer(ranks, tiktoken=settings()).identity.eod_id == 2
    again = reopen_tokenizer(ranks, tokenizer.identity, tokenizer.sha256)  # as a worker does
    for each in (tokenizer, again):
        encoded = reference_encoder(each, special_tokens=False).encode(["aba-[b]<SPECIAL_9>b"])
        assert encoded.ids.tolist() == [266, 1, 9, 10 + ord("b")]
    assert TikTokenizerSettings.of_encoding(tokenizer.identity.name) == settings(*own)
    splitting = reference_encoder(tokenizer.splitting_special_tokens(), special_tokens=False)
    assert splitting.encode(["</s>ab"]).ids.tolist() == [*(10 + byte for byte in b"</s>"), 266]


@pytest.mark.parametrize("missing", DEFAULT)
def test_megatrons_special_tokens_are_required(ranks, missing):
    names = (*(token for token in DEFAULT if token != missing), "<other>")
    with pytest.raises(TokenizerError, match=f"must include {missing}"):
        load_tokenizer(ranks, tiktoken=settings(*names))
