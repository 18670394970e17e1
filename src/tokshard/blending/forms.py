"""The ways to write a mixture that Megatron knows: words, files of words, and JSON with words per split.

What Megatron would misread without a message is refused here, with the reading that it would have had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokshard.blending.recipe import BlendRecipe, Mixture, Source, reads_as_number
from tokshard.blending.toml import read_recipe
from tokshard.errors import InputError, UsageError
from tokshard.gpt_index.splits import SPLITS
from tokshard.storage.textfile import read_text

_EXAMPLE = "write weights and prefixes in turn (0.7 data/web 0.3 data/code), or prefixes alone"


def read_arguments(arguments: Sequence[str]) -> BlendRecipe:
    """Return the recipe that the arguments of a command name.

    Args:
        arguments: One recipe file (``*.toml``), one file of Megatron's blends per split (``*.json``), one
            file of words (``@file``), or weights and prefixes, or prefixes alone.

    Raises:
        UsageError: They cannot be meant.
        InputError: A file cannot be read or used.
    """
    if len(arguments) == 1:
        only = arguments[0]
        if only.endswith(".toml"):
            return read_recipe(only)
        if only.endswith(".json"):
            return read_per_split(only)
        if only.startswith("@"):
            return read_data_args(only[1:])
    return parse_words(arguments)


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
        tokshard.errors.UsageError: '1' reads as a number, but 3 words are all prefixes to Megatron
    """
    return BlendRecipe(mixture=_mixture(words))


def parse_per_split_words(
    train: Sequence[str] | None, valid: Sequence[str] | None, test: Sequence[str] | None,
    *, multiple_validation_sets: bool = False,
) -> BlendRecipe:  # fmt: skip
    """Return the recipe of Megatron's ``--train-data-path``, ``--valid-data-path``, ``--test-data-path``.

    Raises:
        UsageError: As for :func:`parse_words`, or there is none of them.
    """
    first, second, third = (None if words is None else _mixture(words) for words in (train, valid, test))
    return BlendRecipe(per_split=(first, second, third), multiple_validation_sets=multiple_validation_sets)


def read_data_args(path: str) -> BlendRecipe:
    """Return the recipe in a file of Megatron's ``--data-args-path``: words by white space."""
    return parse_words(read_text(path).split())


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
        value = json.loads(read_text(path), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict) or set(value) != set(SPLITS):
        keys = (
            f"has the keys {', '.join(map(str, value))}" if isinstance(value, dict) else "is no JSON object"
        )
        raise InputError(
            f"{path} {keys}",
            hint="Megatron wants exactly train, valid and test; null for a split without data",
        )
    train, valid, test = (_words(value[name], name, path) for name in SPLITS)
    return parse_per_split_words(train, valid, test, multiple_validation_sets=multiple_validation_sets)


def _words(value: Any, name: str, path: str) -> list[str] | None:
    if value is None:
        return None
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{path}: {name} is neither a text nor a list of texts", hint="weights are texts, too"
        )
    return words


def _mixture(words: Sequence[str]) -> Mixture:
    if not words:
        raise UsageError("no source is named", hint=_EXAMPLE)
    numbers = [reads_as_number(word) for word in words]
    if len(words) % 2 == 0 and any(numbers[::2]):
        return _weighted(words, numbers)
    if any(numbers):
        raise UsageError(_misread(words, numbers), hint=_EXAMPLE)
    return Mixture(tuple(Source(word.strip()) for word in words))


def _weighted(words: Sequence[str], numbers: Sequence[bool]) -> Mixture:
    if not all(numbers[::2]):
        place = 2 * numbers[::2].index(False)
        raise UsageError(
            f"word {place + 1}, {words[place]!r}, stands for a weight and is no number", hint=_EXAMPLE
        )
    pairs = zip(words[::2], words[1::2], strict=True)
    return Mixture(tuple(Source(prefix.strip(), weight=float(weight)) for weight, prefix in pairs))


def _misread(words: Sequence[str], numbers: Sequence[bool]) -> str:
    word = words[numbers.index(True)]
    if len(words) % 2:
        return f"{word!r} reads as a number, but {len(words)} words are all prefixes to Megatron"
    return f"{word!r} reads as a number where a prefix stands, and the word before it is no weight"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
