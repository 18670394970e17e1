"""Settings beside a tokenizer.json: those that change ids are named, and the others are ignored.

Directories of many families are compared with transformers by tests/oracle.
"""

import json
import re

import pytest

from support.tokenizer_definitions import token
from support.tokenizer_directories import ADDED, CONFIG, DEFINITION, FAMILIES, MAP, MODEL_CONFIG, typed
from support.transformers_stand_in import small_directory as byte_level
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.settings import SETTINGS_FILES, IdsChangedError, plain_eos_token

PLAIN_FAMILIES = (
    "bloom cohere deepseek falcon gemma gpt2 llama2_metaspace llama3 mistral nemotron opt phi3 qwen2"
)
END_ID = 261


def eos_token(files):
    beside = {name: files[name] for name in SETTINGS_FILES if name in files}
    return plain_eos_token(files[DEFINITION], beside)


def changed(base, name, **settings):
    """Return the files of a directory with some settings in one file."""
    files = base()
    files[name] = files.get(name, {}) | settings
    return files


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


@pytest.mark.parametrize("family", PLAIN_FAMILIES.split())
def test_directories_as_published_are_plain(family):
    assert eos_token(FAMILIES[family]())


def llama2():
    return FAMILIES["llama2_metaspace"]()


# fmt: off
NOT_PLAIN = [
    # Tokens
    (byte_level, CONFIG, {"pad_token": "<|new|>"}, "pad_token '<|new|>', which is not an added token of"),
    (byte_level, CONFIG, {"image_token": "<|new|>"}, "image_token '<|new|>', which is not"),
    (byte_level, CONFIG, {"additional_special_tokens": ["<|new|>"]}, "additional_special_tokens '<|new|>'"),
    (byte_level, CONFIG, {"extra_special_tokens": ["<|new|>"]}, "extra_special_tokens '<|new|>'"),
    (byte_level, CONFIG, {"extra_special_tokens": {"x_token": "<|new|>"}}, "extra_special_tokens '<|new|>'"),
    (byte_level, CONFIG, {"model_specific_special_tokens": {"x": "<|new|>"}}, "special_tokens '<|new|>'"),
    (byte_level, CONFIG, {"added_tokens_decoder": {"300": {"content": "<|new|>"}}}, "decoder '<|new|>'"),
    (byte_level, CONFIG, {"added_tokens_decoder": {"9": {"content": "<|end|>", "special": True}}}, "another"),
    (llama2, CONFIG, {"added_tokens_decoder": {}}, "without all added tokens of tokenizer.json"),
    (byte_level, MAP, {"sep_token": "<|new|>"}, "sep_token '<|new|>', which is not"),
    (byte_level, MAP, {"additional_special_tokens": ["<|new|>"]}, "additional_special_tokens '<|new|>'"),
    (byte_level, ADDED, {"<|new|>": 300}, "added_tokens.json '<|new|>', which is not"),
    (byte_level, ADDED, {"<|end|>": 9}, "added_tokens.json '<|end|>' with another id"),
    (byte_level, CONFIG, {"additional_special_tokens": [typed("<|end|>", lstrip=True)]}, "with other flags"),
    (byte_level, CONFIG, {"tokenizer_class": "GPT2Tokenizer"}, "_token '<|endoftext|>', which is not"),
    # Switches
    (byte_level, CONFIG, {"add_prefix_space": True}, "add_prefix_space True"),
    (llama2, CONFIG, {"add_prefix_space": False}, "add_prefix_space False"),
    (llama2, CONFIG, {"add_bos_token": False}, "add_bos_token and add_eos_token differ"),
    (llama2, CONFIG, {"add_eos_token": True}, "add_bos_token and add_eos_token differ"),
    (llama2, CONFIG, {"add_bos_token": "no"}, "add_bos_token is neither true nor false"),
    (llama2, CONFIG, {"legacy": True}, "legacy True"),
    *(
        (byte_level, CONFIG, {name: True}, f"{name} True")
        for name in (
            "split_special_tokens", "do_lower_case", "strip_accents", "keep_accents", "remove_space",
            "fix_mistral_regex", "from_slow",
        )
    ),
    (byte_level, CONFIG, {"fast_tokenizer_files": ["x.json"]}, "fast_tokenizer_files ['x.json']"),
    (byte_level, CONFIG, {"init_inputs": [1]}, "init_inputs [1]"),
    (byte_level, CONFIG, {"tokenizer_file": None}, "tokenizer_file None"),
    (byte_level, MAP, {"additional_special_tokens": {}}, "additional_special_tokens is not a list"),
    (byte_level, CONFIG, {"padding_side": "both"}, "padding_side is neither left nor right"),
    (byte_level, CONFIG, {"new_setting": 1}, "new_setting, a setting that tokshard does not know"),
    (byte_level, MAP, {"new_setting": 1}, "new_setting, a setting that tokshard does not know"),
    # Classes
    (byte_level, CONFIG, {"tokenizer_class": "XLNetTokenizer"}, "tokenizer_class XLNetTokenizer"),
    (byte_level, CONFIG, {"tokenizer_class": ["x"]}, "model_type or tokenizer_class is not a name"),
    (byte_level, MODEL_CONFIG, {"model_type": ["gpt2"]}, "model_type or tokenizer_class is not a name"),
    (byte_level, MODEL_CONFIG, {"model_type": "siglip2"}, "tokenizer_class Siglip2Tokenizer"),
    (byte_level, MODEL_CONFIG, {"model_type": "qwen2"}, "_token '<|endoftext|>', which is not"),
    (FAMILIES["llama2"], CONFIG, {}, "tokenizer_class LlamaTokenizer, which has another normalizer"),
    (FAMILIES["smollm"], CONFIG, {}, "tokenizer_class GPT2Tokenizer, which has another pre-tokenizer"),
]
# fmt: on


