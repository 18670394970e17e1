"""JSON Schemas of documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tokshard.core.json_schema import documents, file_name, json_schema

ROOT = Path(__file__).parents[2]


def test_the_script_writes_the_schema_of_each_published_document(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts/schemas", tmp_path / "schemas"], check=True, timeout=60)
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "schemas").iterdir()}
    assert written == {
        file_name(name): json_schema(cls) for name, cls in documents().items() if cls.IS_PUBLISHED
    }


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
