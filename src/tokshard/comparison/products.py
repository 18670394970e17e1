"""How two blends or two caches of indexes differ: in the fields of their hashes, and in what is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokshard.blending.document import DOCUMENT_NAME, BlendDocument, BlendSource, BlendSplit
from tokshard.core.codec import encode
from tokshard.errors import InputError, UsageError
from tokshard.index_cache.description import (
    BlendedDescription,
    Description,
    Difference,
    descriptions_in,
    differences,
    read_description,
)
from tokshard.index_cache.entry import CacheEntry
from tokshard.index_cache.npy import map_npy
from tokshard.sharding.ranks import is_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

Kind = Literal["plan", "blend", "cache"]

_BLOCK = 1 << 20
_DESCRIPTION_SUFFIX = "description.txt"


@dataclass(frozen=True, slots=True)
class SourceDraws:
    """The samples of one source of two blends.

    Attributes:
        prefix: The dataset.
        same: Those at the same place of both orders.
        moved: Those that both draw, at other places.
        added: Those that only the second draws.
        removed: Those that only the first draws.
    """

    prefix: str
    same: int
    moved: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class SplitDifference:
    """How a split of two blends differs.

    Attributes:
        name: The split.
        hash_fields: The fields of the hash that differ, with both values.
        first_sample: The first sample that is another one; None where all that both have are the same.
        samples: The samples of each.
        sources: One for each source of either.
    """

    name: str
    hash_fields: tuple[Difference, ...]
    first_sample: int | None
    samples: tuple[int, int]
    sources: tuple[SourceDraws, ...]


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """How an index, or the order of a blend, differs in two caches.

    Attributes:
        name: The split and the dataset, or the blend.
        hashes: The hash of each.
        hash_fields: The fields of the hash that differ, with both values.
        first_sample: The first sample that begins elsewhere; None where all that both have are the same.
        same: The samples that begin at the same token of the same document.
        samples: The samples of each.
    """

    name: str
    hashes: tuple[str, str]
    hash_fields: tuple[Difference, ...]
    first_sample: int | None
    same: int
    samples: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Compared:
    """How two blends or two caches differ.

    Attributes:
        kind: What they are.
        settings: What differs of the builder's parameters.
        parts: The splits or the indexes that both have.
        only_first: The names of those that only the first has.
        only_second: The names of those that only the second has.
    """

    kind: Kind
    settings: tuple[Difference, ...]
    parts: tuple[SplitDifference | IndexDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs that changes what is read."""
        alone = self.only_first or self.only_second
        return not alone and all(
            one.first_sample is None and one.samples[0] == one.samples[1] for one in self.parts
        )


def kind_of(path: str) -> Kind:
    """Tell what a path names: a plan, a blend, or a cache of indexes (or one description in it).

    Raises:
        InputError: It is none of them.
    """
    if is_plan(path):
        return "plan"
    directory = os.path.isdir(path)
    if os.path.basename(path) == DOCUMENT_NAME or (
        directory and os.path.isfile(os.path.join(path, DOCUMENT_NAME))
    ):
        return "blend"
    if path.endswith(_DESCRIPTION_SUFFIX) or (
        directory and any(name.endswith(_DESCRIPTION_SUFFIX) for name in os.listdir(path))
    ):
        return "cache"
    raise InputError(
        f"{path} is no plan, no blend and no cache of indexes",
        hint="name their directories, or plan.json, blend.json or a description.txt",
    )


def diff_blends(a: BlendDocument, b: BlendDocument) -> Compared:
    """Compare what two blends draw. Their orders are read in blocks.

    Raises:
        IntegrityError, StorageError: A file of a blend is not there or damaged.
    """
    common = [name for name in a.splits if name in b.splits]
    parameters = encode(a.builder), encode(b.builder)
    settings = [
        (name, value, parameters[1][name])
        for name, value in parameters[0].items()
        if value != parameters[1][name]
    ]
    return Compared(
        kind="blend",
        settings=tuple(settings),
        parts=tuple(_diff_split(a.splits[name], b.splits[name]) for name in common),
        only_first=tuple(name for name in a.splits if name not in b.splits),
        only_second=tuple(name for name in b.splits if name not in a.splits),
    )


def _diff_split(a: BlendSplit, b: BlendSplit) -> SplitDifference:
    identities = list(dict.fromkeys(_identity(one) for one in (*a.sources, *b.sources)))
    names = {_identity(one): one.prefix for one in (*a.sources, *b.sources)}
    places = [
        np.array([identities.index(_identity(one)) for one in split.sources], dtype=np.int64)
        for split in (a, b)
    ]
    same = np.zeros(len(identities), dtype=np.int64)
    first_sample = None
    orders = zip(_order(a), _order(b), strict=False)
    for number, ((source_a, sample_a), (source_b, sample_b)) in enumerate(orders):
        count = min(len(source_a), len(source_b))
        one, other = places[0][source_a[:count]], places[1][source_b[:count]]
        equal = (one == other) & (sample_a[:count] == sample_b[:count])
        same += np.bincount(one[equal], minlength=same.size)
        if first_sample is None and not equal.all():
            first_sample = number * _BLOCK + int(np.argmin(equal))
    drawn = [_draws(split, place, len(identities)) for split, place in zip((a, b), places, strict=True)]
    both = np.minimum(*drawn)
    rows = np.stack((same, both - same, drawn[1] - both, drawn[0] - both), axis=1).tolist()
    return SplitDifference(
        name=a.name,
        hash_fields=tuple(_split_hash_fields(a, b)),
        first_sample=first_sample,
        samples=(a.samples, b.samples),
        sources=tuple(SourceDraws(names[one], *row) for one, row in zip(identities, rows, strict=True)),
    )


