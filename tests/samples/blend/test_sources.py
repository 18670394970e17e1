"""The samples of a split, read from ``blend.json`` without the document."""

import json
import os
from pathlib import Path

import pytest

from tokshard.errors import IntegrityError
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.sources import read_split

GOLDEN = sorted(Path(__file__).parents[2].glob("golden/formats/blend-2*.json"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_samples_are_those_of_the_document(golden):
    document = BlendDocument.read(str(golden))
    value = json.loads(golden.read_text())
    for name, split in document.splits.items():
        assert read_split(value, str(golden), name, str) == split


def test_paths_of_moved_data_are_those_of_the_mapping():
    value = json.loads(GOLDEN[0].read_text())
    split = read_split(value, "/mix/blend.json", "train", lambda path: path.replace("/mix/data", "/new"))
    assert [source.path_prefix for source in split.sources] == ["/new/web", "/new/code"]
    assert os.path.dirname(split.order.path_prefix) == "/mix/cache"
    assert {os.path.dirname(source.index.path_prefix) for source in split.sources} == {"/mix/cache"}


def test_a_value_that_is_nested_deeply_is_refused():
    value = json.loads(GOLDEN[0].read_text())
    nested = []
    for _ in range(900):
        nested = [nested]
    value["splits"]["train"]["sources"][0]["more"] = nested
    with pytest.raises(IntegrityError, match=r"sources\[0\]\.more is unknown"):
        read_split(value, "mix/blend.json", "train", str)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (("splits",), None, r"splits\.train must be an object, got null"),
        (("splits", "train"), None, r"splits\.train must be an object, got null"),
        (("splits", "train", "more"), 1, r"splits\.train\.more is unknown"),
        (("splits", "train", "samples"), -1, r"splits\.train\.samples must be at least 0, got -1"),
        (("splits", "train", "order"), None, r"splits\.train is invalid: kind weighted contradicts order"),
        (("splits", "train", "size"), None, r"splits\.train is invalid: kind weighted contradicts size None"),
        (("splits", "train", "sources"), [], r"splits\.train is invalid: sources must not be empty"),
        (("splits", "train", "weights"), [1.0], "weights must have one number for each source"),
        (("splits", "train", "split"), "valid", "files must be named HASH-GPTDataset-valid, got 0?"),
        (("splits", "train", "sources", 1, "path_prefix"), "a\0b", "a path contains a NUL character"),
        (
            ("splits", "train", "sources", 1, "index", "path_prefix"),
            "../x",
            r"sources\[1\]\.index\.path_prefix must match",
        ),
    ],
)
def test_values_that_cannot_be_are_refused(place, wrong, message):
    value = json.loads(GOLDEN[0].read_text())
    parent = value
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = wrong
    with pytest.raises(IntegrityError, match=rf"mix/blend\.json: .*{message}"):
        read_split(value, "mix/blend.json", "train", str)
