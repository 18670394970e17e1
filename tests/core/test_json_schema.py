"""JSON Schemas of documents: docs/schemas is what the codec's classes say."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path

import pytest

from tokshard.core.json_schema import documents, file_name, json_schema

ROOT = Path(__file__).parents[2]


@pytest.fixture
def update_schemas():
    loader = importlib.machinery.SourceFileLoader("update_schemas", str(ROOT / "scripts/update_schemas"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("update_schemas", loader))
    loader.exec_module(module)
    return module


def test_the_published_schemas_are_those_of_the_code(update_schemas):
    published = {path.name: path.read_text() for path in (ROOT / "docs/schemas").iterdir()}
    generated = update_schemas.generated()
    assert published.keys() == generated.keys()
    for name, text in generated.items():
        assert published[name] == text, f"{name} differs; run scripts/update_schemas"


def test_the_script_writes_missing_schemas_and_removes_stale_ones(
    update_schemas, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(update_schemas, "FOLDER", tmp_path)
    generated = update_schemas.generated()
    (tmp_path / "gone-1.json").write_text("{}\n")
    (tmp_path / "plan-1.json").write_text("{}\n")

    monkeypatch.setattr("sys.argv", ["update_schemas", "--check"])
    assert update_schemas.main() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{name} differs" for name in sorted({*generated, "gone-1.json"})]
    assert {path.name for path in tmp_path.iterdir()} == {"gone-1.json", "plan-1.json"}

    monkeypatch.setattr("sys.argv", ["update_schemas"])
    assert update_schemas.main() == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == generated

    monkeypatch.setattr("sys.argv", ["update_schemas", "--check"])
    assert update_schemas.main() == 0


def test_every_schema_is_self_contained():
    for name, cls in documents().items():
        schema = json_schema(cls)
        assert json.dumps({"const": name})[1:-1] in json.dumps(schema)
        assert file_name(name) == name.removeprefix("tokshard.").replace("/", "-") + ".json"
        references = set(_references(schema))
        assert all(reference.startswith("#/$defs/") for reference in references), name
        assert {reference.removeprefix("#/$defs/") for reference in references} <= schema.get(
            "$defs", {}
        ).keys()


def _references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)
