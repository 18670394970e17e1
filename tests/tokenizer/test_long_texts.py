"""Long texts are encoded in pieces: their tokens are those of the whole text, for every tokenizer."""

from __future__ import annotations

import functools
import io
import random
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tokenizer_definitions import (
    ATOMS,
    BYTE_LEVEL,
    GPT2_BYTE_LEVEL,
    added,
    characters,
    definition_of,
    metaspace,
    probe,
    published,
    random_texts,
    sequence,
    split,
    template,
    written,
)
from support.tokenizer_files import byte_tokens, listed, write_json, write_lines
from support.trained_models import (
    ENGLISH,
    byte_model,
    sentencepiece_model,
    unigram_model,
    wordpiece_model,
)
from tokshard.errors import EncoderMismatchError
from tokshard.tokenizer import encoders, long_texts
from tokshard.tokenizer.boundaries import boundaries_of, vocabulary_rule_of, without_prefix
from tokshard.tokenizer.definition import load_tokenizer
from tokshard.tokenizer.encoders import EncodedBatch, fast_encoder_refusal
from tokshard.tokenizer.long_texts import LongTextEncoder
from tokshard.tokenizer.pieces import Boundaries, TextPiece
from tokshard.tokenizer.structure import KNOWN_PATTERNS

LLAMA = sequence(
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    key="normalizers",
)
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
FLAGS = [
    added(0, "<s>", normalized=False),
    added(1, "</s>", normalized=True),
    added(2, "<|x|>", lstrip=True),
    added(3, "hello", rstrip=True, normalized=False),
    added(4, "Zé", single_word=True),
    added(5, "  ", normalized=False),
]
BOS = template("<s>", "A", "</s>", ids={"<s>": [1], "</s>": [2]})
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def regex(pattern):
    return sequence(split(pattern), BYTE_LEVEL)


def unigram(**parts):
    part = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return definition_of(unigram_model(), pre_tokenizer=part, **parts)


def llama(**parts):
    _, vocabulary, merges = sentencepiece_model()
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return definition_of({**model, "vocab": vocabulary, "merges": merges}, normalizer=LLAMA, **parts)


def wordpiece():
    return definition_of(wordpiece_model(), normalizer=BERT, pre_tokenizer={"type": "BertPreTokenizer"})


DEFINITIONS = {
    **{f"pattern {n}": functools.partial(probe, regex(p)) for n, p in enumerate(sorted(KNOWN_PATTERNS))},
    "GPT-2": probe,
    "trained on bytes": lambda: definition_of(byte_model(), pre_tokenizer=GPT2_BYTE_LEVEL),
    "merges ignored": lambda: definition_of(
        {**byte_model(), "ignore_merges": True}, pre_tokenizer=GPT2_BYTE_LEVEL
    ),
    "prefix space": lambda: probe({**GPT2_BYTE_LEVEL, "add_prefix_space": True}),
    "added tokens": lambda: probe(added_tokens=FLAGS),
    "NFC": lambda: probe(normalizer={"type": "NFC"}, added_tokens=FLAGS),
    "NFKC, lowercase": lambda: probe(
        normalizer=sequence({"type": "NFKC"}, {"type": "Lowercase"}, key="normalizers"), added_tokens=FLAGS
    ),
    "digits": lambda: probe(sequence({"type": "Digits", "individual_digits": True}, GPT2_BYTE_LEVEL)),
    "inverted": lambda: probe(sequence(split(min(KNOWN_PATTERNS), "Removed", invert=True), GPT2_BYTE_LEVEL)),
    "Llama 2": llama,
    "Llama 2 with added tokens": lambda: llama(added_tokens=FLAGS),
    "tokens with spaces": lambda: characters(normalizer=LLAMA),
    "no bytes": lambda: characters(normalizer=LLAMA, model_byte_fallback=False),
    "Gemma": lambda: characters(normalizer=SPACES, pre_tokenizer=split(" ", "MergedWithPrevious", "String")),
    **{
        f"Metaspace {scheme} {splits}": functools.partial(metaspace, prepend_scheme=scheme, split=splits)
        for scheme in ("always", "first", "never")
        for splits in (True, False)
    },
    "Metaspace with added tokens": lambda: {**metaspace(), "added_tokens": FLAGS},
    "Unigram": unigram,
    "WordPiece": wordpiece,
}
FILES = {
    "cl100k": lambda folder: write_lines(folder / "cl100k_base.tiktoken", byte_tokens(3000)),
    "o200k": lambda folder: write_lines(folder / "o200k_base.tiktoken", byte_tokens(3000)),
    "TikTokenizer": lambda folder: write_json(folder / "v.json", listed(byte_tokens(131_072))),
    "r50k": lambda folder: write_lines(folder / "r50k_base.tiktoken", byte_tokens(3000)),
    "SentencePiece": lambda folder: write_model(folder, sentencepiece_model()[0]),
    "SentencePiece with NFKC": lambda folder: write_model(folder, normalizing_model(prefix=True)),
    "SentencePiece without prefix": lambda folder: write_model(folder, normalizing_model(prefix=False)),
}
PUBLISHED = ("gpt2", "llama2", "qwen2")


