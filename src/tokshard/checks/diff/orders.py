"""Comparison of two blends or two index caches, sample by sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.checks.diff.report import (
    DiffReport,
    FieldDifference,
    IndexDifference,
    SplitDifference,
    dataset_differences,
    different_fields,
    report_of,
)
from tokshard.core.codec import encode
from tokshard.dataset.products import DESCRIPTION_SUFFIX
from tokshard.errors import IntegrityError, UsageError
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.sources import BlendSource, BlendSplit
from tokshard.samples.index.description import (
    BlendedDescription,
    Description,
    Difference,
    descriptions_in,
    differences,
    read_description,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.packing import Packing, pack_words
from tokshard.samples.index.sidecar import readable_sidecar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    _Samples = tuple[NDArray[Any], NDArray[Any]]

_BLOCK = 1 << 20


def _fields(found: Sequence[Difference]) -> tuple[FieldDifference, ...]:
    return tuple(FieldDifference(*difference) for difference in found)


def diff_blends(a: BlendDocument, b: BlendDocument) -> DiffReport:
    """Compare two blends."""
    # The packing of each source is compared instead.
    builders = (encode(replace(blend.builder, packing=None)) for blend in (a, b))
    fields = different_fields(*builders)
    parts = [_diff_split(name, a.splits[name], b.splits[name]) for name in a.splits if name in b.splits]
    mismatches = (found for blend in (a, b) for found in blend.tokenizer_mismatches or ())
    return report_of("blend", fields, parts, (a.splits, b.splits), mismatches=mismatches)


def _diff_split(name: str, a: BlendSplit, b: BlendSplit) -> SplitDifference:
    prefixes = {_identity(source): source.path_prefix for source in (*a.sources, *b.sources)}
    identities = list(prefixes)
    places = [
        np.array([identities.index(_identity(source)) for source in split.sources], dtype=np.int64)
        for split in (a, b)
    ]
    drawn = [_draws(split, place, len(identities)) for split, place in zip((a, b), places, strict=True)]
    return SplitDifference(
        name=name,
        fields=(
            *_fields(_hash_fields(a, b)),
            *different_fields(
                *({"packing": pack_words(s.packing for s in split.sources)} for split in (a, b))
            ),
        ),
        samples=(a.samples, b.samples),
        first_sample=_first_unequal(zip(_samples_of(a, places[0]), _samples_of(b, places[1]), strict=False)),
        datasets=dataset_differences(prefixes.values(), *drawn),
    )


def _identity(source: BlendSource) -> tuple[str, str, Packing | None]:
    return source.index.hash, str(source.fingerprint.idx_xxh3_128), source.packing  # no part of the hash


def _draws(split: BlendSplit, places: Integers, count: int) -> Integers:
    drawn = np.zeros(count, dtype=np.int64)
    np.add.at(drawn, places, [source.draws for source in split.sources])
    return drawn


def _samples_of(split: BlendSplit, places: Integers) -> Iterator[_Samples]:
    """Yield the samples of a split in blocks: datasets, with their numbers in both splits, and samples."""
    arrays = None
    if split.order is not None:
        order = split.order.load()
        arrays = order["dataset_index"], order["dataset_sample_index"]
    for begin in range(0, split.samples, _BLOCK):
        end = min(begin + _BLOCK, split.samples)
        if arrays is None:
            yield np.full(end - begin, places[0]), np.arange(begin, end, dtype=np.int64)
        else:
            yield places[arrays[0][begin:end]], np.asarray(arrays[1][begin:end])


def _first_unequal(blocks: Iterable[tuple[_Samples, _Samples]]) -> int | None:
    """Return the first sample that differs; None if all that both have are equal."""
    for number, ((first_a, second_a), (first_b, second_b)) in enumerate(blocks):
        size = min(len(first_a), len(first_b))
        equal = (first_a[:size] == first_b[:size]) & (second_a[:size] == second_b[:size])
        if not equal.all():
            return number * _BLOCK + int(np.argmin(equal))
    return None


def _hash_fields(a: BlendSplit, b: BlendSplit) -> list[Difference]:
    if a.order is not None and b.order is not None:
        return differences(
            read_description(a.order.description_path), read_description(b.order.description_path)
        )
    if a.order is None and b.order is None:
        return differences(
            read_description(a.sources[0].index.description_path),
            read_description(b.sources[0].index.description_path),
        )
    return [("sources", len(a.sources), len(b.sources))]


def diff_caches(a: str, b: str) -> DiffReport:
    """Compare two caches, or two indexes of caches by their descriptions.

    Raises:
        UsageError: One is a cache and the other an index.
        IntegrityError, StorageError: A file is damaged or cannot be read.
    """
    single = [path.endswith(DESCRIPTION_SUFFIX) for path in (a, b)]
    if single[0] != single[1]:
        raise UsageError("cannot compare a description with a whole cache")
    if single[0]:
        return report_of("cache", (), [_diff_entries(_entry(a), _entry(b))])
    first, second = _entries(a), _entries(b)
    parts = [_diff_entries(first[name], second[name]) for name in first if name in second]
    return report_of("cache", (), parts, (first, second))


@dataclass(frozen=True, slots=True)
class _DescribedEntry:
    description: Description
    files: CacheEntry

    @property
    def name(self) -> str:
        description = self.description
        if isinstance(description, BlendedDescription):
            return f"{description.split} blend of {len(description.datasets)} datasets"
        return f"{description.index_split} of {os.path.basename(description.dataset_path)}"

    @property
    def packing(self) -> str | None:
        # None for the order of a blend, and for an index that was not built by tokshard.
        sidecar = readable_sidecar(self.files)
        return None if sidecar is None or sidecar.origin is None else sidecar.origin.pack


def _entry(path: str) -> _DescribedEntry:
    description = read_description(path)
    return _DescribedEntry(description, CacheEntry.of(description, os.path.dirname(path)))


def _entries(directory: str) -> Mapping[str, _DescribedEntry]:
    # Several entries of one name are numbered.
    found: dict[str, _DescribedEntry] = {}
    for _, description in descriptions_in(directory):
        entry = _DescribedEntry(description, CacheEntry.of(description, directory))
        name, times = entry.name, 1
        while name in found:
            times += 1
            name = f"{entry.name} ({times})"
        found[name] = entry
    return found


def _diff_entries(a: _DescribedEntry, b: _DescribedEntry) -> IndexDifference:
    starts = [_SampleStarts(entry.files) for entry in (a, b)]
    return IndexDifference(
        name=a.name,
        fields=(
            *_fields(differences(a.description, b.description)),
            *_other_packing(a, b),
        ),
        hashes=(a.files.hash, b.files.hash),
        samples=(len(starts[0]), len(starts[1])),
        first_sample=_first_unequal(zip(*(each.blocks() for each in starts), strict=False)),
    )


def _other_packing(a: _DescribedEntry, b: _DescribedEntry) -> tuple[FieldDifference, ...]:
    first, second = a.packing, b.packing
    if first is None or second is None:
        return ()
    return different_fields({"packing": first}, {"packing": second})


class _SampleStarts:
    # (sequence, token) of an index, (source, sample) of a blend.
    def __init__(self, entry: CacheEntry) -> None:
        self._path = entry.description_path
        self._arrays = {name: np.asarray(array) for name, array in entry.load().items()}

    def __len__(self) -> int:
        name = "dataset_index" if "dataset_index" in self._arrays else "shuffle_index"
        return len(self._arrays[name])

    def blocks(self) -> Iterator[_Samples]:
        for begin in range(0, len(self), _BLOCK):
            yield self._samples(np.arange(begin, min(begin + _BLOCK, len(self)), dtype=np.int64))

    def _samples(self, numbers: Integers) -> _Samples:
        arrays = self._arrays
        if "dataset_index" in arrays:
            return arrays["dataset_index"][numbers], arrays["dataset_sample_index"][numbers]
        try:
            rows = arrays["sample_index"][arrays["shuffle_index"][numbers]]
            return arrays["document_index"][rows[:, 0]], rows[:, 1]
        except IndexError as error:
            raise IntegrityError(
                f"{self._path}: the arrays of the index contradict each other",
                path=self._path,
                hint="run `tokshard verify --level deep`",
            ) from error
