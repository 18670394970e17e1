"""Recipes in TOML files, and in the files and options that Megatron reads.

Words that Megatron would misread without a message are refused, and the error states what it would read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tokshard.core.codec import Reader, checker, shown
from tokshard.core.formatting import count
from tokshard.core.json_text import parse_json_object
from tokshard.core.options import declared_options, parse_count, parse_number
from tokshard.core.toml import check_keys, check_tables, parse_toml
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source, reads_as_number
from tokshard.samples.index.options import SAMPLES, SIZES, IndexingOptions
from tokshard.samples.index.sizes import Sizes
from tokshard.samples.index.splits import SPLITS
from tokshard.storage.paths import BIN_SUFFIX, IDX_SUFFIX
from tokshard.storage.reading import read_text

# 400 bytes for each of 20,000 sources, all that a blend.json can hold; the parser of TOML is slow.
_MAX_RECIPE_BYTES = 8 << 20
_EXAMPLE = "pass alternating weights and path prefixes (0.7 data/web 0.3 data/code), or only path prefixes"
_EXPANDED = "quote a glob, or the shell replaces it by the files that match: 0.7 'data/web/*' 0.3 data/code"


def read_arguments(arguments: Sequence[str]) -> tuple[BlendRecipe, dict[str, Any]]:
    """Return the recipe in the arguments of a command, and the options in its recipe file.

    Args:
        arguments: One recipe file (``*.toml``), one file of Megatron's blends per split (``*.json``), one
            file of words (``@file``), or weights and prefixes, or prefixes alone.

    Raises:
        UsageError: The words are invalid.
        InputError: A file cannot be read, or its content is invalid.
    """
    if len(arguments) == 1:
        (argument,) = arguments
        if argument.endswith(".toml"):
            return parse_recipe(_read_recipe_text(argument, "recipe", hint=_EXAMPLE), argument)
        if argument.endswith(".json"):
            return read_per_split(argument), {}
        if argument.startswith("@"):
            return read_data_args(argument[1:]), {}
    return parse_words(arguments), {}


def parse_words(*words: Sequence[str] | None, multiple_validation_sets: bool = False) -> BlendRecipe:
    """Return the recipe of Megatron's ``--data-path``, or of its options for each split.

    Args:
        words: The words of ``--data-path``; or the words of ``--train-data-path``, ``--valid-data-path`` and
            ``--test-data-path``, and None in place of a split without data.
        multiple_validation_sets: Whether each validation source is a split of its own.

    Raises:
        UsageError: There is no word, weights and prefixes do not alternate, or a prefix reads as a number.

    Example:
        >>> parse_words(["0.7", "data/web", "0.3", "data/code"]).for_split("train").weights
        (0.7, 0.3)
        >>> parse_words(["1", "data/web", "data/code"])
        Traceback (most recent call last):
            ...
        tokshard.errors.UsageError: Megatron would read '1' as a path prefix: 3 words are an odd number
        hint: pass alternating weights and path prefixes (0.7 data/web 0.3 data/code), or only path prefixes
    """
    mixtures = tuple(None if of_split is None else _words_mixture(of_split) for of_split in words)
    return BlendRecipe(mixtures, multiple_validation_sets)


def read_data_args(path: str) -> BlendRecipe:
    """Return the recipe in a file of Megatron's ``--data-args-path``: words separated by white space."""
    return parse_words(_read_recipe_text(path).split())


def read_per_split(path: str) -> BlendRecipe:
    """Return the recipe in a file of Megatron's ``--per-split-data-args-path``.

    Args:
        path: JSON with ``train``, ``valid`` and ``test``: each a list of words, one text of them, or null.

    Raises:
        InputError: The file cannot be read, or its content is invalid.
        UsageError: As for :func:`parse_words`.
    """
    hint = "use exactly the keys train, valid and test, with null for a split without data"
    try:
        value = parse_json_object(_read_recipe_text(path).encode(), path)
    except IntegrityError as error:
        raise InputError(error.message, hint=hint) from error
    if set(value) != set(SPLITS):
        raise InputError(f"{path} has the keys {', '.join(value)}", hint=hint)
    return parse_words(*(_split_words(value[name], name, path) for name in SPLITS))


def _split_words(value: Any, name: str, path: str) -> list[str] | None:
    words = value.split() if isinstance(value, str) else value
    if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise InputError(
            f"{path}: {name} must be a string or a list of strings", hint="write weights also as strings"
        )
    return words


def _words_mixture(words: Sequence[str]) -> Mixture:
    numbers = [reads_as_number(word) for word in words]
    if not words:
        problem = "at least one source is required"
    elif len(words) % 2 == 0 and any(numbers[::2]):
        if all(numbers[::2]):
            pairs = zip(words[::2], words[1::2], strict=True)
            sources = tuple(Source(prefix.strip(), weight=float(weight)) for weight, prefix in pairs)
            return Mixture(sources, "samples", 1.0)
        position = 2 * numbers[::2].index(False)
        problem = f"word {position + 1} must be a weight, got {words[position]!r}"
    elif any(numbers):
        is_odd = len(words) % 2
        reason = f"{len(words)} words are an odd number" if is_odd else "the word before it is not a weight"
        problem = f"Megatron would read {words[numbers.index(True)]!r} as a path prefix: {reason}"
    elif pairs_of_files := _stems(words, BIN_SUFFIX) & _stems(words, IDX_SUFFIX):
        stem = min(pairs_of_files)
        problem = f"sources must be path prefixes, got the files {stem}{BIN_SUFFIX} and {stem}{IDX_SUFFIX}"
    else:
        return Mixture(tuple(Source(word.strip()) for word in words), "samples", 1.0)
    is_expanded = any(word.endswith((BIN_SUFFIX, IDX_SUFFIX)) for word in words)
    raise UsageError(problem, hint=_EXPANDED if is_expanded else _EXAMPLE)


