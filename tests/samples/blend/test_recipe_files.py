import json

import pytest

from tokshard.errors import InputError, MissingFileError, UsageError
from tokshard.samples.blend.recipe import Mixture, Source
from tokshard.samples.blend.recipe_files import (
    parse_recipe,
    parse_words,
    read_arguments,
    read_data_args,
    read_per_split,
)
from tokshard.samples.index.sizes import Sizes


def pairs(mixture):
    return [(source.prefix, source.weight) for source in mixture.sources]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data/web"], [("data/web", None)]),
        (["0.7", "data/web"], [("data/web", 0.7)]),
        (["30", "a", "70", "b"], [("a", 30.0), ("b", 70.0)]),
        (["a", "b"], [("a", None), ("b", None)]),
        (["a", "b", "c"], [("a", None), ("b", None), ("c", None)]),
        (["1e-3", " a ", "1_0", "b"], [("a", 0.001), ("b", 10.0)]),
        (["./1", "./2"], [("./1", None), ("./2", None)]),
    ],
)
def test_words_are_read_as_megatron_reads_them(words, expected):
    assert pairs(parse_words(words).for_split("train")) == expected


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "at least one source is required"),
        (["1", "2"], "'2'"),
        (["0.5", "0.5", "a", "b"], "'a'"),
        (["0.5", "a", "x", "b"], "'x'"),
        (["a", "0.5"], "'0.5'"),
        (["0.5", "a", "b"], "'0.5'"),
        (["a", "nan", "b"], "'nan'"),
        (["nan", "a"], "nan"),
        (["inf", "a", "1", "b"], "inf"),
        (["0", "a", "1", "b"], "0"),
        (["-1", "a", "1", "b"], "-1"),
        (["1", " "], "empty"),
    ],
)
def test_words_that_megatron_would_misread_are_refused(words, what):
    with pytest.raises(UsageError, match=what):
        parse_words(words)


def test_each_form_has_its_reader(tmp_path):
    (tmp_path / "words").write_text("0.7 a\n0.3\tb\n")
    (tmp_path / "split.json").write_text(
        json.dumps({"train": ["1", "a", "2", "b"], "valid": "c d", "test": None})
    )
    (tmp_path / "r.toml").write_text('[[source]]\nprefix = "a"\n')
    assert (
        read_arguments([f"@{tmp_path}/words"])[0]
        == read_data_args(f"{tmp_path}/words")
        == parse_words(["0.7", "a", "0.3", "b"])
    )
    per_split, _ = read_arguments([f"{tmp_path}/split.json"])
    assert [mixture and pairs(mixture) for mixture in per_split.mixtures] == [
        [("a", 1.0), ("b", 2.0)],
        [("c", None), ("d", None)],
        None,
    ]
    assert read_arguments([f"{tmp_path}/r.toml"]) == (parse_words(["a"]), {})
    assert read_arguments(["1", "a.toml"])[0] == parse_words(["1", "a.toml"])
    for name in ("none", "none.json", "none.toml"):
        with pytest.raises(MissingFileError, match="none"):
            read_arguments([f"@{tmp_path}/none" if name == "none" else f"{tmp_path}/{name}"])


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"train": ["a"]}',
        '{"train": 1, "valid": null, "test": null}',
        '{"train": [1, "a"], "valid": null, "test": null}',
        '{"train": ["a"], "train": ["b"], "valid": null, "test": null}',
        '{"train": ["a"], "valid": null, "test": null, "x": null}',
        "\xff",
    ],
)
def test_json_that_megatron_would_stumble_over_is_refused(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"split\.json"):
        read_per_split(str(path))


@pytest.mark.parametrize("value", ["[]", '""', '"  "'])
def test_a_split_without_words_is_refused(tmp_path, value):
    path = tmp_path / "split.json"
    path.write_text(f'{{"train": {value}, "valid": null, "test": null}}')
    with pytest.raises(UsageError, match="at least one source is required"):
        read_per_split(str(path))


