"""Sources of a plan's samples: the datasets and index files that sample ids refer to, and their paths.

A source is a description, all of it in the plan: small, and read without opening any data. There are three
kinds. In a ``blend`` the two arrays of the blend give for each id the dataset and its sample. In an
``index`` the ids number the samples of one or more indexes, one after the other; in ``documents`` the
documents of one or more datasets, the shards.

Every file that a plan reads has a fingerprint (:class:`~tokshard.dataset.fingerprint.FileFingerprint`), so
every rank can check every file that it opens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np

from tokshard.core.codec import Bounds, Count, Md5, Record, encode
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import UsageError
from tokshard.samples.index.epochs import EpochPlan
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.npy import map_npy
from tokshard.samples.index.packing import Packing
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import relative_inside
from tokshard.storage.paths import bin_path, idx_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Stands in what ids are computed from, which content is no part of beside the fingerprints of files.
_NO_FINGERPRINT = DatasetFingerprint(bin_bytes=0, idx_bytes=0)

_SHOWN = 80


_UNMOVED = PathMapping()


@dataclass(frozen=True, slots=True)
class PathResolver:
    """Conversion between the paths in the files of a plan and paths that can be opened.

    What is stored inside the plan's directory has a path relative to it, so that both can move together; all
    else has its absolute path or its URL, which ``moved`` can map to another location.

    Attributes:
        directory: The plan's directory.
        moved: Where data has moved: beginnings of absolute paths or URLs, and what they are now.

    Example:
        >>> resolver = PathResolver("/runs/plan", PathMapping((("/data", "/mnt/data"),)))
        >>> resolver.opened("/data/web"), resolver.opened("cache"), resolver.stored("/runs/plan/cache")
        ('/mnt/data/web', '/runs/plan/cache', 'cache')
    """

    directory: str
    moved: PathMapping = _UNMOVED

    def stored(self, path: str) -> str:
        """Return a path as the plan stores it.

        Raises:
            UsageError: It has characters that :meth:`opened` refuses.
        """
        stored = relative_inside(path, self.directory)
        if not _is_storable(stored):
            raise UsageError(
                f"a plan cannot name the path {stored!r}: it begins with ~, or has a backslash or characters "
                "that cannot be seen",
                hint="rename the file or its directory",
            )
        return stored

    def opened(self, stored: str) -> str:
        """Return a stored path as it can be opened.

        Raises:
            UsageError: No plan stores such a path: it is empty, leads out of the plan's directory, or has
                characters that cannot be seen.
        """
        if not _is_storable(stored):
            raise UsageError(f"invalid path in a plan: {stored[:_SHOWN]!r}")
        if not stored.startswith("/") and not is_remote(stored):
            return os.path.normpath(os.path.join(self.directory, stored))
        mapped = self.moved.map(stored)
        return mapped if is_remote(mapped) else os.path.normpath(mapped)


def _is_storable(path: str) -> bool:
    return (
        bool(path)
        and path.isprintable()
        and "\\" not in path
        and ".." not in path.split("/")
        and not path.startswith("~")
    )


# The names of a format that is frozen; the code that writes the files imports more than a reader should.
_ARRAYS = {
    "GPTDataset": {"document_index", "sample_index", "shuffle_index"},
    "BlendedDataset": {"dataset_index", "dataset_sample_index"},
}


@dataclass(frozen=True, slots=True)
class CachedArrays(Record):
    """The arrays of an index or of a blend, in Megatron's cache.

    Raises:
        UsageError: The arrays are not those of the kind.

    Attributes:
        directory: Directory of the index cache.
        hash: Hash in the names of the files.
        split: Split in the names of the files.
        kind: Megatron's class in the names of the files.
        fingerprints: Fingerprint of each array file, by name of the array.
    """

    directory: str
    hash: Md5
    split: Annotated[str, Bounds(pattern="train|valid|test")]
    kind: Literal["GPTDataset", "BlendedDataset"]
    fingerprints: dict[str, FileFingerprint]

    def _validate(self) -> None:
        if set(self.fingerprints) != _ARRAYS[self.kind]:
            names = ", ".join(sorted(_ARRAYS[self.kind]))
            raise UsageError(f"the arrays of {self.kind} must be {names}, got {', '.join(self.fingerprints)}")

    @classmethod
    def at(
        cls,
        directory: str,
        hash: str,  # noqa: A002 - the name of the field
        split: str,
        kind: Literal["GPTDataset", "BlendedDataset"],
    ) -> Self:
        """Return the arrays of these names as they are now.

        Raises:
            MissingFileError: One does not exist.
        """
        files = {
            name: FileFingerprint.of(array_path(directory, hash, kind, split, name))
            for name in sorted(_ARRAYS[kind])
        }
        return cls(directory, hash, split, kind, files)

    def path(self, name: str) -> str:
        """Return the path of an array."""
        return array_path(self.directory, self.hash, self.kind, self.split, name)

    def open(self) -> dict[str, NDArray[Any]]:
        """Map the arrays, read-only.

        Raises:
            MissingFileError: One does not exist.
            IntegrityError: One has changed since the plan was made, or is no whole array.
        """
        self.check()
        arrays = {name: map_npy(self.path(name)) for name in self.fingerprints}
        self.check()  # what was mapped is what was checked, and not what has replaced it in between
        return arrays

    def check(self) -> None:
        """Check that the files are those that the plan was made for.

        Raises:
            MissingFileError: One does not exist.
            IntegrityError: One has changed since the plan was made.
        """
        for name, fingerprint in self.fingerprints.items():
            fingerprint.check(self.path(name))


def array_path(directory: str, hash_text: str, kind: str, split: str, name: str) -> str:
    """Return the path of an array in Megatron's cache."""
    return f"{directory}/{hash_text}-{kind}-{split}-{name}.npy"


