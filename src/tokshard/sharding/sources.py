"""What the sample ids of a stream mean: which datasets they come from, and which files hold them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import DataFile, open_data
from tokshard.errors import IntegrityError, MissingFileError, StorageError, UsageError
from tokshard.gpt_index.epochs import EpochPlan
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.npy import map_npy
from tokshard.sharding.fields import Fields
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import exists, relative_inside
from tokshard.storage.paths import bin_path, idx_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCKS = 8
BLOCK_BYTES = 4096

_HINT = "make the plan again, or put the file back as it was"
_MOVED_HINT = "where the data has moved, map its old place to the new one (roots)"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What is remembered of a file.

    Attributes:
        size_bytes: Its size.
        sample_sha256: The SHA-256 of the blocks, in order, as hex digits. A file of up to 32 KiB is hashed
            whole.
    """

    size_bytes: int
    sample_sha256: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the stamp of a file as it is now.

        Raises:
            MissingFileError: There is no such file.
            StorageError: It cannot be read.
        """
        return cls._of(_opened(path, f"{path} is not there"))

    @classmethod
    def _of(cls, file: DataFile) -> Self:
        digest = hashlib.sha256()
        blocks = _blocks(file.size_bytes)
        for start, stop in blocks[1:]:
            file.prefetch(start, stop - start)
        for start, stop in blocks:
            block = bytearray(stop - start)
            file.read_into(memoryview(block), start)
            digest.update(block)
        return cls(file.size_bytes, digest.hexdigest())

    def check(self, path: str) -> None:
        """Check that a file is the one that was stamped.

        Raises:
            MissingFileError: There is no such file.
            IntegrityError: It is another one.
            StorageError: It cannot be read.
        """
        file = _opened(path, f"{path} is not there, but the plan reads it", hint=_MOVED_HINT)
        if file.size_bytes != self.size_bytes:
            raise IntegrityError(
                f"{path} has changed since the plan was made: it had {self.size_bytes} bytes "
                f"and has {file.size_bytes}",
                path=path,
                hint=_HINT,
            )
        if self._of(file) != self:
            raise IntegrityError(
                f"{path} has changed since the plan was made: its size is the same, but not its content",
                path=path,
                hint=_HINT,
            )

    def to_json(self) -> dict[str, Any]:
        """Return the stamp as JSON values."""
        return {"bytes": self.size_bytes, "sample_sha256": self.sample_sha256}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the stamp that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        if not isinstance(value, dict) or set(value) != {"bytes", "sample_sha256"}:
            raise IntegrityError(f"{path}: a file has not the fields bytes and sample_sha256", path=path)
        size_bytes, sample = value["bytes"], value["sample_sha256"]
        good = isinstance(sample, str) and len(sample) == 64 and set(sample) <= set("0123456789abcdef")
        if type(size_bytes) is not int or size_bytes < 0 or not good:
            raise IntegrityError(
                f"{path}: a file has the bytes {size_bytes!r}, SHA-256 {sample!r}", path=path
            )
        return cls(size_bytes, sample)


def _opened(path: str, missing: str, *, hint: str | None = None) -> DataFile:
    try:
        return open_data(path)
    except (MissingFileError, StorageError):
        if exists(path):
            raise
        raise MissingFileError(missing, path=path, hint=hint) from None


def _blocks(size_bytes: int) -> list[tuple[int, int]]:
    """Return where the blocks of a file start and stop."""
    if size_bytes <= BLOCKS * BLOCK_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - BLOCK_BYTES
    return [(place := last * number // (BLOCKS - 1), place + BLOCK_BYTES) for number in range(BLOCKS)]


_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Places:
    """How paths are stored in the files of a plan, and opened again.

    Data that lies in the plan's directory is stored relative to it, so that both can move together; all
    else by its absolute path or its URL, which ``roots`` can map to another place.

    Attributes:
        directory: The plan's directory; None where paths do not matter and become empty.
        source: The file that names the paths, for errors.
        roots: Beginnings of absolute paths or URLs (whole directories) and what they become.

    Example:
        >>> places = Places("/runs/plan", "plan.json", {"/data": "/mnt/data"})
        >>> places.opened("/data/web"), places.opened("cache"), places.stored("/runs/plan/cache")
        ('/mnt/data/web', '/runs/plan/cache', 'cache')
    """

    directory: str | None
    source: str
    roots: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def nowhere(cls) -> Self:
        """Return places for what does not depend on where files lie."""
        return cls(None, "")

    def stored(self, path: str) -> str:
        """Return a path as the plan stores it.

        Raises:
            UsageError: It has characters that :meth:`opened` refuses.
        """
        if self.directory is None:
            return ""
        stored = relative_inside(path, self.directory)
        if not _is_storable(stored):
            raise UsageError(
                f"a plan cannot name the path {stored!r}: it begins with ~, or has a backslash or characters "
                "that cannot be seen",
                hint="give the file, or the directory it is in, a plain name",
            )
        return stored

    def opened(self, stored: str) -> str:
        """Return a stored path as it can be opened.

        Raises:
            IntegrityError: It is no path that a plan stores: empty, leading out of the plan's directory, or
                with characters that cannot be seen.
        """
        if not _is_storable(stored):
            raise IntegrityError(
                f"{self.source} names the path {stored[:_SHOWN]!r}, which a plan does not store",
                path=self.source,
            )
        if not stored.startswith("/") and not is_remote(stored):
            return os.path.normpath(os.path.join(self.directory or "", stored))
        mapped = PathMapping.of(self.roots.items()).map(stored)
        return mapped if is_remote(mapped) else os.path.normpath(mapped)


def _is_storable(path: str) -> bool:
    return (
        bool(path)
        and path.isprintable()
        and "\\" not in path
        and ".." not in path.split("/")
        and not path.startswith("~")
    )


# The names of a format that is frozen; what makes the files imports more than a reader should.
_ARRAYS = {
    "GPTDataset": ("document_index", "sample_index", "shuffle_index"),
    "BlendedDataset": ("dataset_index", "dataset_sample_index"),
}


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """The arrays of an index or of a blend, in Megatron's cache.

    Attributes:
        directory: The directory of the cache.
        hash: The hash in the names of the files.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"GPTDataset"`` or ``"BlendedDataset"``.
        stamps: The stamp of each array, by its name.
    """

    directory: str
    hash: str
    split: str
    kind: str
    stamps: Mapping[str, FileStamp]

    def path(self, name: str) -> str:
        """Return the path of an array."""
        return f"{self.directory}/{self.hash}-{self.kind}-{self.split}-{name}.npy"

    def open(self) -> dict[str, NDArray[Any]]:
        """Map the arrays, read-only.

        Raises:
            MissingFileError: One is not there.
            IntegrityError: One has changed since the plan was made, or is no whole array.
        """
        self._check()
        arrays = {name: map_npy(self.path(name)) for name in self.stamps}
        self._check()  # what was mapped is what was checked, and not what has replaced it in between
        return arrays

    def _check(self) -> None:
        for name, stamp in self.stamps.items():
            stamp.check(self.path(name))

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the files as JSON values."""
        return {
            "directory": places.stored(self.directory),
            "hash": self.hash,
            "split": self.split,
            "files": {name: stamp.to_json() for name, stamp in self.stamps.items()},
        }

    @classmethod
    def from_json(cls, value: Any, kind: str, places: Places) -> Self:
        """Return the files that :meth:`to_json` gave.

        Raises:
            IntegrityError: They are none.
        """
        record = Fields(
            value, places.source, "the files of an index", ("directory", "hash", "split", "files")
        )
        arrays = _ARRAYS[kind]
        files = Fields(record.object("files"), places.source, "files", arrays)
        return cls(
            directory=places.opened(record.text("directory")),
            hash=record.hexadecimal("hash", 32),
            split=record.one_of("split", SPLITS),
            kind=kind,
            stamps={name: FileStamp.from_json(files.value(name), places.source) for name in arrays},
        )