def _stems(words: Sequence[str], suffix: str) -> set[str]:
    return {word.removesuffix(suffix) for word in words if word.endswith(suffix)}


def _read_recipe_text(path: str, kind: str = "file", *, hint: str | None = None) -> str:
    text = read_text(path, kind, hint=hint)
    if len(text) > _MAX_RECIPE_BYTES:
        raise InputError(f"the recipe {path} must have at most {count(_MAX_RECIPE_BYTES)} bytes")
    return text


def parse_recipe(text: str, path: str = "recipe") -> tuple[BlendRecipe, dict[str, Any]]:
    """Return the recipe and the options in a TOML text; see ``docs/reference/blends.md`` for its format.

    Raises:
        InputError: The text is not TOML, a key is unknown, or a value has the wrong type.
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
        >>> recipe.for_split("train").weights, options
        ((0.7, 0.3), {'num_samples': Sizes(train=1000, valid=0, test=0)})
    """
    table = parse_toml(text, path, hint="fix the recipe, or check the path")
    splits = [name for name in SPLITS if name in table]
    for key in _MIXTURE if splits else ():
        if key in table:
            raise InputError(
                f"{path} has {key} for all splits and {splits[0]} for one split",
                hint=f"write [[{splits[0]}.source]] before each source, and unit and temperature in "
                f"[{splits[0]}]",
            )
    try:
        check_keys(table, (*_OPTIONS, *_MIXTURE, *SPLITS), "")
        mixtures: tuple[Mixture | None, ...]
        if splits:
            mixtures = tuple(_mixture(table[name], f"{name}.") if name in table else None for name in SPLITS)
        else:
            mixtures = (_mixture({key: table[key] for key in _MIXTURE if key in table}),)
        options = _options({key: value for key, value in table.items() if key in _OPTIONS})
        return BlendRecipe(mixtures, options.pop("multiple_validation_sets", False)), options
    except (InputError, UsageError) as error:
        raise type(error)(f"{path}: {error}", hint=error.hint) from error


def _fields(readers: Mapping[str, Reader], table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the values of a table by their keys, each as its reader returns it.

    TOML has no null: the value of a required key that is missing is None.
    """
    check_keys(table, tuple(readers), prefix)
    for key, value in table.items():
        if value is None:
            hint = f"write [[{prefix}source]] before each source" if key == "source" else None
            raise InputError(f"{prefix}{key} is missing", hint=hint)
    return {key: readers[key](value, prefix + key) for key, value in table.items()}


def _mixture(table: Any, prefix: str = "") -> Mixture:
    if not isinstance(table, dict):
        raise InputError(
            f"{prefix[:-1]} must be a table", hint=f"write [[{prefix}source]] before each source"
        )
    fields = _fields(_MIXTURE, {"source": None, "unit": "samples", "temperature": 1.0} | table, prefix)
    return Mixture(fields["source"], fields["unit"], fields["temperature"])


def _sources(tables: Any, name: str) -> tuple[Source, ...]:
    return tuple(
        Source(**_fields(_SOURCE, {"prefix": None} | table, f"{name}[{number}]."))
        for number, table in enumerate(check_tables(tables, name))
    )


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} must be a string, got {shown(value)}")
    return value


def _number(value: Any, name: str) -> float:
    parsers: tuple[Callable[[Any], float], ...] = ()
    if isinstance(value, str):
        parsers = parse_count, parse_number
    elif type(value) in {int, float}:
        parsers = (float,)
    for parse in parsers:
        with suppress(ValueError, OverflowError):
            return float(parse(value))
    raise InputError(f"{name} must be a number, got {shown(value)}", hint='write for example 0.3 or "300B"')


def _sizes(value: Any, name: str) -> Sizes:
    try:
        return Sizes.parse(",".join(map(str, value)) if isinstance(value, list) else str(value))
    except ValueError:
        raise InputError(
            f"invalid {name} {value!r}",
            hint='use a number, or a list such as ["2M", 100, "none"] for training, validation and testing',
        ) from None


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {key: _OPTIONS[key](value, key) for key, value in values.items()}
    except UsageError as error:  # of an option on the command line
        raise InputError(str(error), hint=error.hint) from None


_SOURCE: dict[str, Reader] = {
    "prefix": _text, "weight": _number, "epochs": _number, "max_epochs": _number, "pack": _text
}  # fmt: skip
_MIXTURE: dict[str, Reader] = {"unit": _text, "temperature": _number, "source": _sources}
# The options that a recipe can set. Their default is None, so that None means that an option is not set.
_OPTIONS: dict[str, Reader] = {
    field: _sizes if field == "num_samples" else declared.check
    for field, declared in declared_options(IndexingOptions).items()
    if declared.option.group in {SAMPLES, SIZES} and declared.default is None
}
_OPTIONS["multiple_validation_sets"] = checker(bool)
