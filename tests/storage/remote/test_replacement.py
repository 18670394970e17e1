"""A dataset in a store that is replaced: at every moment a reader sees the old, the new, or an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.object_store import SLOW_DOWN, Bucket, Fault, Request
from support.tokenize_runs import run_tokenize
from tokshard import IndexedDataset
from tokshard.errors import StorageError, TokshardError
from tokshard.text.tokenize.workers.executor import InlineExecutor

TEXTS = {"old": ["one two", "three", "four five six"], "new": ["six", "five four three", "two one"]}
"""Datasets whose files have the same sizes."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")


def tokenize(name: str, url: str, **options) -> None:
    Path(f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[name]))
    run_tokenize(f"{name}.jsonl", url, executor=InlineExecutor(), **options)


def read(url: str) -> list[list[int]] | str:
    """Return the sequences of a dataset, or the name of the error."""
    try:
        dataset = IndexedDataset(url)
        return [dataset[number].tolist() for number in range(len(dataset))]
    except TokshardError as error:
        return type(error).__name__


@pytest.fixture
def replaced(bucket: Bucket) -> tuple[str, dict[str, list[list[int]]]]:
    """A dataset in a store, and the contents of it and of the one that replaces it."""
    url, contents = f"{bucket.url}/out/web", {}
    for name in ("new", "old"):
        tokenize(name, f"{bucket.url}/{name}/web")
        contents[name] = read(f"{bucket.url}/{name}/web")
    tokenize("old", url)
    assert contents["old"] != contents["new"]
    bucket.proxy.reset()
    return url, contents


def test_a_reader_never_sees_a_mixture(bucket: Bucket, replaced) -> None:
    url, contents = replaced
    seen = [read(url)]

    def judge(request: Request) -> Fault | None:
        if request.is_write:
            seen.append(read(url))
        return None

    bucket.proxy.judge = judge
    tokenize("new", url, force=True)
    bucket.proxy.judge = lambda _: None
    seen.append(read(url))
    assert seen[0] == contents["old"]
    assert seen[-1] == contents["new"]
    for content in seen:
        assert content in (contents["old"], contents["new"], "MissingFileError")


@pytest.mark.parametrize(
    "sent", range(1, 5), ids=["manifest removed", "index removed", "tokens sent", "index sent"]
)
def test_a_replacement_that_stops_at_any_request_is_completed(bucket: Bucket, sent: int) -> None:
    url = f"{bucket.url}/out/web"
    tokenize("old", url)
    old = read(url)
    bucket.proxy.reset()
    writes: list[Request] = []

    def judge(request: Request) -> Fault | None:
        writes.extend([request] * request.is_write)
        return SLOW_DOWN if len(writes) > sent else None

    bucket.proxy.judge = judge
    with pytest.raises(StorageError):
        tokenize("new", url, force=True)
    bucket.proxy.reset()
    found = read(url)
    tokenize("new", url, force=True)
    new = read(url)
    assert new not in (old, "MissingFileError")
    assert found in (old, new, "MissingFileError")
    assert "out/web.tokshard/manifest.json" in set(bucket.keys())
