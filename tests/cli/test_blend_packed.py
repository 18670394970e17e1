"""``tokshard blend --pack``: packed sources beside concatenated ones, as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.mixture_data import NAMES, run, write_mixture

RECIPE = """
seq_length = 16
split = "1"
{top}
[[source]]
prefix = "data/web"
{web}
[[source]]
prefix = "data/code"
{code}
"""
WEIGHTS = {"web": "weight = 0.7", "code": "weight = 0.3"}


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mixture(tmp_path)


def blend(workshop, *options, top="num_samples = [60]", **sources):
    text = RECIPE.format(top=top, **{**WEIGHTS, **sources})
    (workshop / "recipe.toml").write_text(text)
    return run("blend", "recipe.toml", *NAMES, "-o", "mix", "--force", *options)


def packed_of(workshop):
    """Return the options of the packing of each source in ``blend.json``."""
    document = json.loads((workshop / "mix/blend.json").read_text())
    sources = document["splits"]["train"]["sources"]
    return [source["epochs"].get("packed", {}).get("packing") for source in sources], document


@pytest.mark.parametrize(
    ("top", "web", "options", "packed"),
    [
        ("", 'pack = "best-fit"', (), [True, False]),
        ("", "", ("--pack", "best-fit"), [True, True]),
        ('pack = "best-fit"', 'pack = "concat"', (), [False, True]),
        ('pack = "best-fit"', 'pack = "best-fit"', ("--pack", "concat"), [True, False]),
    ],
)
def test_each_source_has_its_packing(workshop, top, web, options, packed):
    limits = ("--max-documents-per-sample", 3, "--pad-multiple", 4)
    done = blend(
        workshop, *options, *limits, top=f"num_samples = [60]\n{top}", web=f"{WEIGHTS['web']}\n{web}"
    )
    assert done.returncode == 0, done.stderr
    options = {"max_documents": 3, "pad_multiple": 4, "algorithm": "tokshard.best-fit/1"}
    found, document = packed_of(workshop)
    assert found == [options if is_packed else None for is_packed in packed]
    assert document["builder"]["packing"] == options
    for source in document["splits"]["train"]["sources"]:
        prefix = source["index"]["path_prefix"]
        rows = np.load(workshop / "mix" / f"{prefix}-sample_index.npy")
        order = np.load(workshop / "mix" / f"{prefix}-document_index.npy")
        # Only packed samples begin with a document, or at a multiple of 16 tokens of one.
        starts_of_documents = bool((rows[:, 1] % 16 == 0).all()) and rows[-1].tolist() == [len(order) - 1, 0]
        assert starts_of_documents == ("packed" in source["epochs"])
    verified = run("verify", "mix", "--level", "deep")
    assert verified.returncode == 0, verified.stdout
    if document["splits"]["train"]["sources"][0]["epochs"].get("packed"):
        other = blend(workshop, top="num_samples = [60]")
        assert other.returncode == 4
        assert "instead of --pack concat; indexes of different packings have" in other.stderr


def test_epochs_of_packed_sources_are_their_samples(workshop):
    done = blend(
        workshop,
        *("--pack", "best-fit", "--json"),
        top="",
        web="epochs = 2",
        code="epochs = 1",
    )
    assert done.returncode == 0, done.stderr
    certificate = packed_of(workshop)[1]["certificates"]["train"]
    for measured, epochs in zip(certificate["sources"], (2, 1), strict=True):
        assert measured["epochs"] == epochs
        assert (measured["document_least"], measured["document_most"]) == (epochs, epochs)


def test_packed_samples_need_a_cache_in_the_arguments_of_a_job(workshop):
    words = ("blend", "1", "data/web", "--seq-length", 16, "--num-samples", 20, "--pack", "best-fit", *NAMES)
    words = (*words, "--split", "1")
    refused = run(*words, "--emit", "megatron-args")
    assert refused.returncode == 2
    assert "hint: pass --output or --cache-dir" in refused.stderr
    emitted = run(*words, "--emit", "megatron-args", "-o", "mix")
    assert emitted.stdout.rstrip().endswith("--data-cache-path mix/cache")


@pytest.mark.parametrize(
    ("top", "web", "words"),
    [
        ('pack = "first-fit"', "", "recipe.toml: pack must be one of concat, best-fit, got 'first-fit'"),
        ("", "pack = 3", "source[0].pack must be a string, got 3"),
        ("", 'pack = "none"', "pack of the source 'data/web' must be concat or best-fit, got 'none'"),
    ],
)
def test_packings_that_do_not_exist(workshop, top, web, words):
    done = blend(workshop, top=f"num_samples = [60]\n{top}", web=f"{WEIGHTS['web']}\n{web}")
    assert done.returncode in {2, 3}
    assert words in done.stderr


def test_a_dataset_cannot_be_packed_and_concatenated_under_the_same_names(workshop):
    blend(workshop, web='weight = 1\npack = "best-fit"', code="weight = 1")
    text = (workshop / "recipe.toml").read_text().replace("data/code", "data/web")
    (workshop / "recipe.toml").write_text(text)
    done = run("blend", "recipe.toml", *NAMES, "-o", "mix")
    assert done.returncode == 2
    assert "in the mixture twice: both would have the same file names, whatever" in done.stderr


def test_limits_without_a_packed_source_are_refused(workshop):
    done = blend(workshop, "--pad-multiple", 4)
    assert (done.returncode, "--pad-multiple requires --pack best-fit" in done.stderr) == (2, True)
