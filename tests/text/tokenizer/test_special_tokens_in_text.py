"""Text that spells a special token, encoded as ordinary text: ``--special-tokens-in-text split``."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from support.command_line import failure, json_of, tokshard
from support.tokenize_runs import manifest, write_jsonl
from support.tokenizer_definitions import (
    added,
    characters,
    lists_of,
    metaspace,
    plain_library,
    probe,
    published,
    random_texts,
    template,
    written,
)
from tokshard import IndexedDataset
from tokshard.text.tokenizer.definition import load_tokenizer, reopen_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder
from tokshard.text.tokenizer.fast import fast_encoder, fast_encoder_refusal

SPLIT = ("--special-tokens-in-text", "split")
TEXTS = ["a<|x|>b", "<|x|>", "<|x|><s></s>", "<s>a </s>", "a<x>b<|x|>", "<|x|", "plain", "", " <s> ", "<S>"]
SIZE = len(probe()["model"]["vocab"])
TOKENS = [added(SIZE, "<|x|>"), added(SIZE + 1, "<s>"), added(SIZE + 2, "<x>", special=False)]
NORMALIZED = [added(SIZE, "<|x|>", normalized=True), added(SIZE + 1, "<s>", normalized=True)]
OVERLAPPING = [added(SIZE, "<s>"), added(SIZE + 1, "<s></s>"), added(SIZE + 2, "s>a", special=False)]
STRIPPING = [added(SIZE, "<|x|>", lstrip=True), added(SIZE + 1, "<s>", rstrip=True, single_word=True)]
BEGINNING = {"post_processor": template("<s>", "A", ids={"<s>": [SIZE + 1]}), "added_tokens": TOKENS}
DEFINITIONS = {
    "special and other added tokens": probe(added_tokens=TOKENS),
    "normalized": probe(added_tokens=NORMALIZED, normalizer={"type": "Lowercase"}),
    "normalized without a normalizer": probe(added_tokens=NORMALIZED),
    "overlapping": probe(added_tokens=OVERLAPPING),
    "stripping": probe(added_tokens=STRIPPING),
    "characters": characters(),
    "metaspace": metaspace(),
    "beginning": probe(**BEGINNING),
}


def library_of(definition):
    library = plain_library(definition)
    library.encode_special_tokens = True
    return library


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_both_encoders_split_special_tokens_as_the_library(name, special_tokens, tmp_path):
    definition = DEFINITIONS[name]
    tokenizer = written(tmp_path, definition).splitting_special_tokens()
    batch = [*TEXTS, *random_texts(5, 400)]
    library = library_of(definition)
    expected = [library.encode(text, add_special_tokens=special_tokens).ids for text in batch]
    assert lists_of(reference_encoder(tokenizer, special_tokens=special_tokens).encode(batch)) == expected
    if fast_encoder_refusal(tokenizer, special_tokens=special_tokens) is None:
        assert lists_of(fast_encoder(tokenizer, special_tokens=special_tokens).encode(batch)) == expected
    else:
        assert name == "stripping"


def test_a_text_that_spells_a_special_token_is_encoded_otherwise(tmp_path):
    tokenizer = written(tmp_path, DEFINITIONS["special and other added tokens"])
    encoders = (
        reference_encoder(one, special_tokens=False)
        for one in (tokenizer, tokenizer.splitting_special_tokens())
    )
    (encoded,), (split,) = (lists_of(encoder.encode(["<|x|><x>"])) for encoder in encoders)
    assert encoded == [SIZE, SIZE + 2]
    assert SIZE not in split
    assert split[-1] == SIZE + 2, "added tokens that are not special are found as before"


def test_the_treatment_is_part_of_the_identity(tmp_path):
    plain = written(tmp_path, DEFINITIONS["overlapping"])
    tokenizer = plain.splitting_special_tokens()
    assert tokenizer.identity.special_tokens_in_text == "split"
    assert tokenizer.identity != plain.identity
    again = reopen_tokenizer(plain.path, tokenizer.identity, tokenizer.sha256)
    encoded = [reference_encoder(one, special_tokens=False).encode(TEXTS) for one in (tokenizer, again)]
    assert lists_of(encoded[0]) == lists_of(encoded[1])


def test_tokenizers_that_find_no_special_tokens_stay_as_they_are(tmp_path):
    for argument in (None, "null:9"):
        tokenizer = load_tokenizer(argument)
        assert tokenizer.splitting_special_tokens() is tokenizer


# The command


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    return Path(written(directory, DEFINITIONS["special and other added tokens"]).path)


def tokenized(directory, tokenizer_path, *options, texts=TEXTS, name="out"):
    corpus = write_jsonl(directory / "corpus.jsonl", [{"text": text} for text in texts])
    words = ("tokenize", corpus, "--tokenizer", tokenizer_path, "--eod", "<|x|>", "-o", directory / name)
    return tokshard(*words, *options), directory / name


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("encoder", ["reference", "fast"])
def test_the_command_splits_special_tokens(encoder, workers, tokenizer_path, tmp_path):
    texts = [text for text in (*TEXTS, *random_texts(6, 200)) if text]  # empty documents have no tokens
    options = (*SPLIT, "--encoder", encoder, "--workers", workers, "--unit-size", "2000")
    done, prefix = tokenized(tmp_path, tokenizer_path, *options, texts=texts)
    assert done.returncode == 0, done.stderr
    library = library_of(DEFINITIONS["special and other added tokens"])
    dataset = IndexedDataset(prefix)
    for number, text in enumerate(texts):
        expected = [*library.encode(text, add_special_tokens=False).ids, SIZE]
        assert np.asarray(dataset[number]).tolist() == expected, text
    assert manifest(prefix)["tokenizer"]["special_tokens_in_text"] == "split"
    assert manifest(prefix)["options"]["special_tokens_in_text"] == "split"
    deep = json_of(tokshard("verify", prefix, "--level", "deep", "--json"))
    assert deep["products"][0]["findings"] == []


def test_tokenize_and_verify_offer_to_split_special_tokens(tokenizer_path, tmp_path):
    done, prefix = tokenized(tmp_path, tokenizer_path)
    assert "contains the EOD token 4 times" in done.stderr
    assert "run again with --special-tokens-in-text split and --force" in done.stderr
    text = tokshard("verify", prefix, "--level", "deep").stdout
    assert "hint: tokenize again with --special-tokens-in-text split" in text
    done, prefix = tokenized(tmp_path, tokenizer_path, *SPLIT, "--force")
    assert done.returncode == 0
    assert "warning" not in done.stderr


def test_no_split_is_offered_where_text_has_no_special_tokens(tmp_path):
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "1 2 8"}, {"text": "3"}])
    done = tokshard("tokenize", corpus, "--tokenizer", "null:9", "--eod", "8", "-o", tmp_path / "out")
    assert "contains the EOD token 1 time" in done.stderr
    assert "--special-tokens-in-text" not in done.stderr


def test_an_output_of_the_other_treatment_is_not_replaced(tokenizer_path, tmp_path):
    tokenized(tmp_path, tokenizer_path)
    code, error, hint = failure(tokenized(tmp_path, tokenizer_path, *SPLIT)[0])
    assert code == 4
    assert "--special-tokens-in-text was 'encode' and is now 'split'" in error
    assert "--force" in hint


def test_the_preset_refuses_to_split_special_tokens(tokenizer_path, tmp_path):
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "a"}])
    words = ("tokenize", "--preset", "megatron", "--input", corpus, "--output-prefix", tmp_path / "out")
    types = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer_path.parent)
    code, error, hint = failure(tokshard(*words, *types, *SPLIT))
    assert code == 2
    assert "--preset megatron cannot be used with --special-tokens-in-text split" in error
    assert hint


def test_datasets_of_both_treatments_are_merged_with_a_warning(tokenizer_path, tmp_path):
    prefixes = [tokenized(tmp_path, tokenizer_path, *SPLIT, name="split")[1]]
    prefixes.append(tokenized(tmp_path, tokenizer_path, name="encode")[1])
    done = tokshard("merge", *prefixes, "-o", tmp_path / "both")
    assert done.returncode == 0, done.stderr
    assert "encoded with --special-tokens-in-text split, unlike the others: " in done.stderr
    merged = manifest(tmp_path / "both")
    assert "special_tokens_in_text" not in merged["tokenizer"]
    treatments = [part["identity"].get("special_tokens_in_text") for part in merged["merged_tokenizers"]]
    assert treatments == ["split", None]


@pytest.mark.parametrize("name", ["gpt2", "llama2", "qwen2"])
def test_published_tokenizers_split_special_tokens_as_the_library(name):
    path = published(name)
    tokenizer = load_tokenizer(str(path), need_eod=False).splitting_special_tokens()
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    texts = ["a<|endoftext|>b", "<s>a</s> b", "|||EMAIL_ADDRESS||| <unk>", *random_texts(7, 300)]
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    assert lists_of(fast_encoder(tokenizer, special_tokens=False).encode(texts)) == expected
