"""Tokenizer files other than tokenizer.json, against the libraries that they are made for."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from support.tokenize_runs import documents, manifest, run_tokenize, write_jsonl
from support.tokenizer_definitions import (
    GPT2_BYTE_LEVEL,
    added,
    lists_of,
    probe,
    published,
    random_texts,
    written,
)
from support.tokenizer_files import (
    LLAMA3_SPECIAL,
    SPELLED,
    byte_tokens,
    encoded_by_llama3,
    encoded_by_tiktokenizer,
    listed,
    split_in_two,
    tiktoken_settings,
    write_json,
    write_lines,
)
from tokshard.checks.inspect.datasets import inspect_tokenizer, tokenizer_of
from tokshard.dataset.products import recognize
from tokshard.errors import InputError, MissingExtraError, TokenizerError, UsageError
from tokshard.text.tokenizer.definition import load_tokenizer, reopen_tokenizer
from tokshard.text.tokenizer.encoders import decode, reference_encoder, token_text
from tokshard.text.tokenizer.fast import fast_encoder

BATCH = [*random_texts(51, 1500), *SPELLED, "", " "]
TOKENS = byte_tokens(2000)


def encoded(tokenizer, batch=BATCH, *, special_tokens=False):
    return lists_of(reference_encoder(tokenizer, special_tokens=special_tokens).encode(batch))


def check(tokenizer, expected, batch=BATCH):
    """Compare ids, those of a worker that opens the file again, and the decoded text."""
    assert encoded(tokenizer, batch) == expected
    assert tokenizer.definition_path("unused") == tokenizer.path
    again = reopen_tokenizer(tokenizer.path, tokenizer.identity, tokenizer.sha256)
    assert encoded(again, batch) == expected
    assert [decode(again, ids) for ids in expected] == batch
    assert inspect_tokenizer(tokenizer.argument).identity.definition_sha256
    assert token_text(tokenizer, tokenizer.identity.eod_id) == tokenizer.identity.eod_token


# Llama 3


def test_llama_3(tmp_path):
    pytest.importorskip("tiktoken")
    tokens = byte_tokens(128_000)
    path = write_lines(tmp_path / "tokenizer.model", tokens)
    tokenizer = load_tokenizer(path)
    check(tokenizer, encoded_by_llama3(tokens, BATCH))
    assert (tokenizer.identity.kind, tokenizer.identity.name) == ("tiktoken", "llama3")
    assert (tokenizer.identity.vocab_size, tokenizer.identity.max_token_id) == (128256, 128255)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (128001, "<|end_of_text|>")
    assert [decode(tokenizer, [128000 + n]) for n in range(256)] == LLAMA3_SPECIAL
    assert encoded(tokenizer, ["", "a"], special_tokens=True) == [[128000], [128000, ord("a")]]
    assert load_tokenizer(str(tmp_path)).identity == tokenizer.identity
    assert "does not support tiktoken tokenizers" in inspect_tokenizer(path).encoder_detail


def test_another_model_file_of_lines_is_not_taken_for_llama_3(tmp_path):
    path = write_lines(tmp_path / "tokenizer.model", byte_tokens(127_999))
    with pytest.raises(
        TokenizerError, match=r"tokenizer.model of Llama 3, which has 128,000 tokens, got 127,999"
    ):
        load_tokenizer(path)


# Files NAME.tiktoken


def test_an_id_that_is_a_special_token_is_named(tmp_path):
    path = tmp_path / "r50k_base.tiktoken"
    write_lines(path, TOKENS[:256])
    path.write_bytes(path.read_bytes() + b"YWI= 50256\n")
    with pytest.raises(TokenizerError, match=r"the id 50256, which is a special token of r50k_base"):
        load_tokenizer(str(path))


# Megatron's TikTokenizer

SETTINGS = [
    {"vocab_size": 2100, "num_special_tokens": 1000},
    {"vocab_size": 1500, "num_special_tokens": 7, "pattern": "v1"},
    {"vocab_size": 1256, "num_special_tokens": 1000, "pattern": "v2"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_tiktokenizer(settings, tmp_path):
    pytest.importorskip("tiktoken")
    path = write_json(tmp_path / "vocab.json", listed(TOKENS))
    tokenizer = load_tokenizer(path, tiktoken=tiktoken_settings(**settings))
    expected = encoded_by_tiktokenizer(TOKENS, BATCH, **settings)
    assert encoded(tokenizer) == expected
    again = reopen_tokenizer(path, tokenizer.identity, tokenizer.sha256)
    assert encoded(again, special_tokens=True) == expected  # text_to_ids adds none
    assert [decode(again, ids) for ids in expected] == BATCH
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (2, "</s>")
    assert (tokenizer.identity.vocab_size, tokenizer.identity.max_token_id + 1) == (
        settings["vocab_size"],
    ) * 2
    assert tokenizer.like(tokenizer.identity) is tokenizer
    other = load_tokenizer(
        path, tiktoken=tiktoken_settings(pattern="v1", num_special_tokens=10, vocab_size=300)
    )
    assert other.identity.definition_sha256 != tokenizer.identity.definition_sha256
    assert other.like(tokenizer.identity).identity.definition_sha256 == tokenizer.identity.definition_sha256


def test_the_defaults_of_a_tiktokenizer_are_megatrons(tmp_path):
    tokens = byte_tokens(131_072)
    tokenizer = load_tokenizer(write_json(tmp_path / "x.json", listed(tokens)))
    assert tokenizer.identity.name == "TikTokenizer-v2-1000-131072"
    assert encoded(tokenizer, BATCH[:300]) == encoded_by_tiktokenizer(tokens, BATCH[:300])


def test_a_dataset_of_other_settings_is_decoded_with_them(tmp_path):
    path = write_json(tmp_path / "v.json", listed(TOKENS))
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"text": "hello world <mask>"}])
    prefix = str(tmp_path / "out")
    settings = tiktoken_settings(pattern="v1", num_special_tokens=20, vocab_size=900)
    run_tokenize(corpus, prefix, tokenizer=path, workers=1, tiktoken=settings)
    for argument in (None, path):
        tokenizer = tokenizer_of(prefix, argument)
        assert decode(tokenizer, documents(prefix)[0][0]) == "hello world <mask></s>"
    assert manifest(prefix)["tokenizer"]["name"] == "TikTokenizer-v1-20-900"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tokens: tokens[:100], "has 100 tokens, too few for a vocabulary of 131,072"),
        (lambda tokens: [*tokens[:300], tokens[299]], "token 300 of .* must have rank 300"),
        (lambda tokens: [tokens[0], tokens[0]], "token 1 of .* must have rank 1"),
        (lambda tokens: [*tokens[:256], {**tokens[256], "token_bytes": "*"}], "token 256 of"),
        (lambda tokens: [*tokens[:256], {**tokens[0], "rank": 256}], "has a token twice"),
        (lambda tokens: [*tokens[:256], 5], "token 256 of"),
    ],
)
def test_bad_lists_of_tokens(change, message, tmp_path):
    path = write_json(tmp_path / "v.json", change(listed(TOKENS)))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(path)


@pytest.mark.parametrize("numbers", [(3, 500), (600, 500), (500, 500)])
def test_settings_that_do_not_fit(numbers, tmp_path):
    path = write_json(tmp_path / "v.json", listed(TOKENS))
    with pytest.raises(
        TokenizerError, match="must have at least 7 special tokens and more tokens than those"
    ):
        load_tokenizer(path, tiktoken=tiktoken_settings(num_special_tokens=numbers[0], vocab_size=numbers[1]))


def test_settings_require_the_file_of_a_tiktokenizer(tmp_path):
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"text": "a"}])
    written(tmp_path, probe(added_tokens=[added(0, "</s>")]))
    for tokenizer in (None, str(tmp_path / "tokenizer.json")):
        settings = tiktoken_settings(vocab_size=300)
        with pytest.raises(UsageError, match="--vocab-size requires the file of a TikTokenizer"):
            run_tokenize(corpus, str(tmp_path / "o"), tokenizer=tokenizer, tiktoken=settings)


# Files of other forms


def test_tekken_json_is_refused_with_a_hint(tmp_path):
    path = write_json(tmp_path / "tekken.json", {"config": {"pattern": "."}, "vocab": listed(TOKENS[:300])})
    with pytest.raises(
        TokenizerError, match=r"tekken.json has no model: it is not a tokenizer.json"
    ) as caught:
        load_tokenizer(path)
    assert caught.value.hint.startswith("pass the tokenizer.json of the same model")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json not found in the directory"):
        load_tokenizer(str(tmp_path))


# GPT-2's vocab.json and merges.txt


def gpt2_like():
    definition = probe(GPT2_BYTE_LEVEL, post_processor={**GPT2_BYTE_LEVEL, "trim_offsets": False})
    token = added(len(definition["model"]["vocab"]), "<|endoftext|>", normalized=True)
    return {**definition, "added_tokens": [token]}


@pytest.mark.parametrize("name", [None, "gpt2"])
def test_vocabulary_and_merges_have_the_identity_of_the_tokenizer_json(name, tmp_path):
    definition = gpt2_like() if name is None else json.loads(published(name).read_bytes())
    (tmp_path / "one").mkdir()
    single = written(tmp_path / "one", definition)
    vocabulary, merges = split_in_two(tmp_path / "two", definition)
    (tmp_path / "three").mkdir()
    moved = shutil.move(merges, tmp_path / "three" / "m.txt")

    tokenizer = load_tokenizer(vocabulary, merges=str(moved))
    shutil.copy(moved, merges)
    for other in (load_tokenizer(str(tmp_path / "two")), load_tokenizer(vocabulary)):
        assert other.identity == tokenizer.identity

    assert tokenizer.identity.definition_sha256 == single.identity.definition_sha256
    assert tokenizer.identity.eod_token == "<|endoftext|>"
    expected = encoded(single)
    assert encoded(tokenizer) == expected
    assert lists_of(fast_encoder(tokenizer, special_tokens=False).encode(BATCH)) == expected
    effective = tokenizer.definition_path(str(tmp_path))
    assert effective == str(tmp_path / f"{tokenizer.sha256}.json")
    assert encoded(reopen_tokenizer(effective, tokenizer.identity, tokenizer.sha256)) == expected


def test_two_files_of_megatrons_names(tmp_path):
    split_in_two(tmp_path, gpt2_like(), ("gpt2-vocab.json", "gpt2-merges.txt"))
    assert load_tokenizer(str(tmp_path)).identity.eod_token == "<|endoftext|>"
    split_in_two(tmp_path, gpt2_like(), ("other-vocab.json", "other-merges.txt"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json not found in the directory"):
        load_tokenizer(str(tmp_path))


def test_a_run_with_two_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", "/dev/null/cache")  # workers read the output's directory
    definition = gpt2_like()
    (tmp_path / "one").mkdir()
    single = written(tmp_path / "one", definition)
    vocabulary, merges = split_in_two(tmp_path / "two", definition, ("v", "m"))
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"text": text} for text in BATCH])
    run_tokenize(corpus, str(tmp_path / "a"), tokenizer=single.path, workers=2)
    run_tokenize(corpus, str(tmp_path / "b"), vocab_file=vocabulary, merge_file=merges, workers=2)
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    again = run_tokenize(corpus, str(tmp_path / "a"), vocab_file=vocabulary, merge_file=merges, workers=2)
    assert again.action == "found"
    with pytest.raises(
        UsageError, match=r"--transformers requires a tokenizer\.json, or a directory .*, got .*/v\n"
    ):
        run_tokenize(
            corpus, str(tmp_path / "a"), vocab_file=vocabulary, merge_file=merges, transformers="python"
        )


def vocab_pair(directory):
    """Write a directory with the two files of GPT-2; return it."""
    split_in_two(directory / "pair", gpt2_like())
    return str(directory / "pair")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_file": "v"}, "--vocab-file requires --merge-file"),
        ({"merge_file": "m"}, "--merge-file requires --vocab-file"),
        (
            {"vocab_file": "v", "merge_file": "m", "tokenizer": "t"},
            "--vocab-file cannot be used with --tokenizer",
        ),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        run_tokenize("c.jsonl", "o", **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "v3"}, "--tiktoken-pattern must be one of v1, v2, got 'v3'"),
        ({"num_special_tokens": 0}, "--tiktoken-num-special-tokens must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(UsageError, match=message):
        tiktoken_settings(**settings)


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("[]", "#version: 0.2\n", "is not a JSON object"),
        ('{"a": "b"}', "#version: 0.2\n", "it must have an id for each token"),
        ('{"a": 0}', "a b\n", "must begin with a line '#version: 0.2' and end with a line break"),
        ('{"a": 0}', "#version: 0.2\na b", "must begin with a line"),
        ('{"a": 0}', "", "must begin with a line"),
        ('{"a": 0}', "#version: 0.2\na b c\n", r"merges.txt:2 must have two tokens, got 'a b c'"),
        ('{"a": 0}', "#version: 0.2\n\na b\n", r"merges.txt:2 must have two tokens, got ''"),
        ('{"a": 0}', b"#version\n\xff\n", "is not UTF-8 text"),
    ],
)
def test_bad_files_of_gpt_2(vocabulary, merges, message, tmp_path):
    (tmp_path / "vocab.json").write_text(vocabulary)
    content = merges if isinstance(merges, bytes) else merges.encode()
    (tmp_path / "merges.txt").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(tmp_path))


def test_a_vocabulary_without_its_merges(tmp_path):
    path = write_json(tmp_path / "vocab.json", {"a": 0})
    with pytest.raises(TokenizerError, match=r"it is not a tokenizer\.json") as caught:
        load_tokenizer(path)
    assert "--vocab-file VOCAB --merge-file MERGES" in caught.value.hint


# Directories


@pytest.mark.parametrize(
    ("name", "settings", "setting"),
    [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Qwen2Tokenizer"},
            "vocab.json of Qwen2Tokenizer without",
        ),
        ("config.json", {"model_type": "roberta"}, "vocab.json of roberta without a tokenizer.json"),
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space True"),
        ("tokenizer_config.json", {"add_bos_token": True}, "add_bos_token True"),
        ("special_tokens_map.json", {"pad_token": "<pad>"}, "pad_token '<pad>', which is not an added token"),
        ("added_tokens.json", {"<x>": 9}, "added_tokens.json '<x>', which is not an added token"),
    ],
)
def test_a_directory_that_is_not_gpt_2s_requires_transformers(
    name, settings, setting, tmp_path, without_transformers
):
    vocabulary, _ = split_in_two(tmp_path, gpt2_like())
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"} | settings)
    if name != "tokenizer_config.json":
        os.unlink(tmp_path / "tokenizer_config.json")
        write_json(tmp_path / name, settings)
    with pytest.raises(MissingExtraError, match=f"{re.escape(setting)}.* requires transformers"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(vocabulary).identity.eod_token == "<|endoftext|>"


def test_inspect_recognizes_a_directory_by_the_names_of_its_files(tmp_path):
    write_json(tmp_path / "vocab.json", {"a": 0})
    with pytest.raises(InputError, match="it is not a dataset, tokenizer"):
        recognize(str(tmp_path))
    (tmp_path / "merges.txt").write_text("")
    assert recognize(str(tmp_path)) == "tokenizer"


def test_the_first_definition_of_a_directory_is_used(tmp_path):
    write_lines(tmp_path / "tokenizer.model", byte_tokens(128_000))
    assert load_tokenizer(str(tmp_path)).identity.name == "llama3"
    split_in_two(tmp_path, gpt2_like())
    assert load_tokenizer(str(tmp_path)).path == str(tmp_path / "vocab.json")
    written(tmp_path, gpt2_like())
    assert load_tokenizer(str(tmp_path)).path == str(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("name", ["vocab.txt", "spiece.model", "sentencepiece.bpe.model", "source.spm"])
def test_a_directory_that_only_a_class_of_transformers_reads(name, tmp_path, without_transformers):
    (tmp_path / name).write_text("a")
    with pytest.raises(
        MissingExtraError, match=rf"\({name} without a tokenizer\.json\) requires transformers"
    ):
        load_tokenizer(str(tmp_path))


def test_a_directory_without_a_tokenizer(tmp_path):
    (tmp_path / "README.md").write_text("")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json not found in the directory") as caught:
        load_tokenizer(str(tmp_path))
    assert "pass a tokenizer.json, its directory" in caught.value.hint


# SentencePiece


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A SentencePiece model as Llama 2 has one."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "corpus.txt").write_text("\n".join(text.replace("\n", " ") for text in random_texts(2, 2000)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return folder / "tokenizer.model"


def directory_of(model, tmp_path, **settings):
    shutil.copy(model, tmp_path)
    if settings:
        write_json(tmp_path / "tokenizer_config.json", settings)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("settings", "prefix", "suffix"),
    [
        ({}, [1], []),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, [], []),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": True}, [1], [2]),
        ({"add_bos_token": None, "add_eos_token": None, "eos_token": {"content": "<unk>"}}, [1], []),
        ({"bos_token": "<unk>", "legacy": True}, [0], []),
    ],
)
def test_the_special_tokens_of_a_sentencepiece_model(settings, prefix, suffix, model, tmp_path):
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    directory = directory_of(model, tmp_path, **settings)
    tokenizer = load_tokenizer(directory if not settings else os.path.join(directory, "tokenizer.model"))
    plain = [library.encode(text) for text in BATCH]
    assert encoded(tokenizer) == plain
    assert encoded(tokenizer, special_tokens=True) == [[*prefix, *ids, *suffix] for ids in plain]
    assert (tokenizer.identity.kind, tokenizer.identity.vocab_size) == ("sentencepiece", 900)
    assert tokenizer.identity.eod_token == ("<unk>" if "eos_token" in settings else "</s>")


def test_a_sentencepiece_directory_with_settings_requires_transformers(model, tmp_path, without_transformers):
    directory = directory_of(model, tmp_path, tokenizer_class="LlamaTokenizer")
    with pytest.raises(MissingExtraError, match=r"\(tokenizer\.model without a tokenizer\.json\) requires"):
        load_tokenizer(directory)
    assert load_tokenizer(os.path.join(directory, "tokenizer.model")).identity.vocab_size == 900
    assert load_tokenizer(directory, files_beside=False).identity.vocab_size == 900


def test_names_with_versions_are_models(model, tmp_path):
    path = shutil.copy(model, tmp_path / "tokenizer.model.v3")
    assert load_tokenizer(str(path)).identity.kind == "sentencepiece"


# --special-tokens


def test_special_tokens_are_added_or_refused(model, tmp_path):
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"text": "hello"}])
    cl100k = write_lines(tmp_path / "cl100k_base.tiktoken", TOKENS)
    (tmp_path / "t5").mkdir()
    foreign = os.path.join(
        directory_of(model, tmp_path / "t5", tokenizer_class="T5Tokenizer"), "tokenizer.model"
    )
    for tokenizer in (None, cl100k, foreign):
        with pytest.raises(UsageError, match="--special-tokens is not supported with") as caught:
            run_tokenize(corpus, str(tmp_path / "o"), tokenizer=tokenizer, special_tokens=True)
        assert "leave out --special-tokens" in caught.value.hint
        assert not (tmp_path / "o.tokshard").exists()
    run_tokenize(corpus, str(tmp_path / "o"), tokenizer=str(model), special_tokens=True, workers=1)
    (tokens,) = documents(tmp_path / "o")[0]
    assert (tokens[0], tokens[-1]) == (1, 2)
    assert manifest(tmp_path / "o")["tokenizer"]["prefix_ids"] == [1]
    assert manifest(tmp_path / "o")["options"]["special_tokens"] is True


# The Hub, offline

HUB = """
import sys
from tokshard.text.tokenizer.definition import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
print(tokenizer.identity.definition_sha256, tokenizer.path)
"""


def test_two_files_of_the_hub(tmp_path):
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "models--acme--tiny"
    snapshot = repository / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    vocabulary, _ = split_in_two(snapshot, gpt2_like())
    environment = os.environ | {
        "HF_HUB_CACHE": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", HUB, "hf:acme/tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = load_tokenizer(vocabulary)
    assert done.stdout.split() == [expected.identity.definition_sha256, vocabulary]
