"""Recipes in files and words: TOML, and the forms that Megatron knows.

What Megatron would misread without a message is refused here, with the reading that it would have had.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tokshard.core.codec import shown
from tokshard.core.formatting import count
from tokshard.core.options import declared_options, parse_count, parse_number
from tokshard.errors import InputError, UsageError
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source, reads_as_number
from tokshard.samples.index.options import SAMPLES, SIZES, IndexingOptions
from tokshard.samples.index.sizes import Sizes
from tokshard.samples.index.splits import SPLITS
from tokshard.storage.reading import read_text

# 400 bytes for each of 20,000 sources, all that a blend.json can hold; the parser of TOML is slow.
_MAX_RECIPE_BYTES = 8 << 20
_EXAMPLE = "pass alternating weights and path prefixes (0.7 data/web 0.3 data/code), or only path prefixes"
_MIXTURE_KEYS = ("unit", "temperature", "source")
_SOURCE_KEYS = ("prefix", "weight", "epochs", "max_epochs", "pack")
# The options about samples that a recipe can set: those of which it is known whether they were given.
_OPTIONS = {
    field: found
    for field, found in declared_options(IndexingOptions).items()
    if found.option.group in {SAMPLES, SIZES} and found.default is None
}


def read_arguments(arguments: Sequence[str]) -> tuple[BlendRecipe, dict[str, Any]]:
    """Return the recipe that the arguments of a command name, and the options that its file gives.

    Args:
        arguments: One recipe file (``*.toml``), one file of Megatron's blends per split (``*.json``), one
            file of words (``@file``), or weights and prefixes, or prefixes alone.

    Raises:
        UsageError: They are invalid.
        InputError: A file cannot be read or used.
    """
    if len(arguments) == 1:
        only = arguments[0]
        if only.endswith(".toml"):
            return read_recipe(only)
        if only.endswith(".json"):
            return read_per_split(only), {}
        if only.startswith("@"):
            return read_data_args(only[1:]), {}
    return parse_words(arguments), {}


def parse_words(words: Sequence[str]) -> BlendRecipe:
    """Return the recipe of Megatron's ``--data-path``.

    Raises:
        UsageError: There is no word, weights and prefixes do not alternate, or a prefix reads as a number.

    Example:
        >>> parse_words(["0.7", "data/web", "0.3", "data/code"]).mixture.weights
        (0.7, 0.3)
        >>> parse_words(["1", "data/web", "data/code"])
        Traceback (most recent call last):
            ...
        tokshard.errors.UsageError: Megatron would read '1' as a path prefix: 3 words are an odd number
        hint: pass alternating weights and path prefixes (0.7 data/web 0.3 data/code), or only path prefixes
    """
    return BlendRecipe(_words_mixture(words), None, multiple_validation_sets=False)


def parse_per_split_words(
    train: Sequence[str] | None, valid: Sequence[str] | None, test: Sequence[str] | None,
    *, multiple_validation_sets: bool = False,
) -> BlendRecipe:  # fmt: skip
    """Return the recipe of Megatron's ``--train-data-path``, ``--valid-data-path``, ``--test-data-path``.

    Raises:
        UsageError: As for :func:`parse_words`, or there is none of them.
    """
    first, second, third = (
        None if words is None else _words_mixture(words) for words in (train, valid, test)
    )
    return BlendRecipe(None, (first, second, third), multiple_validation_sets)


def read_data_args(path: str) -> BlendRecipe:
    """Return the recipe in a file of Megatron's ``--data-args-path``: words by white space."""
    return parse_words(_read_recipe_text(path).split())