def _identity(source: BlendSource) -> tuple[str, str]:
    return source.hash, str(source.fingerprint.idx_xxh3_128)


def _draws(split: BlendSplit, places: Integers, count: int) -> Integers:
    drawn = np.zeros(count, dtype=np.int64)
    np.add.at(drawn, places, [one.draws for one in split.sources])
    return drawn


def _order(split: BlendSplit) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Return the (source, sample) of all samples, in blocks."""
    arrays = None
    if split.order is not None:
        arrays = map_npy(split.order.dataset_index), map_npy(split.order.dataset_sample_index)
    for begin in range(0, split.samples, _BLOCK):
        end = min(begin + _BLOCK, split.samples)
        if arrays is None:
            yield np.zeros(end - begin, dtype=np.int64), np.arange(begin, end, dtype=np.int64)
        else:
            yield np.asarray(arrays[0][begin:end]), np.asarray(arrays[1][begin:end])


def _split_hash_fields(a: BlendSplit, b: BlendSplit) -> list[Difference]:
    if a.order is not None and b.order is not None:
        return differences(read_description(a.order.description), read_description(b.order.description))
    if a.order is None and b.order is None:
        return differences(
            read_description(a.sources[0].description), read_description(b.sources[0].description)
        )
    return [("sources", len(a.sources), len(b.sources))]


def diff_caches(a: str, b: str) -> Compared:
    """Compare two caches of indexes, or two descriptions in them. Their arrays are read in blocks.

    Raises:
        UsageError: A description stands beside a whole cache.
        MissingFileError, InputError: A description is not there, or is not understood.
        IntegrityError, StorageError: An array is not there or damaged.
    """
    single = [path.endswith(_DESCRIPTION_SUFFIX) for path in (a, b)]
    if single[0] != single[1]:
        raise UsageError("a description can be compared with a description, and a cache with a cache")
    if single[0]:
        parts: tuple[IndexDifference, ...] = (_diff_entries(_entry(a), _entry(b)),)
        return Compared("cache", (), parts, (), ())
    first, second = _entries(a), _entries(b)
    common = [name for name in first if name in second]
    return Compared(
        kind="cache",
        settings=(),
        parts=tuple(_diff_entries(first[name], second[name]) for name in common),
        only_first=tuple(name for name in first if name not in second),
        only_second=tuple(name for name in second if name not in first),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a cache, with what it describes."""

    description: Description
    files: CacheEntry


def _entry(path: str) -> _Entry:
    return _of(read_description(path), os.path.dirname(path))


def _of(description: Description, directory: str) -> _Entry:
    return _Entry(description, CacheEntry.of(description, directory))


def _entries(directory: str) -> Mapping[str, _Entry]:
    """Return the entries of a cache by what they are of; several of one thing are numbered."""
    found: dict[str, _Entry] = {}
    for _, description in descriptions_in(directory):
        name = _name(description)
        times = 1
        while name in found:
            times += 1
            name = f"{_name(description)} ({times})"
        found[name] = _of(description, directory)
    return found


def _name(description: Description) -> str:
    if isinstance(description, BlendedDescription):
        return f"{description.split} blend of {len(description.datasets)} datasets"
    return f"{description.index_split} of {os.path.basename(description.dataset_path)}"


def _diff_entries(a: _Entry, b: _Entry) -> IndexDifference:
    begins = [_beginnings(one.files) for one in (a, b)]
    count = min(len(begins[0]), len(begins[1]))
    same, first_sample = 0, None
    for begin in range(0, count, _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, count), dtype=np.int64)
        (one, at), (other, place) = (found.of(block) for found in begins)
        equal = (one == other) & (at == place)
        same += int(np.count_nonzero(equal))
        if first_sample is None and not equal.all():
            first_sample = begin + int(np.argmin(equal))
    return IndexDifference(
        name=_name(a.description),
        hashes=(a.files.hash, b.files.hash),
        hash_fields=tuple(differences(a.description, b.description)),
        first_sample=first_sample,
        same=same,
        samples=(len(begins[0]), len(begins[1])),
    )


class _Beginnings:
    """Where samples begin: (sequence, token) of an index, (source, sample) of a blend."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        name = "dataset_index" if "dataset_index" in self._arrays else "shuffle_index"
        return len(self._arrays[name])

    def of(self, samples: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both numbers of some samples."""
        if "dataset_index" in self._arrays:
            return (
                np.asarray(self._arrays["dataset_index"])[samples],
                np.asarray(self._arrays["dataset_sample_index"])[samples],
            )
        rows = np.asarray(self._arrays["sample_index"])[np.asarray(self._arrays["shuffle_index"])[samples]]
        return np.asarray(self._arrays["document_index"])[rows[:, 0]], rows[:, 1]


def _beginnings(entry: CacheEntry) -> _Beginnings:
    return _Beginnings({name: map_npy(entry.array_path(name)) for name in entry.arrays})
