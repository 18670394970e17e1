import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tokenizer_definitions import (
    BYTE_LEVEL,
    added,
    batches,
    characters,
    encode_plainly,
    lists_of,
    metaspace,
    probe,
    published,
    random_texts,
    sequence,
    split,
    template,
    written,
)
from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.encoders import (
    EncodedBatch,
    decode,
    reference_encoder,
    token_text,
)
from tokshard.text.tokenizer.fast import FastEncoderRefusedError, fast_encoder, fast_encoder_refusal
from tokshard.text.tokenizer.fast.encoder import _spliced
from tokshard.text.tokenizer.tiktoken_files import GPT2_PATTERN, TIKTOKEN_ENCODINGS, tiktoken_ranks

ragged = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=4), max_size=8)


def batch_of(lists):
    flat = [index for token_ids in lists for index in token_ids]
    return EncodedBatch(np.array(flat, np.uint32), np.cumsum([0, *map(len, lists)], dtype=np.int64))


# The built-in tokenizer


@given(batch=batches)
def test_bytes_are_the_bytes_of_utf8(batch):
    tokenizer = load_tokenizer(None)
    encoder = reference_encoder(tokenizer, special_tokens=False)
    assert encoder.name == "reference"
    encoded = lists_of(encoder.encode(batch))
    assert encoded == [list(text.encode("utf-8")) for text in batch]
    assert [decode(tokenizer, ids) for ids in encoded] == batch


def test_bytes_have_no_fast_encoder():
    tokenizer = load_tokenizer(None)
    with pytest.raises(
        FastEncoderRefusedError,
        match="the built-in tokenizer: the fast encoder does not support bytes tokenizers",
    ):
        fast_encoder(tokenizer, special_tokens=False)
    assert fast_encoder_refusal(tokenizer, special_tokens=False) == (
        "the fast encoder does not support bytes tokenizers"
    )


def test_the_eod_of_bytes_is_shown():
    tokenizer = load_tokenizer(None)
    assert decode(tokenizer, [104, 105, 256, 255]) == "hi<|endoftext|>\ufffd"
    assert decode(tokenizer, np.array([104, 105], np.uint16)) == "hi"
    assert decode(tokenizer, []) == ""


@pytest.mark.parametrize("wrong", [257, -1, 2**40])
def test_an_id_of_another_tokenizer_is_named(wrong):
    with pytest.raises(TokenizerError, match=f"the token id {wrong} .* whose largest id is 256"):
        decode(load_tokenizer(None), [1, wrong])


# tokenizer.json


@pytest.fixture(scope="module")
def cut_and_padded(tmp_path_factory):
    """A tokenizer whose file asks for truncation, padding and a BOS."""
    size = len(probe()["model"]["vocab"])
    definition = probe(
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
        added_tokens=[added(size, "<s>")],
        post_processor=template("<s>", "A", ids={"<s>": [size]}),
    )
    return definition, written(tmp_path_factory.mktemp("cut"), definition)


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("encoder", [fast_encoder, reference_encoder])
def test_encoders_against_the_library_one_by_one(cut_and_padded, encoder, special_tokens):
    definition, tokenizer = cut_and_padded
    batch = ["", *random_texts(1, 400)]
    expected = encode_plainly(definition, batch, special_tokens=special_tokens)
    assert lists_of(encoder(tokenizer, special_tokens=special_tokens).encode(batch)) == expected
    assert len(expected[0]) == special_tokens


def test_an_empty_batch(cut_and_padded):
    for encoder in (fast_encoder, reference_encoder):
        assert lists_of(encoder(cut_and_padded[1], special_tokens=True).encode([])) == []


@pytest.mark.parametrize("make", [fast_encoder, reference_encoder])
@pytest.mark.parametrize("definition", [probe(sequence(split(GPT2_PATTERN), BYTE_LEVEL)), metaspace()])
def test_a_text_has_the_same_tokens_in_any_company(make, definition, tmp_path):
    """An encoder's state never shows: batches, their order and what came before change nothing."""
    tokenizer = written(tmp_path, definition)
    encoder = make(tokenizer, special_tokens=False)
    batch = random_texts(2, 300)
    together = lists_of(encoder.encode(batch))
    assert lists_of(encoder.encode(batch[::-1])) == together[::-1]
    assert [lists_of(encoder.encode([text]))[0] for text in batch] == together
    assert lists_of(make(tokenizer, special_tokens=False).encode(batch)) == together


