import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tokenizer_definitions import (
    added,
    characters,
    definition_of,
    probe,
    published,
    written,
)
from tokshard.core.codec import decode, encode
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer import files as module
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.eod import KNOWN_EODS
from tokshard.text.tokenizer.huggingface import added_token_ids

SMALL = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}


def small(*names, **parts):
    """Return a word-level tokenizer with some more words."""
    vocabulary = SMALL["vocab"] | {name: 3 + n for n, name in enumerate(names)}
    return definition_of(SMALL | {"vocab": vocabulary}, **parts)


def with_added(*names):
    """Return a word-level tokenizer with some more words, which are special tokens."""
    return small(*names, added_tokens=[added(3 + n, name) for n, name in enumerate(names)])


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


# The built-in tokenizer


def test_the_built_in_tokenizer():
    tokenizer = load_tokenizer(None)
    assert (tokenizer.identity.kind, tokenizer.argument, tokenizer.path) == ("bytes", None, None)
    assert (tokenizer.identity.vocab_size, tokenizer.identity.max_token_id) == (257, 256)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (256, "<|endoftext|>")


@pytest.mark.parametrize(("eod", "expected"), [("0", 0), ("10", 10), ("<0x0A>", 10), ("<|endoftext|>", 256)])
def test_the_built_in_tokenizer_may_end_documents_with_any_byte(eod, expected):
    assert load_tokenizer(None, eod=eod).identity.eod_id == expected


# Vocabularies, against the library

MODELS = {
    "BPE": lambda tokens: {"type": "BPE", "vocab": tokens, "merges": []},
    "WordPiece": lambda tokens: {
        "type": "WordPiece",
        "vocab": tokens,
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
    "WordLevel": lambda tokens: {"type": "WordLevel", "vocab": tokens, "unk_token": "[UNK]"},
    "Unigram": lambda tokens: {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0] for token in tokens]},
}
NAMES = st.sampled_from(["a", "b", "c", "<x>", "<y>", "<z>", "é", "日本"])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(deadline=None, max_examples=60)
@given(
    words=st.lists(NAMES, unique=True, min_size=1),
    gap=st.integers(0, 2),
    contents=st.lists(st.tuples(NAMES | st.just(""), st.integers(0, 20), st.booleans()), max_size=8),
)
def test_ids_and_sizes_are_those_of_the_library(model, words, gap, contents, tmp_path_factory):
    import tokenizers

    tokens = {word: index + gap * (index > 1) for index, word in enumerate(words)}
    listed = [added(index, content, special=special) for content, index, special in contents]
    definition = definition_of(model(tokens), added_tokens=listed)
    library = tokenizers.Tokenizer.from_str(json.dumps(definition))

    tokenizer = written(tmp_path_factory.mktemp("sizes"), definition)

    expected = library.get_vocab(with_added_tokens=True)
    assert tokenizer.identity.vocab_size == library.get_vocab_size(with_added_tokens=True)
    assert tokenizer.identity.max_token_id == max(expected.values())
    for content, _, _ in contents:
        if content:
            assert load_tokenizer(tokenizer.path, eod=content).identity.eod_id == library.token_to_id(content)


def test_a_repeated_unigram_piece_counts_once_but_takes_two_ids(tmp_path):
    import tokenizers

    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["a", -2.0]]}
    definition = definition_of(model, added_tokens=[added(3, "<x>")])
    library = tokenizers.Tokenizer.from_str(json.dumps(definition))
    tokenizer = written(tmp_path, definition)
    assert load_tokenizer(tokenizer.path, eod="<x>").identity.eod_id == library.token_to_id("<x>")
    if tokenizers.__version__ >= "0.23.3":  # before, it counted the names
        assert tokenizer.identity.vocab_size == library.get_vocab_size(with_added_tokens=True)


def test_added_ids_by_hand():
    assert added_token_ids({"vocab": {"a": 0, "b": 7}}, ["b", "", "<x>", "<x>", "a", "<y>"]) == {
        "b": 7,
        "<x>": 2,
        "a": 0,
        "<y>": 3,
    }


@pytest.mark.parametrize(
    ("name", "size", "eod"),
    [
        ("gpt2", 50257, (50256, "<|endoftext|>")),
        ("qwen2", 151646, (151643, "<|endoftext|>")),
        ("llama2", 32003, (2, "</s>")),
    ],
)
def test_published_tokenizers(name, size, eod):
    tokenizer = load_tokenizer(str(published(name)))
    assert (tokenizer.identity.vocab_size, tokenizer.identity.max_token_id) == (size, size - 1)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == eod


# Identity


