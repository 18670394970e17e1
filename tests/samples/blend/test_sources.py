"""The samples of a split, read from ``blend.json`` without the document."""

import dataclasses
import json
from pathlib import Path

import pytest

from tokshard.errors import IntegrityError
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.sources import SplitFiles, read_split_files

GOLDEN = sorted(Path(__file__).parents[2].glob("golden/formats/blend-2*.json"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_samples_are_those_of_the_document(golden):
    document = BlendDocument.read(str(golden))
    value = json.loads(golden.read_text())
    for name, split in document.splits.items():
        found = read_split_files(value, str(golden), name)
        for field in dataclasses.fields(SplitFiles):
            assert getattr(found, field.name) == getattr(split, field.name)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (("splits",), None, r"splits\.train must be an object, got null"),
        (("splits", "train"), None, r"splits\.train must be an object, got null"),
        (("splits", "train", "more"), 1, r"splits\.train\.more is unknown"),
        (("splits", "train", "samples"), -1, r"splits\.train\.samples must be at least 0, got -1"),
        (("splits", "train", "order"), None, r"splits\.train is invalid: kind weighted contradicts order"),
        (("splits", "train", "sources"), [], r"splits\.train is invalid: sources must not be empty"),
        (("splits", "train", "sources", 1, "prefix"), "a\0b", "a path contains a NUL character"),
        (
            ("splits", "train", "sources", 1, "index"),
            "../x",
            r"sources\[1\]\.index must match",
        ),
        (("cache_directory",), None, "cache_directory must be a string, got null"),
    ],
)
def test_values_that_cannot_be_are_refused(place, wrong, message):
    value = json.loads(GOLDEN[0].read_text())
    parent = value
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = wrong
    with pytest.raises(IntegrityError, match=rf"mix/blend\.json: .*{message}"):
        read_split_files(value, "mix/blend.json", "train")
