"""The files beside tokenizer.json are followed as by transformers 4 and 5.

The expected ids were recorded from both by tests/golden/tokenizer_directories/record.py.
``scripts/tokenizer_matrix`` compares many more directories with installed versions.
"""

import json
from pathlib import Path

import pytest

from support import directory_cases
from support.tokenizer_definitions import lists_of
from support.tokenizer_families import gpt2
from tokshard.errors import TokenizerError
from tokshard.tokenizer.definition import load_tokenizer, reopen_tokenizer
from tokshard.tokenizer.encoders import fast_encoder_refusal, reference_encoder

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer_directories"
CASES = directory_cases.cases()
RECORDED = {
    major: json.loads((GOLDEN / f"transformers{major}.json").read_text(encoding="utf-8")) for major in "45"
}
# What is not followed, by the words that name it.
REFUSED = {
    "auto_map": ("auto_map names code of its own", "45"),
    "CodeLlamaTokenizer": ("tokenizer_class CodeLlamaTokenizer", "45"),
    "add_prefix_space of LlamaTokenizer": ("add_prefix_space converts the slow tokenizer", "4"),
    "from_slow": ("from_slow converts the slow tokenizer", "4"),
}


def write(directory, name):
    directory.mkdir(exist_ok=True)
    for file, content in CASES[name].items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


def ids(tokenizer, *, special_tokens):
    encoder = reference_encoder(tokenizer, special_tokens=special_tokens)
    return lists_of(encoder.encode(directory_cases.TEXTS))


@pytest.mark.parametrize("major", "45")
@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_transformers(name, major, tmp_path):
    expected = RECORDED[major][name]
    path = write(tmp_path, name)
    if name in REFUSED and major in REFUSED[name][1]:
        with pytest.raises(TokenizerError, match=REFUSED[name][0]) as caught:
            load_tokenizer(path, transformers=major, strict=True)
        assert "with the program in docs/reference/tokenizers.md" in caught.value.hint
        assert REFUSED[name][0] in load_tokenizer(path, transformers=major).warnings[0]
        return
    if "error" in expected:
        with pytest.raises(TokenizerError, match=f"transformers {major} cannot load the directory"):
            load_tokenizer(path, transformers=major)
        return
    tokenizer = load_tokenizer(path, transformers=major, strict=True)
    assert tokenizer.warnings == ()
    assert tokenizer.identity.transformers == major
    assert tokenizer.vocab_size == expected["size"]
    assert tokenizer.eod_token == (expected["eos_token"] or tokenizer.eod_token)
    assert ids(tokenizer, special_tokens=False) == expected["ids"]
    assert ids(tokenizer, special_tokens=True) == expected["ids_with_special_tokens"]
    # Workers open a file with the same definition.
    reopened = reopen_tokenizer(
        tokenizer.definition_path(str(tmp_path)), tokenizer.identity, tokenizer.sha256
    )
    assert ids(reopened, special_tokens=True) == expected["ids_with_special_tokens"]


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_version_must_be_named_where_they_differ(name, tmp_path):
    four, five = RECORDED["4"][name], RECORDED["5"][name]
    path = write(tmp_path, name)
    tokenizer = load_tokenizer(path)
    if "error" in four or four == five:
        assert ids(tokenizer, special_tokens=True) == five["ids_with_special_tokens"]
    else:
        assert "transformers 4 and 5 read the directory" in tokenizer.warnings[0]
        assert "pass --transformers 4 or --transformers 5" in tokenizer.warnings[0]
    if tokenizer.warnings:
        assert tokenizer.identity.transformers == "5"
        assert ids(tokenizer, special_tokens=True) == five["ids_with_special_tokens"]
        with pytest.raises(TokenizerError, match="transformers 4 and 5 read the directory"):
            load_tokenizer(path, strict=True)


def test_a_post_processor_that_does_not_apply_makes_no_difference(tmp_path):
    path = write(tmp_path, "GPTNeoXTokenizer")
    assert load_tokenizer(path).warnings
    files = directory_cases.byte_level()
    files["tokenizer_config.json"].update(
        tokenizer_class="LlamaTokenizer", bos_token="<|end|>", unk_token="<|end|>"
    )
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert "the post-processor" in load_tokenizer(path).warnings[0]
    assert load_tokenizer(path, special_tokens=False, strict=True).warnings == ()