def test_the_identity_depends_on_content_alone(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = written(tmp_path / "one", small("</s>"))
    second = load_tokenizer(write(tmp_path / "two" / "other.json", small("</s>")))
    monkeypatch.chdir(tmp_path / "one")
    third = load_tokenizer("tokenizer.json")
    fourth = load_tokenizer(".")

    assert first.identity == second.identity == third.identity == fourth.identity
    assert decode(TokenizerIdentity, json.loads(json.dumps(encode(first.identity))), "") == first.identity
    assert str(tmp_path) not in json.dumps(asdict(first.identity))
    assert first.sha256 == hashlib.sha256(first.definition).hexdigest()


def test_other_content_or_eod_is_another_identity(tmp_path):
    first = written(tmp_path, small("</s>"))
    assert load_tokenizer(first.path, eod="a").identity != first.identity
    spaced = load_tokenizer(write(tmp_path / "spaced.json", json.dumps(small("</s>"), indent=1)))
    assert spaced.identity == first.identity  # only its file is another
    assert spaced.sha256 != first.sha256
    assert load_tokenizer(write(tmp_path / "more.json", small("</s>", "c"))).identity != first.identity
    assert load_tokenizer(None).identity != first.identity


def test_a_tokenizer_is_frozen():
    with pytest.raises(AttributeError):
        load_tokenizer(None).identity.eod_id = 3
    with pytest.raises(AttributeError):
        load_tokenizer(None).path = "x"
    assert "UTF-8 bytes" not in repr(load_tokenizer(None))


# The end-of-document token


@pytest.mark.parametrize("name", KNOWN_EODS)
def test_the_one_known_name_ends_documents(name, tmp_path):
    tokenizer = written(tmp_path, small(name))
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (3, name)


def test_an_added_token_goes_before_an_ordinary_one(tmp_path):
    definition = small("</s>", added_tokens=[added(4, "<|endoftext|>")])
    assert written(tmp_path, definition).identity.eod_token == "<|endoftext|>"


def test_what_the_files_beside_say(tmp_path):
    write(tmp_path / "tokenizer.json", with_added("</s>", "<eos>", "<end>"))
    write(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "<eos>", "lstrip": False}})
    assert load_tokenizer(str(tmp_path)).identity.eod_token == "<eos>"
    write(tmp_path / "tokenizer_config.json", {"eos_token": "<end>"})
    assert load_tokenizer(str(tmp_path)).identity.eod_token == "<eos>"
    write(tmp_path / "tokenizer_config.json", {"eos_token": "<end>", "added_tokens_decoder": {}})
    assert load_tokenizer(str(tmp_path)).identity.eod_token == "<end>"
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).identity.eod_id == 5
    write(tmp_path / "tokenizer_config.json", {"eos_token": None})
    assert load_tokenizer(str(tmp_path)).identity.eod_token == "<eos>"
    assert load_tokenizer(str(tmp_path), eod="</s>").identity.eod_token == "</s>"


@pytest.mark.parametrize(
    ("eod", "expected"), [("<x>", (3, "<x>")), ("1", (1, "b")), ("4", (4, "7")), ("a", (0, "a"))]
)
def test_an_eod_by_text_or_id(eod, expected, tmp_path):
    tokenizer = load_tokenizer(write(tmp_path / "t.json", small("<x>", "7")), eod=eod)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["</s>", "<eos>"], r"has several tokens that could end a document: </s>, <eos>"),
        ([], r"has no token that is known to end a document; candidates are \[UNK\]"),
        (["<stop>"], r"candidates are \[UNK\], <stop>"),
    ],
)
def test_an_eod_that_cannot_be_chosen(names, message, tmp_path):
    write(tmp_path / "tokenizer.json", small(*names))
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(str(tmp_path))
    assert "--eod TOKEN" in caught.value.hint
    tokenizer = load_tokenizer(str(tmp_path), need_eod=False)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (None, None)


@pytest.mark.parametrize(
    ("eod", "message"),
    [
        ("<nope>", "has no token '<nope>'"),
        ("77", "no token with the id 77"),
        ("-1", "no token '-1'"),
        ("9" * 5000, "no token with the id 9"),
    ],
)
@pytest.mark.parametrize("need_eod", [False, True])
def test_a_wrong_eod_is_always_an_error(eod, message, need_eod, tmp_path):
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write(tmp_path / "t.json", small("</s>")), eod=eod, need_eod=need_eod)


