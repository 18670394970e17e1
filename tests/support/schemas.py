"""The published schemas, and whether a document is what its schema says."""

from __future__ import annotations

from functools import cache

from jsonschema import Draft202012Validator

from tokshard.core.json_schema import documents, json_schema


@cache
def published():
    """Return each published schema by its name."""
    return {name: json_schema(cls) for name, cls in documents().items() if cls.IS_PUBLISHED}


@cache
def validator(name):
    """Return the validator of a schema."""
    return Draft202012Validator(published()[name])


def defects_of(document):
    """Return what a document has against the schema that it names."""
    errors = validator(document["schema"]).iter_errors(document)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]