def read_per_split(path: str, *, multiple_validation_sets: bool = False) -> BlendRecipe:
    """Return the recipe in a file of Megatron's ``--per-split-data-args-path``.

    Args:
        path: JSON with ``train``, ``valid`` and ``test``: each a list of words, one text of them, or null.
        multiple_validation_sets: Whether the sources of validation stay apart.

    Raises:
        InputError: It is not such a file.
        UsageError: As for :func:`parse_words`.
    """
    try:
        value = json.loads(_read_recipe_text(path), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict) or set(value) != set(SPLITS):
        keys = (
            f"has the keys {', '.join(map(str, value))}"
            if isinstance(value, dict)
            else "is not a JSON object"
        )
        raise InputError(
            f"{path} {keys}",
            hint="use exactly the keys train, valid and test, with null for a split without data",
        )
    train, valid, test = (_words(value[name], name, path) for name in SPLITS)
    return parse_per_split_words(train, valid, test, multiple_validation_sets=multiple_validation_sets)


def _words(value: Any, name: str, path: str) -> list[str] | None:
    if value is None:
        return None
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{path}: {name} must be a string or a list of strings", hint="write weights as strings, too"
        )
    return words


def _words_mixture(words: Sequence[str]) -> Mixture:
    if not words:
        raise UsageError("at least one source is required", hint=_EXAMPLE)
    numbers = [reads_as_number(word) for word in words]
    if len(words) % 2 == 0 and any(numbers[::2]):
        return _weighted(words, numbers)
    if any(numbers):
        raise UsageError(_misread(words, numbers), hint=_EXAMPLE)
    return Mixture(tuple(Source(word.strip()) for word in words), "samples", 1.0)


def _weighted(words: Sequence[str], numbers: Sequence[bool]) -> Mixture:
    if not all(numbers[::2]):
        place = 2 * numbers[::2].index(False)
        raise UsageError(f"word {place + 1} must be a weight, got {words[place]!r}", hint=_EXAMPLE)
    pairs = zip(words[::2], words[1::2], strict=True)
    sources = tuple(Source(prefix.strip(), weight=float(weight)) for weight, prefix in pairs)
    return Mixture(sources, "samples", 1.0)


def _misread(words: Sequence[str], numbers: Sequence[bool]) -> str:
    word = words[numbers.index(True)]
    if len(words) % 2:
        return f"Megatron would read {word!r} as a path prefix: {len(words)} words are an odd number"
    return f"Megatron would read {word!r} as a path prefix: the word before it is not a weight"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def read_recipe(path: str) -> tuple[BlendRecipe, dict[str, Any]]:
    """Return the recipe and the options in a TOML file; see ``docs/reference/blends.md`` for its format.

    Raises:
        MissingFileError: There is no such file.
        InputError: It is not TOML, has an unknown key, or a value of a wrong kind.
        UsageError: Its content is invalid.
    """
    return parse_recipe(_read_recipe_text(path, "recipe", hint=_EXAMPLE), path)


def _read_recipe_text(path: str, kind: str = "file", *, hint: str | None = None) -> str:
    text = read_text(path, kind, hint=hint)
    if len(text) > _MAX_RECIPE_BYTES:
        raise InputError(f"the recipe {path} must have at most {count(_MAX_RECIPE_BYTES)} bytes")
    return text


