import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.index_caches import TOKENIZER, written
from tokshard.errors import InputError, MissingFileError
from tokshard.samples.index.description import (
    BlendedDescription,
    GPTDatasetDescription,
    descriptions_in,
    differences,
    read_description,
    settings_from_cache,
)
from tokshard.samples.index.splits import parse_split

NULL_TOKENIZER = {
    "class": "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText",
    "tokenizer_path": None,
    "vocab_size": "50257",
}
MATRIX = parse_split("90,7,3").matrix_json()
ONE = parse_split("1").matrix_json()


def described(path, num_samples, split, matrix):
    return GPTDatasetDescription(path, num_samples, "train", 1234, 16, split, matrix, NULL_TOKENIZER)


# Written by Megatron Core 0.16.1.
GOLDEN = {
    "2cec63d94c13bbcde1b07d3d03a8efd6": described("data/süß", 704, "90,7,3", MATRIX),
    "333d6f02ddf0f79c6eb86029ead99aa9": described("data/web", 302, "90,7,3", MATRIX),
    "4db5aada5923a808c7761b3011daf807": described("data/web", None, None, None),
    "3d33c9f7431829b0cf9572d06f7658a5": described("data/web", None, "1", ONE),
    "3073d8baf7f9eaa124be6d2205156e63": BlendedDescription(
        datasets=(
            described("data/web", 302, "90,7,3", MATRIX),
            described("data/süß", 704, "90,7,3", MATRIX),
        ),
        split="train",
        weights=(0.3, 0.7),
        size=1000,
    ),
    "68f708ae3c59b979dda922821669814b": BlendedDescription(
        datasets=(described("data/web", None, "1", ONE), described("data/süß", None, "1", ONE)),
        split="train",
        weights=(564, 564),
        size=None,
    ),
}

FLOATS = st.floats(min_value=0, max_value=1, allow_nan=False)
SHARES = st.none() | st.tuples(st.just(0) | FLOATS, FLOATS).map(list)
NAMES = st.text(st.characters(), max_size=20)
VALUES = st.none() | NAMES | st.lists(NAMES, max_size=3)
DESCRIPTIONS = st.builds(
    GPTDatasetDescription,
    dataset_path=NAMES,
    num_samples=st.none() | st.integers(0, 2**63),
    index_split=st.sampled_from(["train", "valid", "test"]),
    random_seed=st.integers(0, 2**32 - 1),
    sequence_length=st.integers(1, 2**31),
    split=st.none() | NAMES,
    split_matrix=st.none() | st.lists(SHARES, min_size=3, max_size=3),
    tokenizer=st.none() | st.dictionaries(NAMES, VALUES, max_size=4),
)
WEIGHTS = st.lists(FLOATS, max_size=4).map(tuple) | st.lists(st.integers(1, 2**40), max_size=4).map(tuple)
BLENDS = st.builds(
    BlendedDescription,
    datasets=st.lists(DESCRIPTIONS, max_size=3).map(tuple),
    split=st.sampled_from(["train", "valid", "test"]),
    weights=WEIGHTS,
    size=st.none() | st.integers(0, 2**63),
)


@pytest.mark.parametrize("digest", GOLDEN)
def test_names_are_those_that_megatron_has_given(digest):
    assert GOLDEN[digest].hash() == digest


@given(DESCRIPTIONS | BLENDS)
def test_the_text_is_the_json_of_megatron_and_can_be_read_back(description):
    fields = {"class": type(description).CLASS}
    names = type(description).__dataclass_fields__
    fields |= {name: getattr(description, name) for name in names}
    if isinstance(description, BlendedDescription):
        fields["datasets"] = [
            {"class": "GPTDataset"}
            | {name: getattr(dataset, name) for name in type(dataset).__dataclass_fields__}
            for dataset in description.datasets
        ]
    text = written(fields)
    assert description.text() == text
    assert description.hash() == hashlib.md5(text.encode("utf-8")).hexdigest()
    assert type(description).from_text(text) == description
    assert type(description).from_text(text).text() == text


@given(DESCRIPTIONS, DESCRIPTIONS)
def test_descriptions_differ_if_and_only_if_their_texts_do(a, b):
    assert differences(a, a) == []
    assert bool(differences(a, b)) == (a.text() != b.text())


def test_differences_name_the_inner_field():
    blend = GOLDEN["3073d8baf7f9eaa124be6d2205156e63"]
    first, second = blend.datasets
    tokenizer = {**NULL_TOKENIZER, "pad_id": "-1"}
    fields = {name: getattr(second, name) for name in type(second).__dataclass_fields__}
    other = GPTDatasetDescription(**{**fields, "num_samples": 705, "tokenizer": tokenizer})
    changed = BlendedDescription((first, other), "train", (0.5, 0.5), 1000)
    assert differences(blend, changed) == [
        ("datasets[1].num_samples", 704, 705),
        ("datasets[1].tokenizer.pad_id", None, "-1"),
        ("weights", [0.3, 0.7], [0.5, 0.5]),
    ]
    assert next(name for name, _, _ in differences(first, blend)) == "class"


