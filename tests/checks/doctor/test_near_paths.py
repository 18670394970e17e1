"""Paths that do not exist, and the existing paths that they may mean."""

from __future__ import annotations

import pytest

from tokshard.checks.doctor.near_paths import near_path


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data/web.idx", "data/web.bin", "data/cc/node1.idx", "index_cache/a", "date/notes"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("index_cahce", "index_cache"),
        ("index_cahce/", "index_cache"),
        ("./index_cach", "./index_cache"),
        ("data/cd", "data/cc"),
        ("dta/cd", "data/cc"),
        ("index", None),
        ("other", None),
        ("s3://bucket/data", None),
        ("data/web.idx/a", None),
        ("", None),
        ("a\0b", None),
        ("/" + "a/" * 100_000, None),
        ("./" * 3_000 + "index_cahce", None),
        ("./" * 20 + "index_cahce", "./" * 20 + "index_cache"),
    ],
)
def test_near_path_of_a_directory(path, near):
    assert near_path(path) == near


@pytest.mark.parametrize(
    ("prefix", "near"),
    [
        ("data/wbe", "data/web"),
        ("dta/web", "data/web"),
        ("dat/web", "data/web"),
        ("data/c/node1", "data/cc/node1"),
        ("data/cc/node2", None),
        ("date/web", None),
        ("data/code", None),
        ("data/we/b", None),
    ],
)
def test_near_path_of_a_dataset_has_an_index(prefix, near):
    assert near_path(prefix, ".idx") == near


def test_near_path_of_an_absolute_path(directory):
    assert near_path(f"{directory}/dta/wbe", ".idx") == f"{directory}/data/web"
