"""Cached indexes, caches and blends: every figure of a summary is counted one by one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support.index_caches import LENGTHS, build_requests, entry_for, request_for, write_dataset
from support.mixture_data import NAMES, run, write_mixture
from tokshard.checks.inspect.blend_facts import describe_split
from tokshard.checks.inspect.indexes import inspect_cache, inspect_index
from tokshard.errors import InputError
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.index.splits import parse_split


@pytest.fixture
def index(tmp_path):
    """Build one index; return what its files are."""
    prefix = write_dataset(str(tmp_path / "data/x"))
    request = request_for(prefix, training_path=prefix)
    build_requests([request], cache_directory=str(tmp_path / "cache"), workers=1)
    return entry_for(request, tmp_path / "cache")


def test_an_index_is_counted(index):
    found = inspect_index(index.description_path)
    documents, rows, shuffle = (np.load(index.array_path(name)) for name in index.arrays)
    assert (found.entry.condition, found.entry.reason) == ("complete", "")
    assert found.entry.samples == len(shuffle)
    assert found.statistics.sequences == len(set(documents.tolist()))
    assert found.statistics.epochs == len(documents) / found.statistics.sequences
    # How many sequences each sample reads from, by walking through its tokens.
    twin = Counter()
    for (first, _), (last, _) in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        twin[last - first + 1] += 1
    pieces = found.statistics.sequences_per_sample
    assert (pieces.count, pieces.shortest, pieces.longest) == (twin.total(), min(twin), max(twin))
    for bucket in pieces.bins:
        assert bucket.count == sum(twin[size] for size in range(bucket.low, bucket.high + 1))
    assert (found.dataset_condition, found.detail) == ("unchanged", None)
    assert found.sources is None
    assert [array.shape for array in found.entry.arrays] == [documents.shape, rows.shape, shuffle.shape]


def test_a_changed_dataset_is_told(index, tmp_path):
    write_dataset(str(tmp_path / "data/x"), [*LENGTHS, 9])
    found = inspect_index(index.description_path)
    assert found.dataset_condition == "changed"
    assert "bin_bytes was" in found.detail
    (tmp_path / "data/x.idx").unlink()
    found = inspect_index(index.description_path)
    assert found.dataset_condition == "unreadable"
    assert "x.idx" in found.detail


def test_an_index_of_another_program_is_told(index):
    Path(index.sidecar_path).unlink()
    found = inspect_index(index.description_path)
    assert found.dataset_condition == "unknown"
    assert (found.entry.sidecar, found.entry.condition) == (None, "complete")


@pytest.mark.parametrize("name", ["description", "document_index", "shuffle_index"])
def test_a_missing_file_makes_it_incomplete(index, name):
    path = index.description_path if name == "description" else index.array_path(name)
    Path(path).unlink()
    found = inspect_index(index.description_path)
    assert (found.entry.condition, found.statistics) == ("missing", None)
    assert found.entry.reason == f"{Path(path).name} missing"
    assert (found.entry.samples is None) == (name == "shuffle_index")
    json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("which", "content", "text"),
    [
        ("description", b"{}", "class must be 'GPTDataset', got null"),
        ("description", b"\xff", "not valid JSON"),
        ("shuffle_index", b"\x93NUMPY", "does not begin with the .npy header"),
        ("sample_index", b"", "does not begin with the .npy header"),
        ("sidecar", b"[]", "not a JSON object"),
        ("sidecar", b'{"schema": "x"}', "schema must be 'tokshard.cache/2', got 'x'"),
    ],
)
def test_a_damaged_file_is_told_and_is_no_error(index, which, content, text):
    paths = {"description": index.description_path, "sidecar": index.sidecar_path}
    Path(paths.get(which) or index.array_path(which)).write_bytes(content)
    found = inspect_index(index.description_path)
    assert (found.entry.condition, found.statistics) == ("differs", None)
    assert text in found.entry.reason
    json.dumps(found.to_json())


def test_a_description_under_another_name_is_told(index):
    path = Path(index.description_path)
    other = path.with_name(f"{'0' * 32}-GPTDataset-train-description.txt")
    other.write_bytes(path.read_bytes())
    found = inspect_index(str(other))
    assert found.entry.condition == "missing"
    assert "shuffle_index.npy missing" in found.entry.reason
    assert f"{other} contradicts the hash in its name" in found.entry.reason
    for name in index.arrays:
        array = Path(index.array_path(name))
        array.with_name(array.name.replace(index.hash, "0" * 32)).write_bytes(array.read_bytes())
    assert inspect_index(str(other)).entry.condition == "differs"


def test_a_file_that_is_no_index_is_refused():
    with pytest.raises(InputError, match="is not the name of a cached index file"):
        inspect_index("cache/README")


def test_a_cache_lists_all_its_indexes(tmp_path, monkeypatch):
    monkeypatch.chdir(write_mixture(tmp_path))
    sizes = ("--seq-length", "16", "--split", "90,10,0", "--num-samples", "40,4,0")
    assert run("blend", "0.7", "data/web", "0.3", "data/code", *sizes, *NAMES, "-o", "mix").returncode == 0
    found = inspect_cache("mix/cache")
    assert [(entry.name, entry.split, entry.is_blend) for entry in found.entries] == [
        ("data/code", "train", False),
        ("data/code", "valid", False),
        ("data/web", "train", False),
        ("data/web", "valid", False),
        ("blend of 2 datasets", "train", True),
        ("blend of 2 datasets", "valid", True),
    ]
    assert found.size_bytes == sum(path.stat().st_size for path in Path("mix/cache").glob("*.npy"))
    assert found.to_json()["schema"] == "tokshard.inspect-cache/2"
    blend = found.entries[4]
    sources = inspect_index(f"mix/cache/{blend.hash}-BlendedDataset-train-description.txt").sources
    drawn = Counter(np.load(f"mix/cache/{blend.hash}-BlendedDataset-train-dataset_index.npy").tolist())
    assert [(source.dataset_path, source.draws) for source in sources] == [
        ("data/web", drawn[0]),
        ("data/code", drawn[1]),
    ]
    assert [source.share for source in sources] == [drawn[0] / 40, drawn[1] / 40]
    lines = list(np.load(f"mix/cache/{blend.hash}-BlendedDataset-train-dataset_index.npy"))
    for number, source in enumerate(sources):
        worst = max(abs(source.weight * step - lines[:step].count(number)) for step in range(len(lines) + 1))
        assert source.weight_error == pytest.approx(worst)


def test_an_index_of_no_samples_is_shown(tmp_path):
    prefix = write_dataset(str(tmp_path / "data/x"), [3, 2])
    settings = {"split_name": "valid", "split": parse_split("1,1"), "num_samples": 0, "sequence_length": 50}
    request = request_for(prefix, training_path=prefix, **settings)
    build_requests([request], cache_directory=str(tmp_path / "cache"), workers=1)
    found = inspect_index(entry_for(request, tmp_path / "cache").description_path)
    assert (found.entry.samples, found.statistics.sequences_per_sample.count) == (0, 0)


@pytest.fixture
def mix(tmp_path, monkeypatch):
    monkeypatch.chdir(write_mixture(tmp_path))
    sizes = ("--seq-length", "16", "--split", "90,10,0", "--num-samples", "60,0,0")
    assert run("blend", "0.7", "data/web", "0.3", "data/code", *sizes, *NAMES, "-o", "mix").returncode == 0
    return Path("mix")


def test_the_summary_of_a_blend_is_its_document(mix):
    for path in ("mix", "mix/blend.json"):
        assert tokshard.inspect(path) == BlendDocument.read("mix")


def test_every_figure_of_the_certificate_is_in_the_table(mix):
    certificates = BlendDocument.read("mix").certificates
    section = describe_split("train", "weighted", certificates["train"])
    table = section.blocks[0]
    for row, source in zip(table.rows, certificates["train"].sources, strict=True):
        cells = dict(zip(table.header, row, strict=True))
        assert cells["source"] == source.prefix
        assert cells["samples"] == str(source.samples)
        assert cells["documents read"] == f"{source.documents_drawn} of {source.documents}"
        assert cells["share"] == f"{100 * source.share:.2f}%"
        assert cells["epochs"] == f"{source.epochs:.2f}"
    assert "no samples" in describe_split("valid", "weighted", certificates["valid"]).title
    assert "60 samples" in section.title
