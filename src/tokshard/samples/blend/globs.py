"""Globs of path prefixes in a recipe: sources that stand for several datasets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import replace

from tokshard.core.formatting import counted, listed
from tokshard.dataset.directories import datasets_in
from tokshard.dataset.merge.inputs import expand
from tokshard.dataset.products import sampled_kind
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, MissingFileError, UsageError
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source
from tokshard.storage.fs import exists, realpath
from tokshard.storage.paths import idx_path, is_glob

_SHOWN_PREFIXES = 5


def expand_globs(recipe: BlendRecipe) -> BlendRecipe:
    """Return the recipe with each glob of path prefixes replaced by the datasets that match it.

    The matches are in natural order. A weight is divided between them in proportion to their tokens, so that
    all are read equally often; epochs, caps and packing apply to each of them.

    Raises:
        InputError: A glob matches no dataset, or a dataset without tokens would get a part of its weight.
        MissingFileError: A source is a directory, or a match has only one of its two files.
        UsageError: Two sources match or name the same dataset, or a glob of several datasets has a weight and
            the mixture has a temperature.
    """
    return recipe.map(_expanded)


def _expanded(mixture: Mixture) -> Mixture:
    datasets = [
        (dataset, source.prefix)
        for source in mixture.sources
        for dataset in _datasets(source, mixture.temperature)
    ]
    if any(dataset.prefix != name for dataset, name in datasets):
        refuse_duplicates(datasets)
    return replace(mixture, sources=tuple(dataset for dataset, _ in datasets))


def _datasets(source: Source, temperature: float) -> tuple[Source, ...]:
    """Return the sources that a source stands for, with their parts of its weight."""
    if not is_glob(source.prefix):
        _refuse_directory(source.prefix)
        return (source,)
    prefixes = expand([source.prefix])
    if source.weight is None:
        return tuple(replace(source, prefix=prefix) for prefix in prefixes)
    if len(prefixes) > 1 and temperature != 1.0:
        raise UsageError(
            f"temperature cannot be used with the weight of {source.prefix!r}, which is divided between "
            f"{len(prefixes):,} datasets",
            hint="remove the weights: the temperature then applies to the tokens of each dataset",
        )
    tokens = [IndexedDataset(prefix).index.token_count for prefix in prefixes]
    if 0 in tokens:
        raise InputError(
            f"{prefixes[tokens.index(0)]} has no tokens: it cannot get a part of the weight of "
            f"{source.prefix}",
            hint="remove the dataset, or pass a glob that does not match it",
        )
    total = sum(tokens)
    return tuple(
        replace(source, prefix=prefix, weight=source.weight * (count / total))
        for prefix, count in zip(prefixes, tokens, strict=True)
    )


def refuse_duplicates(sources: Iterable[tuple[Source, str]]) -> None:
    """Raise UsageError if two sources are the same dataset: both would have the same samples.

    Args:
        sources: Sources with their names in the recipe, which can be globs.
    """
    seen: dict[str, tuple[Source, str]] = {}
    for source, name in sources:
        key = realpath(idx_path(source.prefix))  # the same for all spellings of a dataset
        if key not in seen:
            seen[key] = source, name
            continue
        first, first_name = seen[key]
        names = dict.fromkeys((first_name, name))
        spelled = "" if list(names) == [source.prefix] else f" (as {' and as '.join(map(repr, names))})"
        same_pack = (first.pack or "concat") == (source.pack or "concat")
        same = "samples in the same order" if same_pack else "file names, whatever their packing is"
        raise UsageError(
            f"{source.prefix!r} is in the mixture twice{spelled}: both would have the same {same}",
            hint="name it once with the total weight",
        )


def _refuse_directory(path: str) -> None:
    """Raise MissingFileError if a path is a directory with datasets instead of a path prefix."""
    if not os.path.isdir(path) or exists(idx_path(path)) or sampled_kind(path) is not None:
        return
    pattern, prefixes = datasets_in(path)
    if prefixes:
        raise MissingFileError(
            f"dataset not found: {path} is a directory with {counted(len(prefixes), 'dataset')}: "
            f"{listed(prefixes, _SHOWN_PREFIXES)}",
            path=idx_path(path),
            hint=f"pass each path prefix, or {shlex.quote(pattern)} for all of them with one weight",
        )
