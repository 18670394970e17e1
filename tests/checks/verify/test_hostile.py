"""Whatever stands in the JSON files of a product, verify ends with findings and never with an error."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from support import bad_datasets, bad_products
from support.file_changes import edit_manifest
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.options import VerifyOptions
from tokshard.core.json_text import dump_json

ODD = [None, True, -1, 2**70, 1e300, "", "x", "\0../..\x1b", [], {}, [[1, None]], {"a": 1}]


def places(value, path=()):
    """Yield the path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from places(inner, (*path, name))


def changed(value, path, odd):
    result = copy.deepcopy(value)
    holder = result
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = odd
    return result


def without(value, path):
    result = copy.deepcopy(value)
    holder = result
    for name in path[:-1]:
        holder = holder[name]
    del holder[path[-1]]
    return result


def variants(value):
    for number, path in enumerate(places(value)):
        yield without(value, path)
        # All odd values at all places would take minutes: they go round.
        for step in range(4):
            yield changed(value, path, ODD[(number + step * 3) % len(ODD)])


def test_odd_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prefix = bad_datasets.sound(tmp_path)
    path = Path(f"{prefix}.tokshard/manifest.json")
    content = path.read_bytes()
    count = 0
    for value in variants(json.loads(content)):
        path.write_bytes(dump_json(value))
        if path.read_bytes() != content and "seal" in value:
            assert not verify(VerifyOptions(path=prefix, level="deep")).sound
        if isinstance(value.get("seal"), str):
            edit_manifest(prefix, lambda _: None)
            verify(VerifyOptions(path=prefix, level="deep"))
        count += 1
    assert count > 300
    path.write_bytes(content)
    assert verify(VerifyOptions(path=prefix, level="deep")).findings == ()


def test_odd_units(tmp_path):
    prefix = bad_datasets.sound(tmp_path)
    path = Path(f"{prefix}.tokshard/units.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    for value in variants(json.loads(lines[1])):
        path.write_bytes(lines[0] + json.dumps(value).encode() + b"\n" + b"".join(lines[2:]))
        assert not verify(VerifyOptions(path=prefix, level="deep")).sound
    for odd in (2**62 - 1, 2**61, 2**53):
        for name in ("tokens", "documents", "sequences", "content_bytes"):
            changes = [{**json.loads(line), name: odd} for line in lines]
            path.write_bytes(b"".join(json.dumps(unit).encode() + b"\n" for unit in changes))
            assert not verify(VerifyOptions(path=prefix, level="deep")).sound


@pytest.mark.parametrize("suffix", ["tokshard.json", "description.txt"])
@pytest.mark.parametrize("kind", ["GPTDataset", "BlendedDataset"])
def test_odd_caches(tmp_path, suffix, kind):
    blend = Path(bad_products.sound_blend(tmp_path))
    (path,) = list(blend.glob(f"cache/*-{kind}-train-{suffix}"))[:1]
    value = json.loads(path.read_bytes())
    if "datasets" in value:
        value["datasets"] = value["datasets"][:1]
    for variant in variants(value):
        indent = 2 if suffix == "tokshard.json" else 4
        path.write_text(json.dumps(variant, indent=indent))
        verify(VerifyOptions(path=path, level="deep"))


@pytest.mark.parametrize("name", ["mix/blend.json", "plan/plan.json", "plan/rank-00001.json"])
def test_odd_documents(tmp_path, name):
    bad_products.sound_plan(tmp_path)
    path = tmp_path / name
    value = json.loads(path.read_bytes())
    for number, variant in enumerate(variants(value)):
        if number % 5 == 0:
            path.write_bytes(dump_json(variant))
            verify(VerifyOptions(path=path, level="structure"))