FULL = """
seq_length = 512
num_samples = [1000, 10, "none"]
split = "90,10"
seed = 7
surplus = 0.01
pad_multiple = 4
unit = "tokens"
temperature = 2
[[source]]
prefix = "data/web"
weight = "300B"
[[source]]
prefix = "data/code"
weight = 1.5e9
max_epochs = 4
"""


def test_a_recipe_file_says_all():
    recipe, options = parse_recipe(FULL)
    assert recipe.mixtures == (
        Mixture((Source("data/web", 300_000_000_000), Source("data/code", 1.5e9, max_epochs=4)), "tokens", 2),
    )
    assert options == {
        "seq_length": 512,
        "num_samples": Sizes(1000, 10, None),
        "split": "90,10",
        "seed": 7,
        "surplus": 0.01,
        "pad_multiple": 4,
    }


def test_a_recipe_file_has_mixtures_for_each_split():
    recipe, _ = parse_recipe(
        'multiple_validation_sets = true\n[[train.source]]\nprefix = "a"\nepochs = 2\n'
        '[[valid.source]]\nprefix = "b"\n[[valid.source]]\nprefix = "c"\n'
    )
    assert recipe.multiple_validation_sets
    assert recipe.for_split("train").epochs == (2,)
    assert pairs(recipe.for_split("valid")) == [("b", None), ("c", None)]
    assert recipe.for_split("test") is None


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("[[source]]\nprefx = 'a'", r"unknown key source\[0\].prefx", "prefix"),
        ("[[sources]]\nprefix = 'a'", "sources", "source"),
        ("num_sample = 3\n[[source]]\nprefix = 'a'", "num_sample", "num_samples"),
        ("[[source]]\nweight = 1", "prefix is missing", None),
        ("[[source]]\nprefix = 1", "prefix must be a string, got 1", None),
        ("[[source]]\nprefix = 'a'\nweight = 'many'", "weight must be a number, got 'many'", None),
        ("[[source]]\nprefix = 'a'\nweight = true", "weight must be a number, got true", None),
        ("[source]\nprefix = 'a'", "source", None),
        ("[[train.source]]\nprefix = 'a'\n[[source]]\nprefix = 'b'", "source for all splits", None),
        ("unit = 'tokens'\n[[valid.source]]\nprefix = 'a'", "unit for all splits and valid", None),
        ("num_samples = 'many'\n[[source]]\nprefix = 'a'", "invalid num_samples 'many'", None),
        ("num_samples = '1.5'\n[[source]]\nprefix = 'a'", "invalid num_samples '1.5'", None),
        ("train = 1", "train", None),
        ("[[train.source]]\nprefix = 'a'\n[train.extra]\nx = 1", "train.extra", None),
        ("num_samples = [1, 2, 3, 4]\n[[source]]\nprefix = 'a'", "num_samples", None),
        ("num_samples = -1\n[[source]]\nprefix = 'a'", "num_samples", None),
        ("pad_multiple = 0\n[[source]]\nprefix = 'a'", "pad_multiple must be at least 1, got 0", None),
        ("seed = 1.5\n[[source]]\nprefix = 'a'", "seed", None),
        ("= 1", "TOML", None),
        (f"seed = {'9' * 5000}", "TOML", None),
        ("", "source is missing", None),
    ],
)  # fmt: skip
def test_recipe_files_that_are_wrong_are_refused_by_name(text, what, hint):
    with pytest.raises(InputError, match=what) as caught:
        parse_recipe(text, "r.toml")
    assert "r.toml" in caught.value.message
    assert hint is None or f"use {hint}" == caught.value.hint


def test_samples_are_counted_as_on_the_command_line():
    _, options = parse_recipe("num_samples = ['2M', 'none', '1.5k']\n[[source]]\nprefix = 'a'")
    assert options["num_samples"] == Sizes(2_000_000, None, 1500)


@pytest.mark.parametrize(("name", "word"), [("r.toml", ""), ("splits.json", ""), ("words", "@")])
def test_recipes_of_more_than_8_mib_are_refused_unread(name, word, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"a = [\n" + b"[],\n" * (2 << 20))
    with pytest.raises(InputError, match="must have at most 8,388,608 bytes"):
        read_arguments([f"{word}{path}"])
