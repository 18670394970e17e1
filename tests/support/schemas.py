"""The published schemas, and whether a document is what its schema says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

_LOADER = importlib.machinery.SourceFileLoader("schemas", str(Path(__file__).parents[2] / "scripts/schemas"))
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("schemas", _LOADER))
_LOADER.exec_module(script)


@cache
def published():
    """Return each published schema by its name."""
    return {name: script.json_schema(cls) for name, cls in script.published().items()}


@cache
def validator(name):
    """Return the validator of a schema."""
    return Draft202012Validator(published()[name])


def defects_of(document):
    """Return what a document has against the schema that it names."""
    errors = validator(document["schema"]).iter_errors(document)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]