@dataclass(frozen=True, slots=True)
class IndexReference:
    """The index that makes samples of a dataset.

    Attributes:
        files: Its arrays.
        epochs: The numbers that it follows from.
    """

    files: CachedFiles
    epochs: EpochPlan

    def open(self) -> GPTDatasetIndex:
        """Map the index.

        Raises:
            MissingFileError, IntegrityError: See :meth:`CachedFiles.open`.
        """
        return GPTDatasetIndex(**self.files.open(), plan=self.epochs)

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the reference as JSON values."""
        numbers = {field.name: getattr(self.epochs, field.name) for field in fields(EpochPlan)}
        return {**self.files.to_json(places), "epochs": numbers}

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the reference that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        names = ("directory", "hash", "split", "files", "epochs")
        record = Fields(value, places.source, "an index", names)
        epochs = _epochs_from_json(record.object("epochs"), places.source)
        files = {name: record.value(name) for name in names[:-1]}
        return cls(CachedFiles.from_json(files, "GPTDataset", places), epochs)


@dataclass(frozen=True, slots=True)
class DatasetReference:
    """A dataset, and which of its samples there are.

    Attributes:
        prefix: Its path prefix, as it can be opened.
        first: The number of the first sample: not 0 only for documents of a split.
        samples: The number of samples that may be read.
        bin: The stamp of its tokens.
        idx: The stamp of its index of sequences.
        multimodal: Whether its sequences have modes.
        fingerprint: What is known of its content, as in blends and caches.
        index: The index that makes its samples; None where they are its documents.
    """

    prefix: str
    first: int
    samples: int
    bin: FileStamp
    idx: FileStamp
    multimodal: bool
    fingerprint: dict[str, Any]
    index: IndexReference | None = None

    def open_dataset(self, *, mmap: bool = True) -> IndexedDataset:
        """Open the dataset, if it is the one that the plan was made for.

        Args:
            mmap: See :class:`~tokshard.dataset.reader.IndexedDataset`.

        Raises:
            MissingFileError: One of its files is not there.
            IntegrityError: One has changed since the plan was made, or they contradict each other.
        """
        self.check()
        dataset = IndexedDataset(self.prefix, self.multimodal, mmap)
        self.check()  # what was opened is what was checked, and not what has replaced it in between
        return dataset

    def check(self) -> None:
        """Check that both files are those that the plan was made for, without reading them whole.

        Raises:
            MissingFileError, IntegrityError: See :meth:`open_dataset`.
        """
        self.idx.check(idx_path(self.prefix))
        self.bin.check(bin_path(self.prefix))

    def open_index(self) -> GPTDatasetIndex:
        """Map the index that makes its samples.

        Raises:
            UsageError: Its samples are documents.
            MissingFileError, IntegrityError: See :meth:`CachedFiles.open`.
        """
        if self.index is None:
            raise UsageError(f"the samples of {self.prefix} are its documents: there is no index")
        return self.index.open()

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the reference as JSON values."""
        return {
            "prefix": places.stored(self.prefix),
            "first": self.first,
            "samples": self.samples,
            "bin": self.bin.to_json(),
            "idx": self.idx.to_json(),
            "multimodal": self.multimodal,
            "fingerprint": self.fingerprint,
            "index": None if self.index is None else self.index.to_json(places),
        }

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the reference that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        record = Fields(value, places.source, "a dataset", tuple(cls.__slots__))
        index = record.value("index")
        return cls(
            prefix=places.opened(record.text("prefix")),
            first=record.count("first"),
            samples=record.count("samples"),
            bin=FileStamp.from_json(record.value("bin"), places.source),
            idx=FileStamp.from_json(record.value("idx"), places.source),
            multimodal=record.flag("multimodal"),
            fingerprint=record.object("fingerprint"),
            index=None if index is None else IndexReference.from_json(index, places),
        )