@pytest.mark.parametrize(("name", "special_tokens"), [("gpt2", False), ("qwen2", False), ("llama2", True)])
def test_published_tokenizers(name, special_tokens):
    path = published(name)
    tokenizer = load_tokenizer(str(path))
    batch = [*random_texts(3, 200), f"a {tokenizer.identity.eod_token} b"]
    expected = encode_plainly(json.loads(path.read_bytes()), batch, special_tokens=special_tokens)
    fast = fast_encoder(tokenizer, special_tokens=special_tokens)
    assert fast.name == "fast"
    assert lists_of(fast.encode(batch)) == expected
    reference = reference_encoder(tokenizer, special_tokens=special_tokens)
    assert lists_of(reference.encode(batch)) == expected
    assert tokenizer.identity.eod_id in expected[-1]


@settings(deadline=None, max_examples=40)
@given(batch=batches)
def test_byte_level_tokens_decode_to_their_text(probe_tokenizer, batch):
    tokenizer, encoder = probe_tokenizer
    assert [decode(tokenizer, ids) for ids in lists_of(encoder.encode(batch))] == batch


@pytest.fixture(scope="module")
def probe_tokenizer(tmp_path_factory):
    size = len(probe()["model"]["vocab"])
    definition = probe(added_tokens=[added(size, "<|endoftext|>")], decoder=BYTE_LEVEL)
    tokenizer = written(tmp_path_factory.mktemp("decode"), definition)
    return tokenizer, fast_encoder(tokenizer, special_tokens=False)


def test_a_lone_surrogate_is_an_error_and_harms_no_later_batch(probe_tokenizer):
    tokenizer, fast = probe_tokenizer
    for encoder in (fast, reference_encoder(tokenizer, special_tokens=False)):
        expected = lists_of(encoder.encode(["before"]))
        with pytest.raises((UnicodeEncodeError, TypeError)):
            encoder.encode(["good", "bad \ud800"])
        assert lists_of(encoder.encode(["before"])) == expected


def test_a_crash_of_the_library_is_an_error(tmp_path, capfd):
    tokenizer = written(tmp_path, probe(post_processor=template("z", "A", ids={"a": [97]})))
    encoder = reference_encoder(tokenizer, special_tokens=True)
    with pytest.raises(TokenizerError, match="cannot encode a text: the library crashed"):
        encoder.encode(["x"])
    capfd.readouterr()


def test_merges_that_make_the_library_abort_are_refused(tmp_path):
    definition = characters(model_continuing_subword_prefix="##")
    tokenizer = written(tmp_path, definition)
    with pytest.raises(TokenizerError, match="must begin with the continuing subword prefix '##'"):
        reference_encoder(tokenizer, special_tokens=False)


def test_a_proper_subword_prefix_is_not_refused(tmp_path):
    definition = characters(
        model_continuing_subword_prefix="##",
        model_vocab={"<unk>": 0, "a": 1, "##b": 2, "ab": 3},
        model_merges=[["a", "##b"]],
        model_byte_fallback=False,
        added_tokens=[],
    )
    encoder = reference_encoder(written(tmp_path, definition), special_tokens=False)
    assert lists_of(encoder.encode(["ab", "a"])) == [[3], [1]]


def test_what_the_library_refuses_is_an_error(tmp_path):
    tokenizer = written(tmp_path, probe({"type": "Split"}))
    with pytest.raises(
        TokenizerError, match=r"tokenizers cannot load .*tokenizer\.json: .*(missing field|has no) `pattern`"
    ) as caught:
        reference_encoder(tokenizer, special_tokens=False)
    assert "damaged" in caught.value.hint


def test_without_fastokens_the_fast_engine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(
        FastEncoderRefusedError, match="fastokens, the library of the fast encoder, is not installed"
    ):
        fast_encoder(written(tmp_path, probe()), special_tokens=False)


def test_what_fastokens_refuses_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tokshard.text.tokenizer.fast.structure.refusal", lambda *_, **__: None)
    tokenizer = written(tmp_path, probe(normalizer={"type": "NFKD"}))
    with pytest.raises(FastEncoderRefusedError, match=r"fastokens cannot load .*NFKD"):
        fast_encoder(tokenizer, special_tokens=False)


@pytest.mark.parametrize(("given_threads", "expected"), [(None, "1"), ("3", "3")])
def test_fastokens_gets_one_thread_unless_told_otherwise(tmp_path, given_threads, expected):
    written(tmp_path, probe())
    program = (
        "import sys, os; from tokshard.text.tokenizer import definition, fast;"
        "t = definition.load_tokenizer(sys.argv[1], need_eod=False);"
        "assert 'fastokens' not in sys.modules and 'tokenizers' not in sys.modules;"
        "fast.fast_encoder(t, special_tokens=False);"
        "print(os.environ['FASTOKENS_BPE_THREADS'], 'tokenizers' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FASTOKENS")}
    if given_threads:
        environment["FASTOKENS_BPE_THREADS"] = given_threads
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "False"]


# Splicing


