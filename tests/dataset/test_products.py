"""What a path names."""

from __future__ import annotations

import os

import pytest

from tokshard.checks.inspect.indexes import entries_in, entries_of
from tokshard.dataset.products import description_of, kind_of, recognize
from tokshard.errors import InputError, UsageError

HASH = "0123456789abcdef" * 2
STEM = f"{HASH}-GPTDataset-train"


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(tmp_path, *names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("files", "thing", "kind"),
    [
        (["d/x.bin", "d/x.idx"], "d/x", "dataset"),
        (["d/x.bin"], "d/x.bin", "dataset"),
        (["d/x.idx"], "d/x.tokshard/", "dataset"),
        (["x.bin", "x.idx", "x/tokenizer.json"], "x", "dataset"),
        (["t/tokenizer.json"], "t", "tokenizer"),
        (["t/vocab.txt", "t/config.json"], "t", "tokenizer"),
        (["t/any.model"], "t/any.model", "tokenizer"),
        ([], "hf:some/thing", "tokenizer"),
        (["m/blend.json"], "m", "blend"),
        (["m/blend.json"], "m/blend.json", "blend"),
        (["p/plan.json"], "p", "plan"),
        (["p/plan.json"], "p/plan.json", "plan"),
        (["p/rank-00007.json"], "p/rank-00007.json", "rank"),
        (["e/part-0-00000.npy", "e/.tokshard/export.json"], "e", "export"),
        ([f"c/{STEM}-description.txt"], "c", "cache"),
        ([f"c/{STEM}-shuffle_index.npy"], "c", "cache"),
        ([f"c/{STEM}-shuffle_index.npy"], f"c/{HASH}", "index"),
        ([f"c/{STEM}-tokshard.json"], f"c/{STEM}-tokshard.json", "index"),
        ([f"{STEM}-description.txt"], f"{STEM}-description.txt", "index"),
        ([f"{STEM}-description.txt"], HASH, "index"),
        ([HASH], HASH, "tokenizer"),
    ],
)
def test_a_path_names_one_thing(inside, files, thing, kind):
    touch(inside, *files)
    assert recognize(thing) == kind_of(thing) == kind


@pytest.mark.parametrize(
    ("file", "thing"),
    [
        (f"c/{STEM}-shuffle_index.npy", f"c/{HASH}"),
        (f"c/{STEM}-tokshard.json", f"c/{STEM}-tokshard.json"),
        (f"{STEM}-description.txt", f"{STEM}-description.txt"),
        (f"{STEM}-description.txt", HASH),
    ],
)
def test_index_is_named_by_its_files_and_its_hash(inside, file, thing):
    touch(inside, file)
    directory = os.path.dirname(file)
    assert description_of(thing) == os.path.join(directory, f"{STEM}-description.txt")
    assert description_of(directory) is None


@pytest.mark.parametrize(
    ("files", "thing", "error", "text"),
    [
        ([], "nothing", InputError, "no dataset or file found"),
        ([], HASH, InputError, "index .* not found in"),
        (["d/README"], "d", InputError, "it is not a dataset"),
        (["d/plan.json", "d/blend.json"], "d", UsageError, "plan.json and blend.json"),
        ([], f"c/{STEM}-description.txt", InputError, "no dataset or file found"),
        ([], f"no/{HASH}", InputError, "no dataset or file found"),
    ],
)
def test_what_names_nothing_or_two_things_is_refused(inside, files, thing, error, text):
    touch(inside, *files)
    with pytest.raises(error, match=text):
        recognize(thing)


def test_what_is_no_file_is_refused():
    with pytest.raises(InputError, match="neither a file nor a directory"):
        recognize("/dev/null")


@pytest.mark.parametrize(
    "name",
    [
        f"{HASH}-GPTDataset-train",
        f"{HASH}-GPTDataset-train-tokshard.lock",
        f"{HASH}-GPTDataset-eval-description.txt",
        f"{HASH[1:]}-GPTDataset-train-description.txt",
        f"{HASH.upper()}-GPTDataset-train-description.txt",
        f"{HASH}-T5Dataset-train-description.txt",
        f".{STEM}-description.txt",
    ],
)
def test_other_files_of_a_cache_are_none_of_an_index(inside, name):
    touch(inside, name)
    assert entries_of("", [name]) == []
    assert entries_in("") == []