def test_an_order_and_a_zero_that_change_the_text_are_differences():
    a = described("x", 1, "1", ONE)
    reordered = dict(reversed(NULL_TOKENIZER.items()))
    b = GPTDatasetDescription("x", 1, "train", 1234, 16, "1", ONE, reordered)
    assert [name for name, _, _ in differences(a, b)] == ["the order in tokenizer"]
    c = described("x", 1, "1", [[0.0, 1.0], None, None])
    assert [name for name, _, _ in differences(a, c)] == ["split_matrix"]


BROKEN = {
    "a final newline": lambda text: text + "\n",
    "no indent": lambda text: json.dumps(json.loads(text)),
    "a missing field": lambda text: text.replace('    "random_seed": 1234,\n', ""),
    "an unknown field": lambda text: text.replace('    "split"', '    "renormalize": true,\n    "split"'),
    "another order": lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=4),
    "another class": lambda text: text.replace("GPTDataset", "BERTMaskedWordPieceDataset"),
    "a text as a number": lambda text: text.replace('"num_samples": 704', '"num_samples": "704"'),
    "a negative number": lambda text: text.replace('"num_samples": 704', '"num_samples": -1'),
    "a boolean": lambda text: text.replace('"random_seed": 1234', '"random_seed": true'),
    "a length of 0": lambda text: text.replace('"sequence_length": 16', '"sequence_length": 0'),
    "an unknown split": lambda text: text.replace('"train"', '"dev"'),
    "a matrix of two": lambda text: text.replace(
        "        [\n            0,\n            0.9\n        ],\n", ""
    ),
    "cut": lambda text: text[:-10],
    "a list": lambda text: f"[{text}]",
    "a key twice": lambda text: text.replace('    "split":', '    "split": null,\n    "split":'),
    "raw UTF-8": lambda text: text.replace("\\u00fc", "ü"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_description_that_megatron_has_not_written_is_refused(how, tmp_path):
    text = GOLDEN["2cec63d94c13bbcde1b07d3d03a8efd6"].text()
    changed = BROKEN[how](text)
    assert changed != text
    path = tmp_path / "x-description.txt"
    path.write_text(changed)
    with pytest.raises(InputError, match=r"x-description\.txt") as caught:
        read_description(str(path))
    assert caught.value.hint


def test_files_of_both_kinds_are_read(tmp_path):
    for digest, description in GOLDEN.items():
        path = tmp_path / f"{digest}-description.txt"
        path.write_text(description.text())
        assert read_description(str(path)) == description
    (tmp_path / "0-description.txt").write_text("{}")
    (tmp_path / "notes.txt").write_text("x")
    found = dict(descriptions_in(str(tmp_path)))
    assert found == {str(tmp_path / f"{digest}-description.txt"): golden for digest, golden in GOLDEN.items()}
    with pytest.raises(MissingFileError, match="description not found: "):
        read_description(str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match=r"cannot read description .*: it is a directory"):
        read_description(str(tmp_path))


def sized(split, num_samples, **changes):
    fields = {"dataset_path": "a", "num_samples": num_samples, "index_split": split, "random_seed": 7}
    fields |= {"sequence_length": 16, "split": "9,1", "split_matrix": None, "tokenizer": TOKENIZER}
    return GPTDatasetDescription(**{**fields, **changes})


def test_settings_from_a_cache_take_the_sizes_of_other_splits_from_its_other_descriptions(tmp_path):
    beside = [
        sized("train", 100),
        sized("train", 120),
        sized("valid", 10),
        sized("test", 5),
        sized("test", 6),
        sized("valid", 99, random_seed=8),
        sized("valid", 98, dataset_path="b"),
    ]
    for description in beside:
        (tmp_path / f"{description.hash()}-GPTDataset-description.txt").write_text(description.text())
    cached_settings = settings_from_cache(str(tmp_path / f"{beside[0].hash()}-GPTDataset-description.txt"))
    assert (cached_settings.random_seed, cached_settings.sequence_length, cached_settings.split) == (
        7,
        16,
        "9,1",
    )
    assert cached_settings.tokenizer == TOKENIZER
    assert cached_settings.num_samples == {"train": 100, "valid": 10}


def test_settings_from_the_description_of_a_blend_have_no_sizes(tmp_path):
    path = tmp_path / "blend.txt"
    path.write_text(GOLDEN["3073d8baf7f9eaa124be6d2205156e63"].text())
    cached_settings = settings_from_cache(str(path))
    assert (cached_settings.random_seed, cached_settings.split, cached_settings.num_samples) == (
        1234,
        "90,7,3",
        {},
    )
    path.write_text(BlendedDescription((), "train", (), 0).text())
    with pytest.raises(InputError, match="a blend without sources"):
        settings_from_cache(str(path))