@given(lists=ragged, data=st.data())
def test_splicing_against_lists(lists, data):
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True).map(sorted)) if lists else []
    replacements = data.draw(
        st.lists(st.lists(st.integers(0, 9)), min_size=len(chosen), max_size=len(chosen))
    )
    expected = list(lists)
    for index, replacement in zip(chosen, replacements, strict=True):
        expected[index] = replacement

    spliced = _spliced(batch_of(lists), np.array(chosen, np.int64), batch_of(replacements))

    assert lists_of(spliced) == expected


# tiktoken


@pytest.fixture
def ranks(tmp_path):
    """A small tiktoken file of the encoding cl100k_base."""
    import base64

    tokens = [bytes((byte,)) for byte in range(256)] + [b"he", b"ll", b"hell", b" w", b"or", b" wor"]
    pairs = (
        bytes(pair) for key in b"aA1 !\n's/\r" for byte in range(256) for pair in ((key, byte), (byte, key))
    )
    tokens += dict.fromkeys(pair for pair in pairs if pair not in tokens)
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_tiktoken(ranks):
    pytest.importorskip("tiktoken")
    tokenizer = load_tokenizer(str(ranks))
    encoder = reference_encoder(tokenizer, special_tokens=False)
    batch = ["hello world", "", "<|endoftext|>", *random_texts(4, 100)]
    encoded = lists_of(encoder.encode(batch))
    assert encoded[0] == [258, 111, 261, 108, 100]
    assert tokenizer.identity.eod_id not in encoded[2]
    assert [decode(tokenizer, ids) for ids in encoded] == batch
    assert decode(tokenizer, [258, 100257, 100256]) == "hell<|endoftext|>\ufffd"
    with pytest.raises(FastEncoderRefusedError, match="does not support tiktoken tokenizers"):
        fast_encoder(tokenizer, special_tokens=False)


@pytest.mark.parametrize("name", ["r50k_base", "p50k_base", "cl100k_base", "o200k_base"])
def test_tiktoken_encodings_are_those_of_the_library(name, ranks, monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    openai_public = pytest.importorskip("tiktoken_ext.openai_public")
    small = tiktoken_ranks(ranks.read_bytes(), str(ranks))
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: small)
    theirs = getattr(openai_public, name)()
    ours = TIKTOKEN_ENCODINGS[name]
    assert ours.special_tokens == theirs["special_tokens"]

    def encoding(pattern):
        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=small, special_tokens={})

    shipped, plain = encoding(theirs["pat_str"]), encoding(ours.pattern)
    for text in random_texts(8, 3000):
        assert plain.encode_ordinary(text) == shipped.encode_ordinary(text)


def test_tiktoken_without_its_library(ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(MissingExtraError, match="requires tiktoken, which is not installed"):
        reference_encoder(load_tokenizer(str(ranks)), special_tokens=False)


# SentencePiece


@pytest.fixture(scope="module")
def piece_model(tmp_path_factory):
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("pieces")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(["hello world", "the quick brown fox", "a b c d e f g"] * 50))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "small"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder / "small.model"


def test_the_text_of_a_piece_has_its_leading_space(piece_model, tmp_path):
    import sentencepiece

    tokenizer = load_tokenizer(str(piece_model))
    library = sentencepiece.SentencePieceProcessor(model_file=str(piece_model))
    for token in range(library.vocab_size()):
        piece = library.id_to_piece(token)
        if not library.is_byte(token) and not library.is_control(token) and not library.is_unknown(token):
            assert token_text(tokenizer, token) == piece.replace("▁", " ")


def test_the_text_of_a_metaspace_token_has_its_leading_space(tmp_path):
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    definition = metaspace()
    with_decoder, without = {**definition, "decoder": decoder}, {**definition, "decoder": None}
    (tmp_path / "other").mkdir()
    decoded, plain = written(tmp_path, with_decoder), written(tmp_path / "other", without)
    pieces = definition["model"]["vocab"]
    assert any(piece.startswith("▁") and len(piece) > 1 for piece in pieces)
    for piece, token in list(pieces.items())[::4]:
        if "<" not in piece:  # special tokens are none of the model's pieces
            assert token_text(decoded, token) == piece.replace("▁", " ")
        assert token_text(plain, token) == piece


def test_sentencepiece(piece_model):
    import sentencepiece

    tokenizer = load_tokenizer(str(piece_model))
    library = sentencepiece.SentencePieceProcessor(model_file=str(piece_model))
    batch = ["hello world", "", "</s>", *random_texts(6, 100)]
    encoded = lists_of(reference_encoder(tokenizer, special_tokens=False).encode(batch))
    assert encoded == [library.encode_as_ids(text) for text in batch]
    assert tokenizer.identity.eod_id not in encoded[2]
    assert decode(tokenizer, encoded[0]) == "hello world"
    assert tokenizer.identity.vocab_size == library.vocab_size()
    assert tokenizer.identity.max_token_id == library.vocab_size() - 1
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (library.eos_id(), "</s>")