def write_model(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(content)
    return str(folder / "tokenizer.model")


@functools.cache
def normalizing_model(*, prefix):
    """A BPE model that normalizes with NFKC and removes spaces."""
    import sentencepiece

    model = io.BytesIO()
    lines = [line for text in [*random_texts(5, 400), *ENGLISH * 5] for line in text.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\0", "") for line in lines]),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        character_coverage=0.98,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=prefix,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return the tokenizer of a name, loaded once."""

    @functools.cache
    def load(name):
        folder = tmp_path_factory.mktemp("tokenizer")
        if name == "bytes":
            return load_tokenizer(None)
        if name in PUBLISHED:
            return load_tokenizer(str(published(name)), need_eod=False)
        if name.startswith(("Sentence", "Llama")):
            pytest.importorskip("sentencepiece")
        if name in FILES:
            pytest.importorskip("tiktoken")
            return load_tokenizer(FILES[name](folder), need_eod=False)
        definition = DEFINITIONS[name]()
        return written(folder, definition)

    return load


WORDS = [
    "the cat sat",
    " on a mat. ",
    "It's",
    "中文文本没有标点",
    "中文，标点。",
    "a  b",
    "x = f(1, 2)\n",
    "3.14 5",
    "a1b22c",
    "é ",
    "ok",
]
mixed = st.lists(st.sampled_from([*ATOMS, *WORDS]) | st.text(max_size=3), max_size=16).map("".join)


def mixed_texts(seed, count):
    chance = random.Random(seed)
    return ["".join(chance.choices([*ATOMS, *WORDS * 6], k=chance.randrange(30))) for _ in range(count)]


def long_encoder(tokenizer, encoder, reference=None, *, special_tokens=False):
    return LongTextEncoder(tokenizer, encoder, reference or encoder, special_tokens=special_tokens)


def in_pieces(encoder, text, *, compare=False):
    ids = [ids.tolist() for ids in encoder.encode(text, compare=compare, where="a.jsonl")]
    return list(chain.from_iterable(ids)), len(ids)


NAMES = ["bytes", *DEFINITIONS, *FILES, *PUBLISHED]


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_pieces_are_those_of_the_text(name, load, monkeypatch):
    tokenizer = load(name)
    reference = encoders.reference_encoder(tokenizer, special_tokens=False)
    encoder = long_encoder(tokenizer, reference)
    texts = mixed_texts(name, 100)
    cuts = 0
    for number, (text, expected) in enumerate(zip(texts, lists(reference.encode(texts)), strict=True)):
        monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", (1, 7)[number % 2])
        ids, pieces = in_pieces(encoder, text)
        assert ids == expected, text
        cuts += pieces - 1
    assert cuts > 100


def lists(encoded):
    return [part.tolist() for part in np.split(encoded.ids, encoded.offsets[1:-1])]


@pytest.mark.parametrize("name", ["trained on bytes", "Llama 2", "NFC", "Metaspace first True"])
@given(text=mixed, size=st.integers(1, 9))
def test_any_text(name, load, text, size):
    tokenizer = load(name)
    encoder = tool(tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PIECE_CHARACTERS", size)
        assert in_pieces(encoder, text)[0] == encoder._encoder.encode([text]).ids.tolist()


@functools.cache
def tool(tokenizer):
    return long_encoder(tokenizer, encoders.reference_encoder(tokenizer, special_tokens=False))


# Wrong boundaries, each of which the same comparison must catch.


def anywhere(boundaries, text, size, rule):
    begins = range(0, max(len(text) - size, 1), size)
    return [TextPiece(begin, min(begin + size, len(text))) for begin in begins]


def with_prefix(boundaries, text, size, rule):
    return [piece._replace(continues=False) for piece in PIECES(boundaries, text, size, rule)]


def with_space(boundaries, text, size, rule):
    pieces = list(PIECES(boundaries, text, size, rule))
    return [pieces[0], *(TextPiece(one.end, two.end, two.continues) for one, two in pairwise(pieces))]


def through_added_tokens(boundaries, text, size, rule):
    return PIECES(replace(boundaries, added_tokens=(), normalized_tokens=()), text, size, rule)


def without_vocabulary(boundaries, text, size, rule):
    return PIECES(boundaries, text, size, lambda: rule() and replace(rule(), tokens=[]))


PIECES = Boundaries.pieces
WRONG = {
    anywhere: [name for name in NAMES if name not in {"bytes", "pattern 7", *PUBLISHED}],
    with_prefix: ["Llama 2", "Metaspace always False", "SentencePiece"],
    with_space: ["Llama 2", "SentencePiece"],
    through_added_tokens: ["added tokens", "Llama 2 with added tokens", "TikTokenizer"],
    without_vocabulary: ["Llama 2", "Metaspace never False", "SentencePiece", "trained on bytes"],
}


@pytest.mark.parametrize(("wrong", "name"), [(wrong, name) for wrong in WRONG for name in WRONG[wrong]])
def test_wrong_boundaries_are_caught(wrong, name, load, monkeypatch):
    tokenizer = load(name)
    encoder = tool(tokenizer)
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 1)
    monkeypatch.setattr(Boundaries, "pieces", wrong)
    texts = [*mixed_texts(name, 50), "日本語のテキストと中文文本。" * 3]
    expected = lists(encoder._encoder.encode(texts))
    found = [in_pieces(encoder, text)[0] for text in texts]
    assert found != expected


# Special tokens, the comparison with the reference, and texts without boundaries


@pytest.mark.parametrize("make", [encoders.fast_encoder, encoders.reference_encoder])
@pytest.mark.parametrize("name", ["Llama 2", "GPT-2", "Metaspace always True"])
def test_special_tokens_are_added_to_the_whole_text(name, make, tmp_path, monkeypatch):
    if name == "Llama 2":
        pytest.importorskip("sentencepiece")
    definition = {**DEFINITIONS[name](), "post_processor": BOS}
    if name == "Llama 2":
        definition["added_tokens"] = [added(n, text) for n, text in enumerate(("<unk>", "<s>", "</s>"))]
    tokenizer = written(tmp_path, definition)
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 3)
    encoder = make(tokenizer, special_tokens=True)
    reference = encoders.reference_encoder(tokenizer, special_tokens=True)
    pieces = long_encoder(tokenizer, encoder, reference, special_tokens=True)
    for text in mixed_texts(name, 60):
        ids, _ = in_pieces(pieces, text, compare=True)
        assert ids == reference.encode([text]).ids.tolist()
        assert (ids[0], ids[-1]) == (1, 2)


class LyingEncoder:
    """Wrong about texts with a certain word."""

    name = "fast"

    def __init__(self, honest, word):
        self._honest, self._word = honest, word

    def encode(self, texts):
        encoded = self._honest.encode(texts)
        wrong = any(self._word in text for text in texts)
        return EncodedBatch(encoded.ids ^ np.uint32(wrong), encoded.offsets)


@pytest.mark.parametrize(("separator", "place"), [(" ", 0), (" ", 999), ("", 0), ("", 500), ("", 999)])
def test_a_wrong_piece_is_found(separator, place, tmp_path, monkeypatch):
    tokenizer = written(tmp_path, probe())
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 60)
    monkeypatch.setattr(long_texts, "LONG_CHARACTERS", 120)
    words = ["aaaaa"] * 1000
    words[place] = "wrong"
    reference = encoders.reference_encoder(tokenizer, special_tokens=False)
    encoder = long_encoder(tokenizer, LyingEncoder(reference, "wrong"), reference)
    text = separator.join(words)
    assert in_pieces(encoder, text)[1] == (91 if separator else 1)
    with pytest.raises(EncoderMismatchError, match=r"disagree in a.jsonl, at token 0 of the text"):
        in_pieces(encoder, text, compare=True)


