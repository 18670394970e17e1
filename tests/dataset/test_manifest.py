"""Manifests: what we wrote is read, and everything else is an error that names the field."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core.codec import shown
from tokshard.dataset.manifest import Manifest, check_sizes, file_of, manifest_path, read_manifest
from tokshard.errors import IntegrityError
from tokshard.storage.digest import UNSEALED, seal_of, sealed

SOUND = json.loads((Path(__file__).parents[1] / "golden/formats/dataset-2.json").read_bytes())
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
    for name, entry in Manifest.from_json(manifest, "x").files.by_name().items():
        with open(file_of(prefix, name), "wb") as file:
            file.truncate(entry.size_bytes)
    with open(manifest_path(prefix), "w", encoding="utf-8") as file:
        json.dump(manifest, file)
    return prefix


def test_a_sound_manifest_comes_back():
    manifest = Manifest.from_json(SOUND, "x")
    assert manifest.to_json() == SOUND
    assert list(manifest.to_json()) == list(SOUND)


def test_a_manifest_is_sealed_when_it_is_made():
    parts = {name: getattr(Manifest.from_json(SOUND, "x"), name) for name in Manifest.__slots__}
    parts["seal"] = UNSEALED
    assert sealed(Manifest(**parts)).seal == SOUND["seal"] == seal_of(SOUND)
    other = sealed(Manifest(**{**parts, "tokenizer": None}))
    assert other.seal == seal_of(other.to_json()) != SOUND["seal"]


def test_a_wrong_seal_is_read_and_left_to_verify():
    assert Manifest.from_json({**SOUND, "seal": "0" * 64}, "x").seal == "0" * 64


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_needed(name):
    value = {key: SOUND[key] for key in SOUND if key != name}
    assert refused(value).field == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", ONE_OF_EACH_TYPE, ids=repr)
def test_every_field_has_its_type(name, wrong):
    if (name, wrong) == ("tokenizer", None) or (name, wrong) == ("inputs", []):
        return
    assert refused({**SOUND, name: wrong}).field.split(".")[0].split("[")[0] == name


def leaves(value, path=()):
    """Yield the path of every number and text of a manifest."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


LEAVES = list(leaves(SOUND))
OPTIONAL_INSIDE = {"sha256", "definition_sha256", "prefix_ids", "suffix_ids"}  # of the tokenizer
OPTIONAL = {"size_bytes", "mtime_ns", "version", "eod_id", "eod_token", "name", "field"}
"""Fields that may be null or absent somewhere."""


def changed(path, wrong):
    value = copy.deepcopy(SOUND)
    owner = value
    for key in path[:-1]:
        owner = owner[key]
    if wrong == "absent":
        del owner[path[-1]]
    else:
        owner[path[-1]] = wrong
    return value


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("wrong", [None, -2, 1.5, [], "absent"], ids=repr)
def test_every_inner_field_is_there_and_has_its_type(path, wrong):
    is_count_by_name = path[-2:-1] in {("encoders",), ("rejected",)}
    if wrong is None and path[-1] in OPTIONAL:
        return
    if wrong == "absent" and ((path[-1] == "version" and path[0] == "inputs") or is_count_by_name):
        return
    if wrong in (None, "absent") and path[0] == "tokenizer" and path[-1] in OPTIONAL_INSIDE:
        return
    if wrong == "absent" and isinstance(path[-1], int):
        return
    if wrong == -2 and path[-1] == "mtime_ns":
        return
    field = ".".join(str(part) for part in path if not isinstance(part, int))
    found = refused(changed(path, wrong)).field
    assert "".join(part.split("[")[0] + "." for part in found.split("."))[:-1] == field


@pytest.mark.parametrize("name", ["", "comment", "Schema", "files ", "__class__"])
def test_unknown_fields_are_refused(name):
    error = refused({**SOUND, name: {}})
    assert error.field == (name or None)
    assert "unknown" in str(error)


@pytest.mark.parametrize("section", ["tool", "dataset", "counts", "files", "tokenizer", "options"])
def test_unknown_inner_fields_are_refused(section):
    assert refused({**SOUND, section: {**SOUND[section], "extra": 1}}).field == f"{section}.extra"


@pytest.mark.parametrize(
    "schema", ["tokshard.dataset/3", "tokshard.dataset/2 ", "", None, 1, ["tokshard.dataset/2"]]
)
def test_other_schemas_are_refused_and_named(schema):
    assert shown(schema) in str(refused({**SOUND, "schema": schema}))


@pytest.mark.parametrize("name", ["bin", "idx", "units"])
def test_tokens_index_and_units_must_be_listed(name):
    files = {key: value for key, value in SOUND["files"].items() if key != name}
    assert refused({**SOUND, "files": files}).field == f"files.{name}"


@pytest.mark.parametrize("size", [None, True, False, -1, 2**63, 1.0, "6", [6], {"size_bytes": 6}], ids=repr)
def test_sizes_are_integers_in_range(size):
    files = {**SOUND["files"], "bin": {**SOUND["files"]["bin"], "size_bytes": size}}
    assert refused({**SOUND, "files": files}).field == "files.bin.size_bytes"


@pytest.mark.parametrize("entry", [None, 6, "6", [], [6], {}, {"size": 6}], ids=repr)
def test_each_file_has_an_entry_with_a_size(entry):
    assert refused({**SOUND, "files": {**SOUND["files"], "idx": entry}}).field.startswith("files.idx")


@pytest.mark.parametrize("digest", ["", "0" * 31, "0" * 33, "g" * 32, "A" * 32, 0, None])
def test_digests_are_digests(digest):
    for name, key in (("bin", "pieces_xxh3_128"), ("idx", "xxh3_128")):
        files = {**SOUND["files"], name: {**SOUND["files"][name], key: digest}}
        assert refused({**SOUND, "files": files}).field == f"files.{name}.{key}"


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
    value = {**SOUND, "files": {**SOUND["files"], name: SOUND["files"]["idx"]}}
    refused(value)
    prefix = str(tmp_path / "x")
    os.makedirs(prefix + ".tokshard")
    with open(manifest_path(prefix), "w", encoding="utf-8") as file:
        json.dump(value, file)
    monkeypatch.setattr(os, "stat", lambda *_, **__: pytest.fail("a file was looked at"))
    with pytest.raises(IntegrityError, match="is unknown"):
        read_manifest(prefix)
    with pytest.raises(IntegrityError, match="file names must have no directories"):
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


PLACES = [*((name,) for name in NAMES), ("files", "bin"), ("files", "bin", "size_bytes"), ("files", "x")]
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
        found = str(error.field).split(".")[0].split("[")[0]
    assert found in (changed, place[0])


def test_sizes_are_checked(tmp_path):
    prefix = write_dataset(tmp_path, SOUND)
    manifest = read_manifest(prefix)
    check_sizes(prefix, manifest)
    for name, entry in manifest.files.by_name().items():
        path = file_of(prefix, name)
        for size in (0, entry.size_bytes - 1, entry.size_bytes + 1):
            os.truncate(path, size)
            with pytest.raises(
                IntegrityError, match=f"must have {entry.size_bytes} bytes by its manifest, got {size}"
            ) as caught:
                check_sizes(prefix, manifest)
            assert caught.value.path == path
        os.unlink(path)
        with pytest.raises(IntegrityError, match=r"file not found: .* \(listed in the manifest\)") as caught:
            check_sizes(prefix, manifest)
        assert caught.value.path == path
        with open(path, "wb") as file:
            file.truncate(entry.size_bytes)
    check_sizes(prefix, manifest)
