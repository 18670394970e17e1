"""Sources of a plan's samples: the datasets and index files that sample ids refer to, and their paths.

A source is a description, which is read without opening any data. There are three kinds. In a ``blend`` the
two arrays of the blend give for each id the dataset and its sample. In an ``index`` the ids number the
samples of one or more indexes, one after the other; in ``documents`` the documents of one or more datasets.

Every file that a plan reads has a fingerprint, so that every rank can check every file that it opens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from tokshard.core.codec import Count, Document, Record, Sha256, encode
from tokshard.core.json_text import dump_readable_json, parse_json_object
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.products import BUILT_AGAIN, MOVED_HINT
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.samples.blend.sources import BlendSplit, read_split, with_paths
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import abspath, relative_inside
from tokshard.storage.paths import bin_path, idx_path, is_remote
from tokshard.storage.reading import read_json_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOURCES_NAME = "sources.json"
"""The file next to ``plan.json`` that describes the samples, unless they are those of a blend."""

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


@dataclass(frozen=True, slots=True)
class DatasetReference(Record):
    """A dataset of a stream.

    Raises:
        UsageError: An index without its numbers, or the other way around.

    Attributes:
        path_prefix: Path prefix.
        first: Number of the first sample: the first document of a split, otherwise 0.
        samples: Number of samples.
        multimodal: Whether each sequence has a mode.
        bin: Fingerprint of the ``.bin`` file.
        idx: Fingerprint of the ``.idx`` file.
        fingerprint: Fingerprint of the dataset, as in blends and index caches.
        index: Arrays of the index that defines the samples. Absent if the samples are documents.
        epochs: Numbers that determine the arrays. Absent if the samples are documents.
    """

    path_prefix: str
    first: Count
    samples: Count
    multimodal: bool
    bin: FileFingerprint
    idx: FileFingerprint
    fingerprint: DatasetFingerprint
    index: CachedArrays | None = None
    epochs: EpochPlan | None = None

    def _validate(self) -> None:
        if (self.index is None) != (self.epochs is None) or (self.index is not None and self.index.is_blend):
            raise UsageError(f"{self.path_prefix} must have an index and its numbers, or neither")
        if self.epochs is not None and self.samples > self.epochs.samples:
            raise UsageError(
                f"{self.samples} samples of {self.path_prefix} are more than the "
                f"{self.epochs.samples} of its index"
            )

    @property
    def packing(self) -> Packing | None:
        """The packing of its samples; None if documents are concatenated, or are the samples."""
        packed = None if self.epochs is None else self.epochs.packed
        return None if packed is None else packed.packing

    @property
    def files(self) -> dict[str, FileFingerprint]:
        """The fingerprints of all files by their paths."""
        files = {idx_path(self.path_prefix): self.idx, bin_path(self.path_prefix): self.bin}
        if self.index is not None:
            files |= self.index.fingerprints
        return files

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
        self.idx.check(idx_path(self.path_prefix), "plan")
        self.bin.check(bin_path(self.path_prefix), "plan")

    def open_index(self) -> GPTDatasetIndex:
        """Map the index that makes its samples.

        Raises:
            UsageError: Its samples are documents.
            MissingFileError, IntegrityError: See :meth:`CachedArrays.open`.
        """
        if self.index is None or self.epochs is None:
            raise UsageError(f"{self.path_prefix} has no index: its samples are documents")
        return GPTDatasetIndex(**self.index.open(), plan=self.epochs)


MAX_DATASETS = 32767
"""The dataset of a sample is an int16, as Megatron's."""


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
        if self.order is None and self.total != sum(dataset.samples for dataset in self.datasets):
            raise UsageError(f"samples must be the sum over the datasets, got {self.total}")
        if self.order is not None and not (self.kind == "blend" and self.order.is_blend):
            raise UsageError("only a blend has its own order")
        if len({(epochs.sequence_length, epochs.extra_token) for epochs in self._epochs}) > 1:
            raise UsageError("the indexes of a source must have samples of the same length")

    @classmethod
    def of_blend(cls, name: str, split: BlendSplit) -> Self:
        """Return the samples of a split of a blend."""
        datasets = tuple(
            DatasetReference(
                path_prefix=abspath(source.path_prefix),
                first=0,
                # Without an order the ids are those of the one source.
                samples=source.draws if split.order is None else source.epochs.samples,
                multimodal=False,
                bin=source.bin,
                idx=source.idx,
                fingerprint=source.fingerprint,
                index=replace(source.index, path_prefix=abspath(source.index.path_prefix)),
                epochs=source.epochs,
            )
            for source in split.sources
        )
        order = split.order
        if order is not None:
            order = replace(order, path_prefix=abspath(order.path_prefix))
        return cls("blend", name, split.samples, datasets, order)

    @property
    def _epochs(self) -> tuple[EpochPlan, ...]:
        return tuple(dataset.epochs for dataset in self.datasets if dataset.epochs is not None)

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
        """The SHA-256 of what the ids mean: neither where files are stored, nor what manifests add."""
        value = encode(self)
        for dataset in value["datasets"]:
            dataset["path_prefix"] = ""
            del dataset["fingerprint"]
        return identity_digest(with_paths(value, os.path.basename))

    @property
    def files(self) -> dict[str, FileFingerprint]:
        """The fingerprints of all files by their paths."""
        files = {path: found for dataset in self.datasets for path, found in dataset.files.items()}
        if self.order is not None:
            files |= self.order.fingerprints
        return files


