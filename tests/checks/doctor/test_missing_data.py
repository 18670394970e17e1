"""Data of a job that does not exist here: an error, or a check that is skipped."""

from __future__ import annotations

import pytest

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.missing_data import check_data_exists
from tokshard.core.findings import Finding
from tokshard.core.path_mapping import PathMapping

ELSEWHERE = "run doctor where the data is, or pass --path-as LOCAL=TRAINING"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data/stories.idx", "data/books_text_document.idx", "cache/description", "words.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def check(*names, cache=None, pairs=(), **options):
    launch = LaunchArguments(data_cache_path=cache)
    return check_data_exists(names, launch, PathMapping(tuple(pairs)), **options)


def test_existing_and_remote_data_is_fine():
    assert check("data/stories", "s3://bucket/web") is None
    assert check("words.txt", is_file=True) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dta/stories", "data/stories"),
        ("data/storeis", "data/stories"),
        ("data/stories.bin", "data/stories"),
        ("data/books", "data/books_text_document"),
    ],
)
def test_a_mistyped_dataset_is_an_error_that_names_the_existing_one(name, meant):
    hint = f"did you mean {meant}? Correct the data arguments of the launch command"
    assert check(name) == Finding("data", "error", f"dataset not found: {name}", hint)


def test_a_mistyped_file_is_an_error_that_names_the_existing_one():
    result = check("wrods.txt", is_file=True)
    assert isinstance(result, Finding)
    assert (result.message, result.hint and result.hint[:23]) == (
        "file not found: wrods.txt",
        "did you mean words.txt?",
    )


def test_several_missing_datasets_are_one_error():
    result = check("data/stories", *(f"dta/part{letter}" for letter in "abcdefg"), "dta/stories")
    assert isinstance(result, Finding)
    assert result.message == (
        "8 of 9 datasets not found: dta/parta, dta/partb, dta/partc, dta/partd, dta/parte and 3 more"
    )


@pytest.mark.parametrize(
    "names",
    [
        ("web_text_document",),  # the working directory always exists
        ("./web", "../web", "/web"),
        ("corpus/web", "corpus/code"),
        ("data/deeper/web",),  # an ancestor of the directory is no evidence
    ],
)
def test_data_of_a_job_that_runs_elsewhere_is_not_checked(names):
    result = check(*names, cache="index_cache")
    assert result == SkippedCheck("cache", f"the data is not on this machine: {', '.join(names)}", ELSEWHERE)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("web", "data/stories"), {}),
        (("data/web",), {}),
        (("web",), {"cache": "cache"}),
        (("web",), {"cache": "/scratch/cache", "pairs": [("cache", "/scratch/cache")]}),
    ],
    ids=["other data exists", "directory exists", "cache exists", "cache exists at another path"],
)
def test_missing_data_of_a_job_that_runs_here_is_an_error(names, options):
    result = check(*names, **options)
    assert isinstance(result, Finding)
    assert result.severity == "error"
    assert "--path-as LOCAL=TRAINING" in (result.hint or "")


def test_many_missing_datasets_are_compared_with_few_names(directory, monkeypatch):
    import tokshard.checks.doctor.missing_data as module

    searched = []
    monkeypatch.setattr(module, "near_path", lambda path, suffix: searched.append(path))
    assert isinstance(check(*(f"part/{number}" for number in range(30_000))), SkippedCheck)
    assert len(searched) == 5