def _epochs_from_json(value: dict[str, Any], path: str) -> EpochPlan:
    names = tuple(field.name for field in fields(EpochPlan))
    record = Fields(value, path, "the numbers of an index", names)
    flags = ("extra_token", "drop_last_partial", "separate_final_epoch")
    found: dict[str, Any] = {name: record.flag(name) for name in flags}
    for name in names:
        if name == "num_samples" and record.value(name) is None:
            found[name] = None
        elif name not in flags:
            found[name] = record.count(name)
    return EpochPlan(**found)


KINDS = ("blend", "index", "documents")

MAX_DATASETS = 32767
"""The int16 that says the dataset of a sample goes no further, as Megatron's."""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The samples of a stream, by their ids.

    Attributes:
        kind: One of :data:`KINDS`.
        name: The split that it is, as ``blend.json`` names it: ``"train"``, ``"valid.0"``, ...
        total: The number of ids.
        datasets: The datasets, in the order of their numbers.
        order: The arrays of a blend of several datasets; None where ids number the samples through.

    Raises:
        UsageError: The parts do not fit.
    """

    kind: str
    name: str
    total: int
    datasets: tuple[DatasetReference, ...]
    order: CachedFiles | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not 0 < len(self.datasets) <= MAX_DATASETS:
            raise UsageError(f"a source of kind {self.kind!r} has 1 to {MAX_DATASETS} datasets")
        for one in self.datasets:
            if (one.index is None) != (self.kind == "documents"):
                raise UsageError(f"{one.prefix} does not fit a source of kind {self.kind}")
            if one.index is not None and one.samples > one.index.epochs.samples:
                raise UsageError(
                    f"{one.samples} samples of {one.prefix} are more than the "
                    f"{one.index.epochs.samples} of its index"
                )
        if self.order is None and self.total != sum(one.samples for one in self.datasets):
            raise UsageError(f"{self.total} is not the sum of the samples of the datasets")
        if self.order is not None and self.kind != "blend":
            raise UsageError("only a blend has an order of its own")
        if len({(one.sequence_length, one.extra_token) for one in self._epochs}) > 1:
            raise UsageError("the indexes of a source have samples of different lengths")

    @property
    def _epochs(self) -> tuple[EpochPlan, ...]:
        return tuple(one.index.epochs for one in self.datasets if one.index is not None)

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sample without the extra one; None for documents."""
        return self._epochs[0].sequence_length if self._epochs else None

    @property
    def extra_token(self) -> bool:
        """Whether a sample has one token more, so that every token has its next as label."""
        return bool(self._epochs) and self._epochs[0].extra_token

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where each dataset's ids begin, and the total: int64 of shape (datasets + 1,).

        Raises:
            UsageError: It is a blend, whose ids are mixed.
        """
        if self.order is not None:
            raise UsageError("the ids of a blend are not numbered dataset by dataset")
        sizes = [one.samples for one in self.datasets]
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
        value = self.to_json(Places.nowhere())
        value["datasets"] = [one | {"fingerprint": None} for one in value["datasets"]]
        return identity_digest(value)

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the source as JSON values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "total": self.total,
            "datasets": [one.to_json(places) for one in self.datasets],
            "order": None if self.order is None else self.order.to_json(places),
        }

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the source that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or its parts do not fit.
        """
        record = Fields(value, places.source, "a source", tuple(cls.__slots__))
        order = record.value("order")
        try:
            return cls(
                kind=record.one_of("kind", KINDS),
                name=record.text("name"),
                total=record.count("total"),
                datasets=tuple(DatasetReference.from_json(one, places) for one in record.array("datasets")),
                order=None if order is None else CachedFiles.from_json(order, "BlendedDataset", places),
            )
        except UsageError as error:
            raise IntegrityError(f"{places.source}: {error}", path=places.source) from error