@dataclass(frozen=True, slots=True)
class IndexReference(Record):
    """The index that defines the samples of a dataset.

    Attributes:
        files: Arrays of the index.
        epochs: Numbers that determine the arrays.
    """

    files: CachedArrays
    epochs: EpochPlan

    def _validate(self) -> None:
        if self.files.kind != "GPTDataset":
            raise UsageError(f"an index must have the arrays of GPTDataset, got {self.files.kind}")

    def open(self) -> GPTDatasetIndex:
        """Map the index.

        Raises:
            MissingFileError, IntegrityError: See :meth:`CachedArrays.open`.
        """
        return GPTDatasetIndex(**self.files.open(), plan=self.epochs)


@dataclass(frozen=True, slots=True)
class DatasetReference(Record):
    """A dataset of a stream.

    Attributes:
        path_prefix: Path prefix.
        first: Number of the first sample: the first document of a split, otherwise 0.
        samples: Number of samples.
        bin: Fingerprint of the ``.bin`` file.
        idx: Fingerprint of the ``.idx`` file.
        multimodal: Whether each sequence has a mode.
        fingerprint: Fingerprint of the dataset, as in blends and index caches.
        index: Index that defines the samples. Absent if the samples are documents.
    """

    path_prefix: str
    first: Count
    samples: Count
    bin: FileFingerprint
    idx: FileFingerprint
    multimodal: bool
    fingerprint: DatasetFingerprint
    index: IndexReference | None = None

    @property
    def packing(self) -> Packing | None:
        """The packing of its samples; None for concatenated documents, and for documents as samples."""
        packed = None if self.index is None else self.index.epochs.packed
        return None if packed is None else packed.packing

    def open_dataset(self, *, mmap: bool = True) -> IndexedDataset:
        """Open the dataset, if it is the one that the plan was made for.

        Args:
            mmap: See :class:`~tokshard.dataset.reader.IndexedDataset`.

        Raises:
            MissingFileError: One of its files is not there.
            IntegrityError: One has changed since the plan was made, or they contradict each other.
        """
        self.check()
        dataset = IndexedDataset(self.path_prefix, self.multimodal, mmap)
        self.check()  # what was opened is what was checked, and not what has replaced it in between
        return dataset

    def check(self) -> None:
        """Check that both files are those that the plan was made for, without reading them whole.

        Raises:
            MissingFileError, IntegrityError: See :meth:`open_dataset`.
        """
        self.idx.check(idx_path(self.path_prefix))
        self.bin.check(bin_path(self.path_prefix))

    def open_index(self) -> GPTDatasetIndex:
        """Map the index that makes its samples.

        Raises:
            UsageError: Its samples are documents.
            MissingFileError, IntegrityError: See :meth:`CachedArrays.open`.
        """
        if self.index is None:
            raise UsageError(f"{self.path_prefix} has no index: its samples are documents")
        return self.index.open()

    def with_paths(self, path: Callable[[str], str]) -> Self:
        """Return the reference with a function applied to its paths."""
        index = self.index
        if index is not None:
            index = replace(index, files=replace(index.files, directory=path(index.files.directory)))
        return replace(self, path_prefix=path(self.path_prefix), index=index)