# Bad files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ('{"model": {"vocab": {"a": NaN}}}', "is not JSON"),
        ("[]", "is not a JSON object"),
        ('"x"', "is not a JSON object"),
        ("{}", "has no model: it is not a tokenizer.json"),
        ('{"eos_token": "</s>"}', "has no model"),
        ('{"model": 5}', "has no model"),
        ('{"model": {}}', "model.vocab of .* is not a vocabulary"),
        ('{"model": {"vocab": 5}}', "is not a vocabulary"),
        ('{"model": {"vocab": {"a": "0"}}}', "is not a vocabulary"),
        ('{"model": {"vocab": {"a": 0.0}}}', "is not a vocabulary"),
        ('{"model": {"vocab": {"a": true}}}', "is not a vocabulary"),
        ('{"model": {"vocab": {"a": -1}}}', "not unsigned 32-bit numbers"),
        ('{"model": {"vocab": {"a": 4294967296}}}', "not unsigned 32-bit numbers"),
        ('{"model": {"vocab": [5]}}', "is not a vocabulary"),
        ('{"model": {"vocab": [["a"]]}}', "is not a vocabulary"),
        ('{"model": {"vocab": [[5, 1.0]]}}', "is not a vocabulary"),
        ('{"model": {"vocab": [{"a": 1, "b": 2}]}}', "is not a vocabulary"),
        ('{"model": {"vocab": [[["a"], 1.0]]}}', "is not a vocabulary"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": 5}', "added_tokens of .* is not a list of tokens"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [5]}', "is not a list of tokens"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{}]}', "is not a list of tokens"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": []}]}', "is not a list of tokens"),
        ("[" * 100_000, "is not JSON"),
        ('{"model": {"vocab": {"\\ud800": 0}}}', "is not JSON"),
        ('{"model": [' + "[]," * 2_000_000 + "0]}", "has no model"),
    ],
)
def test_bad_files_are_named(content, message, tmp_path):
    path = write(tmp_path / "tokenizer.json", content)
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(path, need_eod=False)
    assert path in caught.value.message


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_load_or_are_an_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError):
        load_tokenizer(str(path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**33) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(vocabulary=JSON, tokens=JSON, eos=JSON)
@settings(max_examples=200, deadline=None)
def test_any_json_loads_or_is_an_error(tmp_path_factory, vocabulary, tokens, eos):
    folder = tmp_path_factory.mktemp("json")
    write(folder / "tokenizer.json", {"model": {"vocab": vocabulary}, "added_tokens": tokens})
    write(folder / "tokenizer_config.json", {"eos_token": eos})
    try:
        tokenizer = load_tokenizer(str(folder), need_eod=False)
    except (TokenizerError, MissingExtraError):
        return
    assert tokenizer.identity.max_token_id < 2**32 + len(tokens or [])


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token": 5}', '{"eos_token": {"content": 5}}'])
def test_bad_files_beside_are_errors(content, tmp_path):
    write(tmp_path / "tokenizer.json", small("</s>"))
    beside = write(tmp_path / "tokenizer_config.json", content)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(str(tmp_path), eod="</s>")
    assert beside in caught.value.message or "eos_token is not a token" in caught.value.message


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, message in [
        (str(tmp_path / "absent.json"), "^tokenizer not found: .*absent.json\n"),
        (str(tmp_path), "tokenizer.json not found in"),
        (str(tmp_path / "fifo"), "is not a file"),
        ("a\0b", r"^tokenizer not found: a\\x00b\n"),
    ]:
        with pytest.raises(TokenizerError, match=message) as caught:
            load_tokenizer(path)
        assert "\0" not in caught.value.message


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("acme/model-7B", "pass hf:acme/model-7B to load the tokenizer from the Hugging Face Hub"),
        ("acme/model_v0.1@main", "pass hf:acme/model_v0.1@main to load"),
        ("gpt2", "pass hf:gpt2 to load"),
        ("acme/tokenizer.json", "pass a tokenizer.json, its directory"),
        ("acme/merges.tiktoken", "pass a tokenizer.json, its directory"),
        ("here/model-7B", "pass a tokenizer.json, its directory"),
        ("./acme/model", "pass a tokenizer.json, its directory"),
        ("/acme/model", "pass a tokenizer.json, its directory"),
        ("a/b/c", "pass a tokenizer.json, its directory"),
    ],
)
def test_the_name_of_a_hub_repository_without_hf_gets_a_hint(argument, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("here")
    with pytest.raises(TokenizerError, match=rf"^tokenizer not found: {argument}(?:\nhint: |$)") as caught:
        load_tokenizer(argument)
    assert caught.value.hint.startswith(hint)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(module.MAX_DEFINITION_BYTES + 1)
    with pytest.raises(TokenizerError, match="has 67108865 bytes, more than 67108864"):
        load_tokenizer(str(path))


# tiktoken and SentencePiece files


def test_tiktoken_files_need_a_known_name(tmp_path):
    path = write(tmp_path / "mine.tiktoken", "YQ== 0\n")
    with pytest.raises(TokenizerError, match="unknown tiktoken encoding") as caught:
        load_tokenizer(path)
    assert "r50k_base, gpt2, p50k_base, cl100k_base, o200k_base" in caught.value.hint


@pytest.mark.parametrize("line", ["YQ==", "YQ== x", "*** 1", "YQ== 1 2", "YQ 1", ""])
def test_bad_lines_of_tiktoken_files_are_named(line, tmp_path):
    path = write(tmp_path / "gpt2.tiktoken", f"YQ== 0\n{line}\nYg== 1\n")
    with pytest.raises(TokenizerError, match=r"gpt2\.tiktoken:2 is not a base64 string and an id"):
        load_tokenizer(path)
    with pytest.raises(TokenizerError, match="is empty"):
        load_tokenizer(write(tmp_path / "gpt2.tiktoken", ""))


def test_tiktoken_files_say_their_size_without_the_library(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path / "o200k_base.tiktoken", "YQ== 0\nYg== 1\n"))
    assert (tokenizer.identity.kind, tokenizer.identity.name) == ("tiktoken", "o200k_base")
    assert (tokenizer.identity.vocab_size, tokenizer.identity.max_token_id) == (200019, 200018)
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (199999, "<|endoftext|>")
    assert load_tokenizer(tokenizer.path, eod="<|endofprompt|>").identity.eod_id == 200018
    assert load_tokenizer(tokenizer.path, eod="1").identity.eod_id == 1
    assert load_tokenizer(write(tmp_path / "gpt2.tiktoken", "YQ== 0\n")).identity.name == "gpt2"


