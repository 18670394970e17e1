"""The files of one index in a cache, as far as their names and headers tell."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokshard.errors import InputError, IntegrityError
from tokshard.index_cache.description import BlendedDescription, Description, read_description
from tokshard.index_cache.entry import CacheEntry, Sidecar
from tokshard.index_cache.npy import read_spec

Condition = Literal["complete", "incomplete", "damaged"]


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A file of an index.

    Attributes:
        name: The array: ``"document_index"``, ...
        size_bytes: The size of the file.
        dtype: The dtype of the array.
        shape: Its shape.
    """

    name: str
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """The files of an index of a dataset, or of the order of a blend.

    Attributes:
        directory: The directory of the cache.
        stem: What the names of the files begin with: ``{hash}-{class}-{split}``.
        condition: ``"complete"``: all files are there, and begin as they should. ``"incomplete"``: one
            is not there, so Megatron would build all of them. ``"damaged"``: one is not what it should be.
        reason: What is missing or damaged; empty where it is complete.
        arrays: The arrays that are there and whole.
        description: What it was made for, where that can be read.
        sidecar: What tokshard wrote beside it; None for those that Megatron has made.
    """

    directory: str
    stem: str
    condition: Condition
    reason: str
    arrays: tuple[ArrayFile, ...]
    description: Description | None
    sidecar: Sidecar | None

    @property
    def hash(self) -> str:
        """The hash in the names of the files."""
        return self.stem.split("-")[0]

    @property
    def is_blend(self) -> bool:
        """Whether it is the order of a blend."""
        return self.stem.split("-")[1] == BlendedDescription.CLASS

    @property
    def split(self) -> str:
        """``"train"``, ``"valid"`` or ``"test"``."""
        return self.stem.split("-")[2]

    @property
    def size_bytes(self) -> int:
        """The size of all arrays."""
        return sum(one.size_bytes for one in self.arrays)

    @property
    def samples(self) -> int | None:
        """The samples; None where the array that has one entry for each is not there."""
        name = "dataset_index" if self.is_blend else "shuffle_index"
        return next((one.shape[0] for one in self.arrays if one.name == name), None)

    @property
    def subject(self) -> str:
        """The dataset as the job names it, or how many are blended."""
        if self.description is None:
            return "unknown"
        if isinstance(self.description, BlendedDescription):
            return f"a blend of {len(self.description.datasets)}"
        return self.description.dataset_path

    def array_path(self, name: str) -> str:
        """Return the path of an array."""
        return entry_of(self.directory, self.stem).array_path(name)

    def to_json(self) -> dict[str, Any]:
        """Return the files as a JSON object."""
        return {
            "hash": self.hash,
            "split": self.split,
            "blend": self.is_blend,
            "condition": self.condition,
            "reason": self.reason,
            "samples": self.samples,
            "size_bytes": self.size_bytes,
            "arrays": [asdict(one) for one in self.arrays],
            "description": None if self.description is None else self.description.to_json(),
            "sidecar": None if self.sidecar is None else self.sidecar.to_json(),
        }


def entry_of(directory: str, stem: str) -> CacheEntry:
    """Return the entry of a cache whose file names begin with a stem."""
    return CacheEntry(directory, stem)


def look_at_files(directory: str, stem: str) -> IndexFiles:
    """Look at the files of an index: no array is read.

    Raises:
        StorageError: A file cannot be read.
    """
    entry = entry_of(directory, stem)
    absent = [os.path.basename(path) for path in entry.megatron_files if not os.path.isfile(path)]
    problems: list[str] = []
    description = _description(entry, problems)
    arrays = _arrays(entry, problems)
    sidecar = _sidecar(entry, problems)
    condition: Condition = "damaged" if problems else "incomplete" if absent else "complete"
    reason = "; ".join(problems) if problems else f"{', '.join(absent)} not there" if absent else ""
    return IndexFiles(directory, stem, condition, reason, arrays, description, sidecar)


def _description(entry: CacheEntry, problems: list[str]) -> Description | None:
    if not os.path.isfile(entry.description_path):
        return None
    try:
        description = read_description(entry.description_path)
    except InputError as error:
        problems.append(error.message)
        return None
    stem = CacheEntry.of(description, entry.directory).stem
    if stem != entry.stem:
        problems.append(f"{entry.description_path} holds the description of {stem}")
    return description


def _arrays(entry: CacheEntry, problems: list[str]) -> tuple[ArrayFile, ...]:
    found = []
    for name in entry.arrays:
        path = entry.array_path(name)
        if os.path.isfile(path):
            try:
                spec = read_spec(path)
            except IntegrityError as error:
                problems.append(error.message)
            else:
                found.append(ArrayFile(name, spec.file_bytes, spec.dtype.name, spec.shape))
    return tuple(found)


def _sidecar(entry: CacheEntry, problems: list[str]) -> Sidecar | None:
    try:
        return Sidecar.read(entry.sidecar_path)
    except IntegrityError as error:
        problems.append(error.message)
        return None