MAX_DATASETS = 32767
"""The int16 that says the dataset of a sample goes no further, as Megatron's."""


@dataclass(frozen=True, slots=True)
class SampleSource(Record):
    """The samples of a stream, by their ids.

    Raises:
        UsageError: The parts do not fit.

    Attributes:
        kind: Kind of the samples: of a blend, of indexes, or whole documents.
        name: Name of the split, as in ``blend.json``.
        total: Number of sample ids.
        datasets: Datasets, in the order of their numbers.
        order: Arrays of a blend of several datasets. Absent if ids number the samples of the datasets in
            order.
    """

    kind: Literal["blend", "index", "documents"]
    name: str
    total: Count
    datasets: tuple[DatasetReference, ...]
    order: CachedArrays | None = None

    def _validate(self) -> None:
        if not 0 < len(self.datasets) <= MAX_DATASETS:
            raise UsageError(f"a source of kind {self.kind!r} must have from 1 to {MAX_DATASETS} datasets")
        for dataset in self.datasets:
            if (dataset.index is None) != (self.kind == "documents"):
                raise UsageError(f"{dataset.path_prefix} does not fit a source of kind {self.kind}")
            if dataset.index is not None and dataset.samples > dataset.index.epochs.samples:
                raise UsageError(
                    f"{dataset.samples} samples of {dataset.path_prefix} are more than the "
                    f"{dataset.index.epochs.samples} of its index"
                )
        if self.order is None and self.total != sum(dataset.samples for dataset in self.datasets):
            raise UsageError(f"samples must be the sum over the datasets, got {self.total}")
        if self.order is not None and (self.kind, self.order.kind) != ("blend", "BlendedDataset"):
            raise UsageError("only a blend has its own order")
        if len({(epochs.sequence_length, epochs.extra_token) for epochs in self._epochs}) > 1:
            raise UsageError("the indexes of a source must have samples of the same length")

    @property
    def _epochs(self) -> tuple[EpochPlan, ...]:
        return tuple(dataset.index.epochs for dataset in self.datasets if dataset.index is not None)

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sample without the extra one; None for documents."""
        return self._epochs[0].sequence_length if self._epochs else None

    @property
    def extra_token(self) -> bool:
        """True if a sample has one more token, so that each token has the next one as its label."""
        return bool(self._epochs) and self._epochs[0].extra_token

    @property
    def bounds(self) -> NDArray[np.int64]:
        """The first id of each dataset, and the total: int64 of shape (datasets + 1,).

        Raises:
            UsageError: It is a blend, whose ids are mixed.
        """
        if self.order is not None:
            raise UsageError("sample ids of a blend have no boundaries between datasets")
        sizes = [dataset.samples for dataset in self.datasets]
        return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))

    @property
    def sort_keys(self) -> tuple[str, ...]:
        """The names of the numbers that samples can be sorted by without loading them."""
        return ("length", "sequences") if self.kind == "documents" else ("pieces",)

    @property
    def id(self) -> str:
        """The SHA-256 of what the ids mean.

        Where the files lie is no part of it, nor how much is known of their content beside their stamps.
        """
        source = self.with_paths(lambda _: "")
        datasets = tuple(replace(dataset, fingerprint=_NO_FINGERPRINT) for dataset in source.datasets)
        return identity_digest(encode(replace(source, datasets=datasets)))

    def with_paths(self, path: Callable[[str], str]) -> Self:
        """Return the source with a function applied to all of its paths."""
        order = None if self.order is None else replace(self.order, directory=path(self.order.directory))
        datasets = tuple(dataset.with_paths(path) for dataset in self.datasets)
        return replace(self, datasets=datasets, order=order)
