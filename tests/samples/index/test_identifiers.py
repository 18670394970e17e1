import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.errors import InputError, MissingFileError, UsageError
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.identifiers import (
    HUGGING_FACE,
    NULL,
    megatron_identifiers,
    read_identifiers,
)

OLD = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"
NEW = "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText"
FILES = [("vocab_file", "None"), ("merges_file", "None")]
TEMPLATE = [("chat_template", "None")]


def hub(asked):
    return [
        ("additional_special_tokens", "[]"),
        ("use_fast", asked),
        ("trust_remote_code", "False"),
        ("include_special_tokens", asked),
    ]


HUGGING_FACE_ITEMS = {
    "0.15": [("class", OLD), *FILES],
    "0.16": [("class", OLD), *FILES, *hub("False")],
    "0.17": [("class", OLD), *FILES, *hub("True")],
    "0.18": [("class", OLD), *TEMPLATE, *FILES, *hub("True")],
    "0.19": [("class", OLD), *TEMPLATE, *FILES, *hub("True")],
    "main-20260822": [("class", NEW), *TEMPLATE, *FILES, *hub("True"), ("use_gigatoken", "False")],
}


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
def test_hugging_face_presets_have_each_versions_fields_in_its_order(version):
    first, *rest = HUGGING_FACE_ITEMS[version]
    identifiers = megatron_identifiers(version, HUGGING_FACE, "models/ü")
    assert list(identifiers.items()) == [first, ("tokenizer_path", "models/ü"), *rest]


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
def test_null_presets_have_each_versions_fields_in_its_order(version):
    late = [("pad_id", "-1")] if version in {"0.18", "0.19", "main-20260822"} else []
    name = NEW if version.startswith("main") else OLD
    identifiers = megatron_identifiers(version, NULL, vocab_size=50257)
    wanted = [("class", name), ("tokenizer_path", None), ("vocab_size", "50257"), *late]
    assert list(identifiers.items()) == wanted
    assert megatron_identifiers(version, NULL, "ignored", vocab_size="50257") == identifiers


def test_null_ids_stand_in_megatrons_order_and_can_be_left_out():
    given_ids = megatron_identifiers("0.19", NULL, vocab_size=8, pad_id=3, eod_id=2)
    assert list(given_ids)[2:] == ["vocab_size", "eod_id", "pad_id"]
    assert list(megatron_identifiers("0.19", NULL, vocab_size=8, pad_id=None))[2:] == ["vocab_size"]


@pytest.mark.parametrize("spelling", ["0.19.0", "0.19.2", "v0.19", "core_v0.19.1"])
def test_patch_releases_have_the_identifiers_of_their_release(spelling):
    assert megatron_identifiers(spelling, HUGGING_FACE, "m") == megatron_identifiers(
        "0.19", HUGGING_FACE, "m"
    )


@given(st.text(max_size=10), st.lists(st.text(max_size=5), max_size=3), st.booleans())
def test_options_are_written_as_python_writes_them(template, tokens, fast):
    identifiers = megatron_identifiers(
        "0.18", HUGGING_FACE, "m", chat_template=template, additional_special_tokens=tokens, use_fast=fast
    )
    assert identifiers["chat_template"] == template
    assert identifiers["additional_special_tokens"] == str(tokens)
    assert identifiers["use_fast"] == str(fast)
    assert list(identifiers) == list(megatron_identifiers("0.18", HUGGING_FACE, "m"))


REFUSED = {
    "the Megatron version must be one of .*, got '0.14'": ("0.14", HUGGING_FACE, "m", {}),
    "the Megatron version must be one of .*, got 'main'": ("main", HUGGING_FACE, "m", {}),
    "--tokenizer-type must be one of .*, got 'TikTokenizer'": ("0.16", "TikTokenizer", "m", {}),
    "has no option 'chat_template'": ("0.16", HUGGING_FACE, "m", {"chat_template": "x"}),
    "has no option 'pad_id'": ("0.17", NULL, None, {"vocab_size": 1, "pad_id": 0}),
    "--tokenizer-model is required": ("0.16", HUGGING_FACE, None, {}),
    "--vocab-size is required": ("0.16", NULL, None, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_preset_is_refused(message):
    *positional, options = REFUSED[message]
    with pytest.raises(UsageError, match=message):
        megatron_identifiers(*positional, **options)


def test_identifiers_are_read_in_their_order(tmp_path):
    path = tmp_path / "identifiers.json"
    wanted = {"class": "ü", "z": ["a", 1], "a": None, "n": 50257, "f": 0.1}
    path.write_text(json.dumps(wanted, indent=1))
    found = read_identifiers(str(path))
    assert list(found.items()) == list(wanted.items())
    with pytest.raises(MissingFileError, match="file of tokenizer identifiers not found"):
        read_identifiers(str(tmp_path / "none.json"))


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1, "a": 2}', '{"a": NaN}', "{", '"x"'])
def test_a_file_that_is_no_object_is_refused(content, tmp_path):
    path = tmp_path / "identifiers.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"identifiers\.json"):
        read_identifiers(str(path))


def test_a_description_is_not_taken_for_identifiers(tmp_path):
    path = tmp_path / "description.txt"
    path.write_text(GPTDatasetDescription("a", 1, "train", 1, 1, None, None, {}).text())
    with pytest.raises(InputError, match="complete description") as caught:
        read_identifiers(str(path))
    assert "--like" in caught.value.hint


def test_the_dump_of_identifiers_names_what_it_needs_where_there_is_no_megatron():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    module = ["-I", "-m", "tokshard.dump_tokenizer_identifiers"]
    command = [sys.executable, *module, "--tokenizer-type", "NullTokenizer", "--vocab-size", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 3
    assert "error: " in done.stderr
    assert "Megatron" in done.stderr
    assert "Traceback" not in done.stderr
