"""TOML files that users write: their parsing, and errors that name the file and the key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from tokshard.errors import InputError


def parse_toml(text: str, path: str, hint: str) -> dict[str, Any]:
    """Return the table in a TOML text; ``path`` and ``hint`` are for the error.

    Raises:
        InputError: The text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError if Python reads no integer of so many digits
        raise InputError(f"{path} is not valid TOML: {error}", hint=hint) from error


def check_keys(table: Iterable[str], allowed: Sequence[str], prefix: str) -> None:
    """Refuse an unknown key of a table.

    Raises:
        InputError: There is one; the hint names the most similar key, or all.
    """
    for key in table:
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f"use {close[0]}" if close else f"use one of {', '.join(allowed)}"
            raise InputError(f"unknown key {prefix}{key}", hint=hint)


def check_tables(tables: Any, name: str) -> Sequence[dict[str, Any]]:
    """Return the tables of a list, ``[[name]]``.

    Raises:
        InputError: The value is not a list of tables.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{name} must be a list of tables", hint=f"write [[{name}]] before each source")
    return tables