@dataclass(frozen=True, slots=True)
class PlanSources(Document):
    """The content of ``sources.json``: the samples of the streams of a plan that does not read a blend.

    Attributes:
        streams: Samples of each stream, by name.
    """

    SCHEMA = "tokshard.sources/2"
    OLDER_HINT = "build the plan again with the same tokshard shard-plan command"

    streams: dict[str, SampleSource]

    def stored_in(self, directory: str) -> bytes:
        """Return the content of the file in a directory.

        Raises:
            UsageError: A path has characters that a plan does not store, or the file would be too large.
        """
        hint = "merge some of the datasets with tokshard merge"
        value = with_paths(self.to_json(), PathResolver(directory).stored)
        return dump_readable_json(value, SOURCES_NAME, hint=hint)


@dataclass(frozen=True, slots=True)
class SourcesFile(Record):
    """The file that describes the samples of a plan.

    In memory the path of a blend can be opened. In the file it is relative inside the plan's directory.

    Attributes:
        path: ``sources.json`` next to the plan, or the ``blend.json`` that the plan reads.
        sha256: SHA-256 of the file.
        blend_id: Id of the blend. Absent if it is no blend.
    """

    path: str
    sha256: Sha256
    blend_id: Sha256 | None = None

    @classmethod
    def of(cls, path: str, content: bytes, blend_id: str | None = None) -> Self:
        """Return the record of a file with some content."""
        return cls(path, hashlib.sha256(content).hexdigest(), blend_id)

    def read(self, resolver: PathResolver, streams: Sequence[str]) -> dict[str, SampleSource]:
        """Read the samples of streams.

        Raises:
            MissingFileError: The file was not found.
            IntegrityError: It has changed since the plan was built, or is damaged.
        """
        path = os.path.join(resolver.directory, SOURCES_NAME) if self.blend_id is None else self.path
        try:
            content = read_json_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(
                f"file of the plan not found: {path}", path=path, hint=MOVED_HINT
            ) from None
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise IntegrityError(
                f"{path} has changed since the plan was built",
                path=path,
                hint=f"restore the file, or run {BUILT_AGAIN['plan']}"
                + ("" if self.blend_id is None else "; write other blends to other directories"),
            )
        value = parse_json_object(content, path)
        try:
            if self.blend_id is None:
                found = PlanSources.from_json(with_paths(value, resolver.opened), path)
                return found.streams
            return {
                name: SampleSource.of_blend(name, read_split(value, path, name, resolver.moved.map))
                for name in streams
            }
        except UsageError as error:
            raise IntegrityError(f"{path}: {error.message}", path=path) from error
