"""Manifests: what we wrote is read, and everything else is an error that names the field."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.dataset.manifest import SCHEMA, Manifest, check_sizes, file_of, manifest_path, read_manifest
from tokshard.errors import IntegrityError

DIGEST = "0" * 32
SOUND = {
    "schema": SCHEMA,
    "tool": {"name": "tokshard", "version": "0.1"},
    "fingerprint": "0" * 64,
    "dataset": {
        "dtype": "uint16",
        "units": 1,
        "documents": 1,
        "tokens": 3,
        "sequences": 1,
        "empty_documents": 0,
        "eod_in_text": 0,
        "longest_sequence": 3,
    },
    "files": {
        "bin": {"bytes": 6, "pieces_xxh3_128": DIGEST},
        "idx": {"bytes": 62, "xxh3_128": DIGEST},
        "units.jsonl": {"bytes": 10, "xxh3_128": DIGEST},
    },
    "tokenizer": {"kind": "bytes"},
    "options": {"field": ["text"]},
    "engine": {"documents": {"fast": 1}, "compared": 1},
    "inputs": [
        {"path": "a.jsonl", "content_bytes": 9, "records": 1, "documents": 1, "rejected": 0, "blank_lines": 0}
    ],
    "counts": {
        "records": 1,
        "documents": 1,
        "lines": 1,
        "blank_lines": 0,
        "content_bytes": 9,
        "rejected": {"not-object": 0},
    },
}
NAMES = sorted(SOUND)
ONE_OF_EACH_TYPE = [None, True, 0, 1.5, "text", [], [1], {}, {"a": 1}]


def refused(value):
    with pytest.raises(IntegrityError) as caught:
        Manifest.from_json(value, "x.tokshard/manifest.json")
    assert caught.value.path == "x.tokshard/manifest.json"
    assert str(caught.value).startswith("x.tokshard/manifest.json")
    return caught.value


def write_dataset(directory, manifest):
    """Write files of the sizes that a manifest tells."""
    prefix = str(directory / "x")
    os.makedirs(prefix + ".tokshard")
    for name, entry in manifest["files"].items():
        with open(file_of(prefix, name), "wb") as file:
            file.truncate(entry["bytes"])
    with open(manifest_path(prefix), "w", encoding="utf-8") as file:
        json.dump(manifest, file)
    return prefix


def test_a_sound_manifest_comes_back():
    manifest = Manifest.from_json(SOUND, "x")
    assert manifest.to_json() == SOUND
    assert [field.name for field in fields(Manifest)] == list(SOUND)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_needed(name):
    value = {key: SOUND[key] for key in SOUND if key != name}
    assert refused(value).field == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", ONE_OF_EACH_TYPE, ids=repr)
def test_every_field_has_its_type(name, wrong):
    if type(wrong) is type(SOUND[name]) and name != "schema":
        return
    assert refused({**SOUND, name: wrong}).field == name


def inner_fields(value, path=()):
    """Yield the path of every leaf of a manifest that has to be there."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from inner_fields(inner, (*path, key))
        else:
            yield (*path, key)


COUNTED = [path for path in inner_fields(SOUND) if path[0] in {"dataset", "engine", "inputs", "counts"}]


