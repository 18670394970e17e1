"""The samples of a split of ``blend.json``: its sources, its order and their files.

Apart from the document, because the loader of a rank needs nothing else of it to read samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from tokshard.core.codec import Bounds, Count, Record, decode
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.products import DESCRIPTION_SUFFIX
from tokshard.errors import IntegrityError, UsageError
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS
from tokshard.samples.index.packing import Packing
from tokshard.storage.paths import bin_path, check_plain_name, idx_path, is_remote

Kind = Literal["single", "weighted", "proportional", "exhaustive"]

HASH = "[0-9a-f]{32}"


class CacheEntryNames(Record):
    """The files of a cache entry, by the path prefix ``index`` of their names, and their fingerprints.

    Raises:
        UsageError: Fingerprints are missing, or are of other files.
    """

    __slots__ = ()
    index: str
    files: dict[str, FileFingerprint]

    def _validate(self) -> None:
        if set(self.files) != set(self.paths):
            raise UsageError(f"files must be {', '.join(self.paths)}, got {', '.join(self.files)}")

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the files that have a fingerprint, by their names."""
        raise NotImplementedError

    @property
    def hash(self) -> str:
        """The hash in the names of the files."""
        return os.path.basename(self.index).partition("-")[0]

    @property
    def description(self) -> str:
        """The path of the description."""
        return f"{self.index}{DESCRIPTION_SUFFIX}"


@dataclass(frozen=True, slots=True)
class BlendSource(CacheEntryNames):
    """A source of a split, and its index.

    The dataset is text: a blend of a multimodal dataset is refused.

    Attributes:
        prefix: Path prefix of the dataset.
        training_path: Path prefix as hashed.
        index: Prefix of the file names in the cache directory: ``INDEX-description.txt``,
            ``INDEX-document_index.npy``, ``INDEX-sample_index.npy`` and ``INDEX-shuffle_index.npy``. Its
            first 32 characters are the hash.
        draws: Samples that the blend reads: 0 to draws - 1.
        fingerprint: Fingerprint of the dataset when its index was built.
        tokenizer: Number of its tokenizer in ``tokenizers``.
        epochs: Numbers of the index, which determine its arrays.
        files: Fingerprints of ``bin`` and ``idx``, the files of the dataset, and of ``document_index``,
            ``sample_index`` and ``shuffle_index``.
    """

    prefix: str
    training_path: str
    index: Annotated[str, Bounds(pattern=f"(?:.*/)?{HASH}-GPTDataset-(?:train|valid|test)")]
    draws: Count
    fingerprint: DatasetFingerprint
    tokenizer: Count
    epochs: EpochPlan
    files: dict[str, FileFingerprint]

    @property
    def samples(self) -> int:
        """The samples of its index."""
        return self.epochs.samples

    @property
    def packing(self) -> Packing | None:
        """The packing of its documents; None if they are concatenated."""
        return None if self.epochs.packed is None else self.epochs.packed.packing

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the files that have a fingerprint, by their names."""
        arrays = {name: f"{self.index}-{name}.npy" for name in GPT_ARRAYS}
        return {"bin": bin_path(self.prefix), "idx": idx_path(self.prefix)} | arrays


@dataclass(frozen=True, slots=True)
class BlendOrderFiles(CacheEntryNames):
    """The order of a blended split, in files that share a prefix.

    Attributes:
        index: Prefix of the file names in the cache directory: ``INDEX-description.txt``,
            ``INDEX-dataset_index.npy`` and ``INDEX-dataset_sample_index.npy``. Its first 32 characters are
            the hash.
        weights: Weights as hashed: normalized, or the samples of each source in an exhaustive blend.
        size: Size as hashed. Null in an exhaustive blend.
        files: Fingerprints of ``dataset_index`` and ``dataset_sample_index``.
    """

    index: Annotated[str, Bounds(pattern=f"(?:.*/)?{HASH}-BlendedDataset-(?:train|valid|test)")]
    weights: tuple[float, ...]
    size: Count | None
    files: dict[str, FileFingerprint]

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the files that have a fingerprint, by their names."""
        return {name: f"{self.index}-{name}.npy" for name in BLEND_ARRAYS}


@dataclass(frozen=True, slots=True)
class SplitFiles(Record):
    """The samples of a split, without what was measured of them.

    Raises:
        UsageError: The fields contradict each other.

    Attributes:
        split: Split of the datasets that the samples are from.
        kind: ``single``: sample k is sample k of the one source. All others have an order: ``weighted``,
            ``proportional`` or ``exhaustive``.
        samples: Number of samples.
        order: Order of the blend. Null for ``single``.
        sources: Sources, in the order of their numbers.
    """

    split: Literal["train", "valid", "test"]
    kind: Kind
    samples: Count
    order: BlendOrderFiles | None
    sources: tuple[BlendSource, ...]

    def _validate(self) -> None:
        if (self.kind == "single") != (self.order is None):
            raise UsageError(f"kind {self.kind} contradicts order")
        if not self.sources:
            raise UsageError("sources must not be empty")
        if self.order is not None and len(self.order.weights) != len(self.sources):
            raise UsageError("weights must have one number for each source")
        if sum(source.draws for source in self.sources) != self.samples:
            raise UsageError(f"samples must be the sum of the draws, got {self.samples}")
        for files in (self.order, *self.sources):
            if files is not None and not files.index.endswith(f"-{self.split}"):
                raise UsageError(f"index must be of the split {self.split}, got {files.index!r}")

    def with_paths(self, data: Callable[[str], str], index: Callable[[str], str]) -> Self:
        """Return the split with a function applied to the paths of datasets, and one to those of indexes."""
        order = self.order
        if order is not None:
            order = replace(order, index=index(order.index))
        sources = tuple(
            replace(source, prefix=data(source.prefix), index=index(source.index)) for source in self.sources
        )
        return replace(self, order=order, sources=sources)

    def opened(self, path: str, cache_directory: str) -> Self:
        """Return the split as the document at ``path`` stores it, with paths that can be opened."""
        return self.with_paths(
            lambda stored: opened_path(stored, path),
            lambda name: os.path.join(cache_directory, check_plain_name(name, path)),
        )


def opened_path(stored: str, path: str) -> str:
    """Return a path in the document at ``path`` as it can be opened.

    Raises:
        IntegrityError: It contains a NUL character.
    """
    if "\0" in stored:
        raise IntegrityError(f"{path}: a path contains a NUL character", path=path)
    return stored if is_remote(stored) else os.path.normpath(os.path.join(os.path.dirname(path), stored))


def read_split_files(document: dict[str, Any], path: str, name: str) -> SplitFiles:
    """Return the samples of a split of ``blend.json``; only the fields that describe them are read.

    Args:
        document: The parsed JSON of the file.
        path: The file, which its paths are relative to.
        name: The name of the split.

    Raises:
        IntegrityError: There is no such split, or a field of it is missing, unknown or invalid.
    """
    splits = document.get("splits")
    stored = splits.get(name) if isinstance(splits, dict) else splits
    if isinstance(stored, dict):
        stored = {field: value for field, value in stored.items() if field != "certificate"}
    # Within objects, so that errors name the places in the file.
    split = decode(dict[str, dict[str, SplitFiles]], {"splits": {name: stored}}, path)["splits"][name]
    directories = decode(dict[str, str], {"cache_directory": document.get("cache_directory")}, path)
    return split.opened(path, opened_path(directories["cache_directory"], path))