def parse_recipe(text: str, path: str = "recipe") -> tuple[BlendRecipe, dict[str, Any]]:
    """Return the recipe and the options that a TOML text gives.

    Raises:
        InputError: It is not TOML, has an unknown key, or a value of a wrong kind.
        UsageError: Its content is invalid.

    Example:
        >>> recipe, options = parse_recipe('''
        ... num_samples = 1000
        ... [[source]]
        ... prefix = "data/web"
        ... weight = 0.7
        ... [[source]]
        ... prefix = "data/code"
        ... weight = 0.3
        ... max_epochs = 4
        ... ''')
        >>> recipe.mixture.weights, options
        ((0.7, 0.3), {'num_samples': Sizes(train=1000, valid=0, test=0)})
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{path} is not valid TOML: {error}", hint="fix the recipe, or check the path"
        ) from error
    per_split = [name for name in SPLITS if name in table]
    _check_one_kind(table, per_split, path)
    known = (*_OPTIONS, *(() if per_split else _MIXTURE_KEYS), *SPLITS, "multiple_validation_sets")
    _check_keys(table, known, "", path)
    try:
        recipe = BlendRecipe(
            mixture=None if per_split else _table_mixture(table, "", path),
            per_split=_per_split(table, path) if per_split else None,
            multiple_validation_sets=_value(table, "multiple_validation_sets", bool, "", path) or False,
        )
        return recipe, {key: _option(key, table[key], path) for key in table if key in _OPTIONS}
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error


def _per_split(table: dict[str, Any], path: str) -> tuple[Mixture | None, Mixture | None, Mixture | None]:
    train, valid, test = (
        _table_mixture(_table(table, name, path), f"{name}.", path) if name in table else None
        for name in SPLITS
    )
    return train, valid, test


def _table_mixture(table: dict[str, Any], where: str, path: str) -> Mixture:
    if where:
        _check_keys(table, _MIXTURE_KEYS, where, path)
    entries = table.get("source")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{path}: {where}source must be a list of tables",
            hint=f"write [[{where}source]] before each source",
        )
    sources = tuple(_source(entry, f"{where}source[{place}].", path) for place, entry in enumerate(entries))
    unit = _value(table, "unit", str, where, path)
    temperature = _number(table, "temperature", where, path)
    return Mixture(sources, unit or "samples", 1.0 if temperature is None else temperature)


def _source(entry: dict[str, Any], where: str, path: str) -> Source:
    _check_keys(entry, _SOURCE_KEYS, where, path)
    prefix = _value(entry, "prefix", str, where, path)
    if prefix is None:
        raise InputError(f"{path}: {where}prefix is missing")
    return Source(
        prefix=prefix,
        weight=_number(entry, "weight", where, path),
        epochs=_number(entry, "epochs", where, path),
        max_epochs=_number(entry, "max_epochs", where, path),
        pack=_value(entry, "pack", str, where, path),
    )


def _option(key: str, value: Any, path: str) -> Any:
    if key == "num_samples":
        return _sizes(value, path)
    try:
        return _OPTIONS[key].check(value, key)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def _sizes(value: Any, path: str) -> Sizes:
    try:
        return Sizes.parse(",".join(map(str, value)) if isinstance(value, list) else str(value))
    except ValueError:
        raise InputError(
            f"{path}: invalid num_samples {value!r}",
            hint='use a number, or a list such as ["2M", 100, "none"] for training, validation and testing',
        ) from None


def _number(table: dict[str, Any], key: str, where: str, path: str) -> float | None:
    value = table.get(key)
    for parse in (parse_count, parse_number):
        with suppress(ValueError):
            value = parse(value) if isinstance(value, str) else value
    if value is not None and type(value) not in {int, float}:
        raise InputError(
            f"{path}: {where}{key} must be a number, got {shown(value)}",
            hint='write for example 0.3 or "300B"',
        )
    return value


def _value(table: dict[str, Any], key: str, kind: type, where: str, path: str) -> Any:
    value = table.get(key)
    if value is not None and type(value) is not kind:
        names = {str: "a string", int: "an integer", bool: "true or false"}
        raise InputError(f"{path}: {where}{key} must be {names[kind]}, got {shown(value)}")
    return value


def _table(table: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    value = table[key]
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be a table", hint=f"write [[{key}.source]] before each source")
    return value


def _check_one_kind(table: dict[str, Any], per_split: Sequence[str], path: str) -> None:
    for key in _MIXTURE_KEYS if per_split else ():
        if key in table:
            raise InputError(
                f"{path} has {key} for all splits and {per_split[0]} for one split",
                hint=f"write [[{per_split[0]}.source]] before each source, and unit and temperature in "
                f"[{per_split[0]}]",
            )


def _check_keys(table: dict[str, Any], known: Sequence[str], where: str, path: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"use {close[0]}" if close else f"use one of {', '.join(known)}"
            raise InputError(f"{path}: unknown key {where}{key}", hint=hint)