def test_a_model_file_that_is_none(tmp_path):
    pytest.importorskip("sentencepiece")
    with pytest.raises(TokenizerError, match="is not a SentencePiece model"):
        load_tokenizer(write(tmp_path / "t.model", "nonsense"))


def test_sentencepiece_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match="requires sentencepiece, which is not installed"):
        load_tokenizer(write(tmp_path / "t.model", "x"))


# The hub, offline

HUB = """
import json, sys
from dataclasses import asdict
def no_network(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("NETWORK", arguments)
sys.addaudithook(no_network)
from tokshard.errors import TokshardError
from tokshard.text.tokenizer.definition import load_tokenizer
for argument in sys.argv[1:]:
    try:
        print(json.dumps([asdict(load_tokenizer(argument).identity), load_tokenizer(argument).path]))
    except TokshardError as error:
        print(json.dumps([str(error), error.hint]))
"""


def on_the_hub(cache, *arguments):
    environment = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    command = [sys.executable, "-c", HUB, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "NETWORK" not in done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tokenizers_of_the_hub_from_its_cache(tmp_path):
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "models--acme--tiny"
    for revision, files in {
        "1" * 40: {
            "tokenizer.json": with_added("</s>", "<end>"),
            "tokenizer_config.json": {"eos_token": "<end>"},
        },
        "2" * 40: {"tokenizer.json": small("</s>")},
    }.items():
        folder = repository / "snapshots" / revision
        folder.mkdir(parents=True)
        for name, value in files.items():
            write(folder / name, value)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    local = load_tokenizer(str(repository / "snapshots" / ("2" * 40)))

    first, second, absent, wrong = on_the_hub(
        tmp_path, "hf:acme/tiny", f"hf:acme/tiny@{'2' * 40}", "hf:acme/absent", "hf:a/b/c"
    )

    assert first[0]["eod_token"] == "<end>"
    assert first[1].endswith(f"snapshots/{'1' * 40}/tokenizer.json")
    assert second == [json.loads(json.dumps(asdict(local.identity))), local.path]
    assert "cannot download the tokenizer hf:acme/absent" in absent[0]
    assert "cannot download the tokenizer hf:a/b/c" in wrong[0]
    assert "download tokenizer.json" in wrong[1]


def test_the_hub_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"the tokenizer hf:acme/tiny requires huggingface_hub"):
        load_tokenizer("hf:acme/tiny")


def test_loading_imports_no_tokenizer_library(tmp_path):
    written(tmp_path, probe())
    written(tmp_path, characters())
    program = (
        "import sys; from tokshard.text.tokenizer.definition import load_tokenizer;"
        "load_tokenizer(sys.argv[1]); load_tokenizer(None);"
        "print([name for name in ('tokenizers', 'fastokens', 'numpy', 'tiktoken', 'huggingface_hub') "
        "if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