@pytest.mark.parametrize("path", COUNTED, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("wrong", [None, -1, True, 1.5, [], "absent"], ids=repr)
def test_every_count_is_there_and_is_one(path, wrong):
    if path[-1] in {"dtype", "path"} and wrong == "absent":
        wrong = None
    value = copy.deepcopy(SOUND)
    owner = value
    for key in path[:-1]:
        owner = owner[key]
    if wrong == "absent" and path[-1] not in {"fast", "not-object"}:
        del owner[path[-1]]
    else:
        owner[path[-1]] = wrong
    assert path[-1] in refused(value).field


@pytest.mark.parametrize("name", ["", "comment", "Schema", "files ", "__class__"])
def test_unknown_fields_are_refused(name):
    error = refused({**SOUND, name: {}})
    assert error.field == name
    assert repr(name) in str(error)


@pytest.mark.parametrize(
    "schema", ["tokshard.dataset/2", "tokshard.dataset/1 ", "", None, 1, ["tokshard.dataset/1"]]
)
def test_other_schemas_are_refused_and_named(schema):
    assert repr(schema) in str(refused({**SOUND, "schema": schema}))


@pytest.mark.parametrize("name", ["bin", "idx"])
def test_tokens_and_index_must_be_listed(name):
    files = {key: value for key, value in SOUND["files"].items() if key != name}
    assert refused({**SOUND, "files": files}).field == "files"


@pytest.mark.parametrize("size", [None, True, False, -1, 2**63, 1.0, "6", [6], {"bytes": 6}], ids=repr)
def test_sizes_are_integers_in_range(size):
    files = {**SOUND["files"], "bin": {"bytes": size, "pieces_xxh3_128": DIGEST}}
    assert refused({**SOUND, "files": files}).field == "files.bin"


@pytest.mark.parametrize("entry", [None, 6, "6", [], [6], {}, {"size": 6}], ids=repr)
def test_each_file_has_an_entry_with_a_size(entry):
    assert refused({**SOUND, "files": {**SOUND["files"], "idx": entry}}).field == "files.idx"


OUTSIDE = [
    "../x.bin",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "~/x",
    "a\\b",
    "C:x",
    "x\0",
    "a\nb",
    "\ud800",
    "x" * 300,
]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_files_outside_are_refused_before_anything_is_opened(tmp_path, monkeypatch, name):
    value = {**SOUND, "files": {**SOUND["files"], name: {"bytes": 0}}}
    refused(value)
    prefix = str(tmp_path / "x")
    os.makedirs(prefix + ".tokshard")
    with open(manifest_path(prefix), "w", encoding="utf-8") as file:
        json.dump(value, file)
    monkeypatch.setattr(os, "stat", lambda *_, **__: pytest.fail("a file was looked at"))
    with pytest.raises(IntegrityError, match="not a plain file name"):
        read_manifest(prefix)
    with pytest.raises(IntegrityError):
        file_of(prefix, name)


def test_where_the_files_of_a_manifest_lie():
    assert file_of("a/x", "bin") == "a/x.bin"
    assert file_of("a/x", "idx") == "a/x.idx"
    assert file_of("a/x", "units.jsonl") == "a/x.tokshard/units.jsonl"
    assert manifest_path("a/x") == "a/x.tokshard/manifest.json"


def test_reading(tmp_path):
    assert read_manifest(str(tmp_path / "nothing")) is None
    (tmp_path / "file.tokshard").write_bytes(b"")
    assert read_manifest(str(tmp_path / "file")) is None
    prefix = write_dataset(tmp_path, SOUND)
    assert read_manifest(prefix) == Manifest.from_json(SOUND, "x")


PLACES = [*((name,) for name in NAMES), ("files", "bin"), ("files", "bin", "bytes"), ("files", "x")]
VALUES = st.recursive(
    st.sampled_from(ONE_OF_EACH_TYPE), lambda inner: st.dictionaries(st.sampled_from(["bytes", "x"]), inner)
)


@given(place=st.sampled_from(PLACES), value=VALUES)
def test_any_value_anywhere_is_a_manifest_or_an_integrity_error(place, value):
    changed = copy.deepcopy(SOUND)
    above = changed
    for name in place[:-1]:
        above = above[name]
    above[place[-1]] = value
    try:
        found = Manifest.from_json(changed, "x").to_json()
    except IntegrityError as error:
        found = str(error.field).split(".")[0]
    assert found in (changed, place[0])


def test_sizes_are_checked(tmp_path):
    prefix = write_dataset(tmp_path, SOUND)
    manifest = read_manifest(prefix)
    check_sizes(prefix, manifest)
    for name, entry in SOUND["files"].items():
        path = file_of(prefix, name)
        for size in (0, entry["bytes"] - 1, entry["bytes"] + 1):
            os.truncate(path, size)
            with pytest.raises(
                IntegrityError, match=f"has {size} bytes, but the manifest says {entry['bytes']}"
            ) as caught:
                check_sizes(prefix, manifest)
            assert caught.value.path == path
        os.unlink(path)
        with pytest.raises(IntegrityError, match="is missing") as caught:
            check_sizes(prefix, manifest)
        assert caught.value.path == path
        with open(path, "wb") as file:
            file.truncate(entry["bytes"])
    check_sizes(prefix, manifest)