@pytest.mark.parametrize(("base", "name", "settings", "setting"), NOT_PLAIN)
def test_a_setting_that_changes_ids_is_named(base, name, settings, setting):
    with pytest.raises(IdsChangedError, match=re.escape(setting)):
        eos_token(changed(base, name, **settings))


def test_a_model_type_without_a_class_must_be_known():
    files = changed(byte_level, MODEL_CONFIG, model_type="llama")
    del files[CONFIG]["tokenizer_class"]
    with pytest.raises(IdsChangedError, match="model_type llama without a tokenizer_class"):
        eos_token(files)


def test_a_class_that_only_version_4_gives_an_eos_token_requires_a_name():
    files = FAMILIES["mistral"]()
    assert eos_token(files) == "</s>"
    del files[CONFIG]["eos_token"]
    with pytest.raises(IdsChangedError, match="eos_token is missing"):
        eos_token(files)


@pytest.mark.parametrize(
    "settings",
    [
        {"chat_template": "{{ messages }}"},
        {"model_max_length": 2, "clean_up_tokenization_spaces": True},
        {"padding_side": "left", "truncation_side": "right"},
        {"name_or_path": "x", "processor_class": "XProcessor", "errors": "replace", "use_fast": False},
        {"add_prefix_space": False, "split_special_tokens": False, "fix_mistral_regex": False},
        {"added_tokens_decoder": {str(END_ID): token("<|end|>", special=True)}},
        {"auto_map": {"AutoModel": "code.Model"}},
        {"pad_token": None, "additional_special_tokens": ["<|end|>"]},
    ],
)
def test_a_setting_that_changes_nothing_is_ignored(settings):
    files = changed(byte_level, CONFIG, **settings)
    assert eos_token(files) == "<|end|>"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"eos_token": {"content": "<|end|>", "lstrip": False}}, "eos_token is not a token", "refuses other"),
        ({"eos_token": 5}, "eos_token is not a token", "refuses other"),
        ({"eos_token": {"__type": "AddedToken"}}, "eos_token is not a token", "refuses other"),
        ({"additional_special_tokens": [5]}, "additional_special_tokens is not a token", "refuses other"),
        ({"auto_map": {"AutoTokenizer": ["code.Own", None]}}, "auto_map names code of its own", "save the"),
        ({"auto_map": ["code.Own", None]}, "auto_map names code of its own", "save the tokenizer"),
    ],
)  # fmt: skip
def test_what_transformers_refuses_is_refused(settings, message, hint, tmp_path):
    path = write(tmp_path, changed(byte_level, CONFIG, **settings))
    with pytest.raises(
        TokenizerError, match=f"cannot read the tokenizer directory {path}: {message}"
    ) as caught:
        load_tokenizer(path)
    assert hint in caught.value.hint


def test_numbers_that_only_python_reads_are_read(tmp_path):
    # The config.json of Mamba 2 has one.
    path = write(tmp_path, byte_level())
    (tmp_path / MODEL_CONFIG).write_text('{"time_step_limit": [0.0, Infinity], "x": NaN}', encoding="utf-8")
    assert load_tokenizer(path).definition == (tmp_path / DEFINITION).read_bytes()


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000], ids=repr)
def test_a_broken_file_beside_is_named(content, tmp_path):
    path = write(tmp_path, byte_level())
    (tmp_path / MAP).write_bytes(content)
    with pytest.raises(
        TokenizerError, match=r"special_tokens_map\.json is not (JSON|a JSON object)"
    ) as caught:
        load_tokenizer(path)
    assert caught.value.hint.startswith("correct the file")


def test_flags_without_effect_change_nothing():
    # GPT-2: version 5 adds the EOD token once more, not normalized; but there is no normalizer.
    files = FAMILIES["gpt2"]()
    files[DEFINITION]["added_tokens"][0]["normalized"] = True
    assert eos_token(files) == "<|endoftext|>"
    files[DEFINITION]["normalizer"] = {"type": "NFC"}
    message = "bos_token '<|endoftext|>', which Megatron adds again with other flags than in tokenizer.json"
    with pytest.raises(IdsChangedError, match=re.escape(message)):
        eos_token(files)


def test_a_file_alone_is_plain(tmp_path):
    path = write(tmp_path, {DEFINITION: byte_level()[DEFINITION]})
    alone = load_tokenizer(path, eod="<|end|>")
    beside = load_tokenizer(write(tmp_path / "beside", byte_level()))
    assert alone.identity == beside.identity
    assert beside.definition_path("unused") == beside.path