def test_a_directory_that_changes_nothing_keeps_the_bytes_of_its_file(tmp_path):
    path = write(tmp_path, "plain")
    tokenizer = load_tokenizer(path, strict=True)
    assert tokenizer.definition == Path(path, "tokenizer.json").read_bytes()
    assert tokenizer.applied == ()
    assert tokenizer.definition_path(str(tmp_path)) == tokenizer.path
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "tokenizer.json").write_bytes(tokenizer.definition)
    bare = load_tokenizer(str(alone), eod="<|end|>").identity
    assert bare.definition_sha256 == tokenizer.identity.definition_sha256


def test_split_special_tokens_is_encoded_by_the_reference(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, "split_special_tokens"))
    refusal = fast_encoder_refusal(tokenizer, special_tokens=False)
    assert refusal == "the fast encoder does not support split_special_tokens"


def test_a_recorded_version_is_used_again(tmp_path):
    path = write(tmp_path, "add_prefix_space")
    four = load_tokenizer(path, transformers="4")
    assert load_tokenizer(path).identity.definition_sha256 != four.identity.definition_sha256
    assert load_tokenizer(path).like(four.identity).identity == four.identity


def test_what_was_applied_is_listed(tmp_path):
    assert load_tokenizer(write(tmp_path, "pad_token")).applied == ("new tokens '<|new|>'",)
    assert load_tokenizer(write(tmp_path / "2", "split_special_tokens")).applied == (
        "split_special_tokens true",
    )
    prefix = load_tokenizer(write(tmp_path / "3", "add_prefix_space"), transformers="4")
    assert prefix.applied == ("add_prefix_space true",)


@pytest.mark.parametrize(
    ("change", "majors", "reason"),
    [
        ({"auto_map": 5}, "45", "its auto_map is not an object"),
        ({"additional_special_tokens": 5}, "45", "special_tokens is not a list"),
        ({"extra_special_tokens": 5}, "45", "its extra_special_tokens is not"),
        ({"model_specific_special_tokens": [5]}, "5", "its model_specific_special_tokens is not an object"),
        ({"eos_token": "\ud800"}, "45", "has half of a surrogate pair"),
        (
            {"tokenizer_class": "T5Tokenizer", "extra_ids": 1.5},
            "4",
            "its extra_ids is not a number of tokens",
        ),
        (
            {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**9},
            "4",
            "its extra_ids is not a number of tokens",
        ),
    ],
)
def test_a_setting_of_another_type_cannot_be_loaded(change, majors, reason, tmp_path):
    path = Path(write(tmp_path, "plain"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **change}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for major in majors:
        with pytest.raises(TokenizerError, match=f"cannot load the directory .*{reason}"):
            load_tokenizer(str(path), transformers=major)


@pytest.mark.parametrize("major", "45")
def test_a_model_type_is_a_name(major, tmp_path):
    path = Path(write(tmp_path, "plain"))
    (path / "tokenizer_config.json").unlink(missing_ok=True)
    (path / "config.json").write_text('{"model_type": ["gpt2"]}', encoding="utf-8")
    with pytest.raises(TokenizerError, match="its model_type is not a name"):
        load_tokenizer(str(path), transformers=major)


def test_numbers_that_only_python_reads_are_read(tmp_path):
    # The config.json of Mamba 2 has one.
    path = Path(write(tmp_path, "plain"))
    (path / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "x": NaN}', encoding="utf-8")
    assert load_tokenizer(str(path)).definition == (path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000], ids=repr)
def test_a_broken_file_beside_is_named(content, tmp_path):
    path = Path(write(tmp_path, "plain"))
    (path / "special_tokens_map.json").write_bytes(content)
    with pytest.raises(
        TokenizerError, match=r"special_tokens_map\.json is not (JSON|a JSON object)"
    ) as caught:
        load_tokenizer(str(path))
    assert caught.value.hint.startswith("correct the file")


def test_flags_without_effect_are_no_difference_of_the_versions(tmp_path):
    # GPT-2: version 5 adds the EOD token once more, not normalized; but there is no normalizer.
    files = gpt2()
    files["tokenizer.json"]["added_tokens"][0]["normalized"] = True
    for name, content in files.items():
        if isinstance(content, dict):
            (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path), strict=True)
    assert tokenizer.definition == (tmp_path / "tokenizer.json").read_bytes()
    files["tokenizer.json"]["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(files["tokenizer.json"]), encoding="utf-8")
    with pytest.raises(TokenizerError, match="differently: the added tokens"):
        load_tokenizer(str(tmp_path), strict=True)
