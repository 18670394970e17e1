from pathlib import Path

import numpy as np
import pytest

from support.index_caches import (
    LENGTHS,
    build_requests,
    entry_for,
    entry_of,
    request_for,
    write_as_megatron,
    write_dataset,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.examination import examine
from tokshard.samples.index.npy import ArraySpec
from tokshard.samples.index.sidecar import Sidecar


@pytest.fixture
def entry(tmp_path):
    prefix = write_dataset(str(tmp_path / "data/web"))
    (outcome,) = build_requests([request_for(prefix)], cache_directory=str(tmp_path / "cache"))
    return entry_of(outcome)


def kinds(entry):
    return [problem.kind for problem in examine(entry).problems]


def test_an_entry_is_examined_by_itself(entry, tmp_path):
    found = examine(entry, digests=True)
    assert (found.condition, found.reason, found.problems) == ("fresh", "is complete", ())
    assert found.sidecar == Sidecar.read(entry.sidecar_path)
    assert CacheEntry.of(found.description, entry.directory) == entry
    for name in entry.arrays:
        assert found.specs[name] == ArraySpec.of(entry.load()[name])
    foreign = write_as_megatron(request_for("data/web"), LENGTHS, str(tmp_path / "other"))
    assert (examine(foreign).condition, examine(foreign).sidecar) == ("fresh", None)
    absent = examine(entry_for(request_for("x", seed=5), tmp_path))
    assert (absent.condition, absent.reason) == ("missing", "does not exist")


def test_each_kind_of_damage_is_named(entry):
    description, array = Path(entry.description_path), Path(entry.array_path("shuffle_index"))
    text, content = description.read_text(), array.read_bytes()
    description.write_text(text.replace('"random_seed": 1234', '"random_seed": 1235'))
    assert kinds(entry) == ["name"]
    description.write_text(text[:-1])
    assert kinds(entry) == ["description"]
    description.write_text(text)
    array.write_bytes(content[:-4])
    assert kinds(entry) == ["array"]
    np.save(array, entry_array(content)[:-1])
    assert kinds(entry) == ["array", "shape"]
    array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert kinds(entry) == []
    assert [problem.kind for problem in examine(entry, digests=True).problems] == ["digest"]
    assert examine(entry, digests=True).is_damaged
    array.write_bytes(content)
    sidecar = Path(entry.sidecar_path)
    known = sidecar.read_text()
    sidecar.write_text(known.replace(entry.hash, "0" * 32))
    assert kinds(entry) == ["sidecar"]
    sidecar.write_text(known.replace("shuffle_index.npy", "other_index.npy"))
    assert kinds(entry) == ["sidecar"]


def entry_array(content):
    return np.frombuffer(content[128:], np.uint32)