def test_all_of_few_pieces_are_compared_and_some_of_many(tmp_path, monkeypatch):
    class Counting(LyingEncoder):
        calls = 0

        def encode(self, texts):
            self.calls += 1
            return super().encode(texts)

    tokenizer = written(tmp_path, probe())
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 60)
    honest = encoders.reference_encoder(tokenizer, special_tokens=False)
    for words, compared in ((100, 9), (100_000, 17)):
        reference = Counting(honest, "wrong")
        encoder = long_encoder(tokenizer, LyingEncoder(honest, "wrong"), reference)
        in_pieces(encoder, " ".join(["aaaaa"] * words), compare=True)
        assert reference.calls == compared


UNKNOWN = {
    "another pattern": lambda: probe(regex(r"\w+|\W+")),
    "a pattern with joined pieces": lambda: probe(
        sequence(split(r"\p{N}", "MergedWithPrevious"), BYTE_LEVEL)
    ),
    "another replacement": lambda: probe(
        normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    ),
    "dropout": lambda: probe(model_dropout=0.5),
    "Strip": lambda: probe(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
    "characters before bytes": lambda: probe(sequence(GPT2_BYTE_LEVEL, split(min(KNOWN_PATTERNS)))),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_tokenizers_with_unknown_parts_have_no_boundaries(name, tmp_path):
    assert boundaries_of(written(tmp_path, UNKNOWN[name]())) is None


def test_a_unigram_model_has_no_boundaries_but_those_of_its_pre_tokenizer(tmp_path):
    definition = unigram()
    definition["pre_tokenizer"]["split"] = False
    tokenizer = written(tmp_path, definition)
    assert boundaries_of(tokenizer).words is None
    assert vocabulary_rule_of(tokenizer) is None


def test_hexadecimal_digits_are_cut_before_a_digit(tmp_path):
    tokenizer = written(tmp_path, definition_of(byte_model(), pre_tokenizer=GPT2_BYTE_LEVEL))
    text = random.Random(1).randbytes(5000).hex()
    pieces = list(boundaries_of(tokenizer).pieces(text, 1000, lambda: None))
    assert len(pieces) == 9
    assert all(text[piece.end - 1] in "abcdef" and text[piece.end].isdigit() for piece in pieces[:-1])


def test_a_run_of_one_letter_is_one_piece(tmp_path):
    tokenizer = written(tmp_path, definition_of(byte_model(), pre_tokenizer=GPT2_BYTE_LEVEL))
    rule = vocabulary_rule_of(tokenizer)
    text = "a" * 50_000 + " " + "b" * 50_000
    pieces = list(boundaries_of(tokenizer).pieces(text, 1000, lambda: rule))
    assert [piece.end for piece in pieces] == [50_000, len(text)]


@pytest.mark.parametrize("kind", ["Prepend", "Metaspace"])
def test_the_tokenizer_of_a_piece_puts_no_space_in_front(kind, tmp_path):
    tokenizer = written(tmp_path, characters(normalizer=LLAMA) if kind == "Prepend" else metaspace())
    encoder = encoders.reference_encoder(without_prefix(tokenizer), special_tokens=False)
    whole = encoders.reference_encoder(tokenizer, special_tokens=False)
    assert encoder.encode([" a b"]).ids.tolist() == whole.encode(["a b"]).ids.tolist()
    assert encoder.encode(["a b"]).ids.tolist() != whole.encode(["a b"]).ids.tolist()
    assert fast_encoder_refusal(without_prefix(tokenizer), special_tokens=False) is None
