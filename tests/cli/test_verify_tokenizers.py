"""``tokshard verify`` compares recorded tokenizers with those of the data, and with ``--tokenizer``."""

from __future__ import annotations

import shutil

import pytest

from support import bad_datasets
from support.mixture_data import run
from support.two_tokenizers import write_two_tokenizers

ALLOW = "--allow-tokenizer-mismatch"
REPEATED = "allowed by --allow-tokenizer-mismatch"


def make(directory):
    """Write datasets of two tokenizers, and products of both, and of one of them."""
    write_two_tokenizers(directory)
    words = ("--seq-length", 16, "--split", "1,0,0", "--num-samples", 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for command in (
            ("blend", "data/web", "data/code", *words, "-o", "mix", ALLOW),
            ("blend", "data/web", *words, "-o", "one"),
            ("shard-plan", "mix", "--data-parallel", 2, "-o", "plan"),
            ("shard-plan", "one", "--data-parallel", 2, "-o", "plan-one"),
            ("merge", "data/web", "data/code", "-o", "data/both", ALLOW),
        ):
            done = run(*command)
            assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("two"))


@pytest.fixture
def here(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The same for tests that change the data."""
    monkeypatch.chdir(tmp_path)
    return make(tmp_path)


def verified(*words):
    """Return the findings of the tokenizers, by code, and the exit code."""
    done = run("verify", *words, "--json")
    found = [finding for product in done.json["products"] for finding in product["findings"]]
    codes = {}
    for finding in found:
        if finding["code"].startswith("token"):
            codes.setdefault(finding["code"], finding["message"])
    return codes, done.returncode


@pytest.mark.parametrize("product", ["mix", "plan", "data/both"])
def test_an_allowed_mismatch_is_repeated_as_a_warning(here, product):
    codes, status = verified(product)
    assert (list(codes), status) == (["tokenizer-mismatch-allowed"], 1)
    assert codes["tokenizer-mismatch-allowed"].startswith(REPEATED)
    assert "data/web" in codes["tokenizer-mismatch-allowed"]


@pytest.mark.parametrize("product", ["one", "plan-one", "data/web"])
@pytest.mark.parametrize("options", [(), ("--tokenizer", "a.json")])
def test_products_of_one_tokenizer_are_sound(here, product, options):
    assert verified(product, "--recursive", "--level", "deep", *options) == ({}, 0)


@pytest.mark.parametrize("product", ["one", "plan-one"])
def test_the_tokenizer_of_the_job_must_be_that_of_the_data(here, product):
    codes, status = verified(product, "--tokenizer", "b.json")
    assert (list(codes), status) == (["tokenizer-other"], 1)
    assert "the job's tokenizer b.json" in codes["tokenizer-other"]


def test_a_dataset_that_was_replaced_by_one_of_another_tokenizer_is_found(own):
    for name in ("code.bin", "code.idx"):
        shutil.copy(own / "data" / name, own / "data" / name.replace("code", "web"))
    shutil.rmtree(own / "data/web.tokshard")
    shutil.copytree(own / "data/code.tokshard", own / "data/web.tokshard")
    for product in ("one", "one/cache", "plan-one"):
        codes, status = verified(product)
        assert ("tokenizer-changed" in codes, status) == (True, 1)
        assert "data/web was encoded with another tokenizer than recorded" in codes["tokenizer-changed"]


def test_an_unknown_tokenizer_is_not_checked_and_never_equal(own):
    shutil.rmtree(own / "data/web.tokshard")
    for product in ("one", "one/cache", "plan-one"):
        codes, status = verified(product, "--tokenizer", "a.json")
        assert (list(codes), status) == (["tokenizer-unchecked"], 0)


@pytest.mark.parametrize("product", ["one", "one/cache", "plan-one"])
def test_ids_beyond_the_vocabulary_are_found_in_the_datasets_of_a_product(here, tmp_path, product):
    small = small_tokenizer(tmp_path)
    codes, status = verified(product, "--recursive", "--level", "deep", "--tokenizer", small)
    assert "must be below 300" in codes["token-range"]
    assert status == 1


def small_tokenizer(directory):
    """Return the path of a tokenizer with few tokens."""

    def shrink(definition):
        model = definition["model"]
        model["vocab"] = {token: index for token, index in model["vocab"].items() if index < 300}
        model["merges"] = []

    return bad_datasets.edited_tokenizer(directory, shrink)
