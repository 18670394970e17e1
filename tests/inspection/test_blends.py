"""A blend as it is shown: the figures of its document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.mixture_data import NAMES, run, write_mixture
from tokshard.blending.document import BlendDocument
from tokshard.errors import IntegrityError, MissingFileError
from tokshard.inspection.facts import describe_split
from tokshard.inspection.indexes import inspect_blend


@pytest.fixture
def mix(tmp_path, monkeypatch):
    monkeypatch.chdir(write_mixture(tmp_path))
    sizes = ("--seq-length", "16", "--split", "90,10,0", "--num-samples", "60,0,0")
    assert run("blend", "0.7", "data/web", "0.3", "data/code", *sizes, *NAMES, "-o", "mix").returncode == 0
    return Path("mix")


def test_it_says_what_the_document_says(mix):
    written = json.loads((mix / "blend.json").read_text())
    for path in ("mix", "mix/blend.json"):
        found = inspect_blend(path).to_json()
        assert found["id"] == written["id"]
        assert (found["sequence_length"], found["seed"]) == (16, written["builder"]["seed"])
        assert [one["name"] for one in found["splits"]] == list(written["splits"])
        for one in found["splits"]:
            assert one["certificate"] == written["splits"][one["name"]]["certificate"]
    json.dumps(found)


def test_every_figure_of_the_certificate_is_in_the_table(mix):
    splits = BlendDocument.read("mix").splits
    section = describe_split(splits["train"])
    table = section.blocks[0]
    for row, source in zip(table.rows, splits["train"].certificate.sources, strict=True):
        cells = dict(zip(table.header, row, strict=True))
        assert cells["source"] == source.prefix
        assert cells["samples"] == str(source.samples)
        assert cells["documents seen"] == f"{source.documents_drawn} of {source.documents}"
        assert cells["share"] == f"{100 * source.share:.2f}%"
        assert cells["epochs"] == f"{source.epochs:.2f}"
    assert "no samples" in describe_split(splits["valid"]).title
    assert "60 samples" in section.title


def test_what_is_none_or_changed_is_refused(mix):
    with pytest.raises(MissingFileError):
        inspect_blend("data")
    text = (mix / "blend.json").read_text()
    (mix / "blend.json").write_text(text.replace('"draws": 42', '"draws": 41'))
    with pytest.raises(IntegrityError):
        inspect_blend("mix")
