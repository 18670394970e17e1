"""docs/reference/formats: the fields are those of the docstrings, and ids follow from the files alone."""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import format_pages  # noqa: E402

GOLDEN = ROOT / "tests/golden/formats"
CLASSES = {
    cls: None
    for classes in format_pages.PAGES.values()
    for described in classes
    for cls in format_pages.records_in(described, {described: None})
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_docstring_of_a_class_describes_all_of_its_fields(cls):
    described = format_pages.meanings(cls)
    assert set(format_pages.stored_fields(cls)) <= set(described)
    assert set(described) <= {field.name for field in dataclasses.fields(cls)}
    assert all(text.endswith(".") for text in described.values())


@pytest.mark.parametrize("page", format_pages.PAGES)
def test_the_fields_on_a_page_are_those_of_the_docstrings(page):
    text = (format_pages.DIRECTORY / page).read_text()
    assert text == format_pages.format_pages()[page], "run scripts/update_docs"
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(headings) == len(set(headings))


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def placeless(value):
    """Return a source without the directories of its files, or the paths and fingerprints of datasets."""
    if isinstance(value, list):
        return [placeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: placeless(item) for name, item in value.items() if name != "fingerprint"}
    if "path_prefix" in found:
        found["path_prefix"] = "" if "bin" in found else found["path_prefix"].rpartition("/")[2]
    return found


def test_plan_id():
    plan = json.loads((GOLDEN / "plan-2.json").read_text())
    sources = json.loads((GOLDEN / "sources-2.json").read_text())["streams"]
    streams = {
        name: {
            "source": digest(placeless(sources[name])),
            **{field: stream[field] for field in ("order", "sort_key", "document_boundaries")},
        }
        for name, stream in plan["streams"].items()
    }
    assert [stream["source_id"] for stream in plan["streams"].values()] == [
        stream["source"] for stream in streams.values()
    ]
    identity = {"schema": "tokshard.plan/2", "topology": plan["topology"], "streams": streams}
    assert plan["plan_id"] == digest(identity)


def hash_of(arrays):
    return Path(arrays["path_prefix"]).name[:32]


def test_id_of_a_blend():
    blend = json.loads((GOLDEN / "blend-2.json").read_text())
    splits = {
        name: {
            "kind": split["kind"],
            "samples": split["samples"],
            "hash": hash_of(split["order"]) if "order" in split else None,
            "sources": [
                {
                    "hash": hash_of(source["index"]),
                    "samples": source["epochs"]["samples"],
                    **{key: source[key] for key in ("draws", "fingerprint")},
                }
                for source in split["sources"]
            ],
        }
        for name, split in blend["splits"].items()
    }
    builder = {key: value for key, value in blend["builder"].items() if key != "path_as"}
    assert blend["id"] == digest({"builder": builder, "splits": splits})
