"""Configs and splits of datasets: the ``datasets`` library and fsspec are the references."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fsspec.utils import glob_translate
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.corpus.dataset_layout import (
    DatasetConfig,
    converted_splits,
    family_of,
    main_family,
    matching,
    read_configs,
    split_files,
)
from tokshard.errors import InputError

RECORDED = json.loads((Path(__file__).parents[1] / "golden/dataset_layouts/layouts.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"].replace(" ", "-"))
def test_the_files_of_each_split_are_those_of_the_datasets_library(case):
    yaml = pytest.importorskip("yaml")
    configs = read_configs(yaml.safe_load(case["yaml"]) or {}, "README.md")
    found = {}
    for config in configs:
        splits = split_files(config, [*case["files"], "README.md"])
        found[config.name] = {
            split: [path for path in files if family_of(path) == main_family(files)]
            for split, files in splits.items()
        }
    # The library reads a file twice if two of its own patterns match; we read it once.
    once = {
        config: {split: list(dict.fromkeys(files)) for split, files in splits.items()}
        for config, splits in case["found"].items()
    }
    assert found == once
    assert [list(splits) for splits in found.values()] == [list(once[config]) for config in found]


def test_directories_of_a_config_contain_all_of_its_files():
    for case in RECORDED["cases"]:
        yaml = pytest.importorskip("yaml")
        for config in read_configs(yaml.safe_load(case["yaml"]) or {}, "README.md"):
            for split, files in case["found"][config.name].items():
                directories = config.directories(split if config.patterns else None)
                assert all(
                    any(not name or path.startswith(f"{name}/") for name in directories) for path in files
                )
    crawl = DatasetConfig("one", patterns={"train": ("data/CC-1/*.parquet", "data/CC-1/x/*", "data/CC-2/**")})
    assert crawl.directories("train") == ("data/CC-1", "data/CC-2")
    assert DatasetConfig("all", patterns={"train": ("*.jsonl", "data/*")}).directories("train") == ("",)


NAMES = st.text("ab.1-", min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(["*", "?", "a*", "*b", "[ab]*", "[!a]", "a", "**"])


@settings(max_examples=60, deadline=None)
@given(st.lists(PATHS, max_size=8), st.lists(PIECES, min_size=1, max_size=4).map("/".join))
def test_patterns_match_what_fsspec_matches(paths, pattern):
    reference = re.compile(glob_translate(pattern))
    hidden = [path for path in paths if any(part.startswith(".") for part in path.split("/"))]
    visible = [path for path in paths if path not in hidden]
    if re.search(r"[*?\[]", pattern):
        assert matching(pattern, visible) == [path for path in visible if reference.match(path)]
        assert matching(pattern, hidden) == []


def test_hidden_files_and_names_that_are_no_patterns():
    paths = [".x/a.jsonl", "__c/b.jsonl", "d/README.md", "d/e.jsonl", "f.jsonl"]
    assert matching("**.jsonl", paths) == ["f.jsonl"]
    assert matching(".x/*", paths) == [".x/a.jsonl"]
    assert matching("__c/*", paths) == ["__c/b.jsonl"]
    assert matching("d/*", paths) == ["d/e.jsonl"]
    assert matching("d/README.md", paths) == ["d/README.md"]
    assert matching("a[", ["a["]) == ["a["]


def test_a_pattern_that_is_made_to_be_slow_is_not():
    assert matching("*a" * 60 + "b", ["a" * 200]) == []
    assert matching("**/" * 60 + "b", ["a/" * 200 + "c"]) == []


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ({"configs": "x"}, "configs must be a list of objects"),
        ({"configs": [{"data_files": "a"}]}, "each config must have a config_name"),
        ({"configs": [{"config_name": "a"}, {"config_name": "a"}]}, "the names of configs must differ"),
        ({"configs": [{"config_name": "a", "data_dir": 3}]}, "data_dir of config a must be a string"),
        ({"configs": [{"config_name": "a", "data_files": 3}]}, "data_files of config a must be a path"),
        ({"configs": [{"config_name": "a", "data_files": []}]}, "data_files of config a must be a path"),
        (
            {"configs": [{"config_name": "a", "data_files": [{"path": "x"}]}]},
            "data_files of config a must be",
        ),
        (
            {"configs": [{"config_name": "a", "data_files": "../x"}]},
            "the path ../x must be inside the dataset",
        ),
        ({"configs": [{"config_name": "a", "data_files": "/etc/x"}]}, "the path /etc/x must be inside"),
        ({"configs": [{"config_name": "a", "data_files": "s3://x/y"}]}, "is outside the dataset"),
    ],
)
def test_metadata_that_cannot_be_used(card, problem):
    with pytest.raises(InputError, match=re.escape(problem)) as refused:
        read_configs(card, "acme/web/README.md")
    assert refused.value.message.startswith("acme/web/README.md: ")


def test_the_files_of_the_conversion():
    paths = ["default/train/0001.parquet", "default/train/0000.parquet", "default/test/0000.parquet"]
    paths += ["en/partial-train/0000.parquet", ".gitattributes", "en/x.parquet"]
    assert converted_splits(paths) == {
        "default": {
            "train": ("default/train/0000.parquet", "default/train/0001.parquet"),
            "test": ("default/test/0000.parquet",),
        },
        "en": {"partial-train": ("en/partial-train/0000.parquet",)},
    }
    assert list(converted_splits(paths)["default"]) == ["train", "test"]
