"""The published schemas, and whether a document is what its schema says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "docs/schemas"


def file_of(schema):
    """Return the file name that belongs to a ``schema`` field.

    Example:
        >>> file_of("tokshard.error/1")
        'error-1.json'
    """
    return schema.removeprefix("tokshard.").replace("/", "-") + ".json"


@cache
def published():
    """Return the content of each file, by its name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@cache
def validator(name):
    """Return the validator of a file."""
    return Draft202012Validator(published()[name])


def defects_of(document):
    """Return what a document has against the schema that it names."""
    errors = validator(file_of(document["schema"])).iter_errors(document)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]
