"""Megatron's cache of indexes: the names of its files, what they hold, and what state they are in.

Megatron takes a cache for good if its files exist. Here an entry is only trusted (*fresh*) if all files
are there, are what was written, and were made from the dataset as it is now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.gpt_index.indices import sample_index_dtype, shuffle_index_dtype
from tokshard.index_cache.description import BlendedDescription, Description, GPTDatasetDescription
from tokshard.index_cache.fingerprint import fingerprint_differences
from tokshard.index_cache.npy import ArraySpec, map_npy, read_spec
from tokshard.index_cache.sidecar import Origin, Sidecar
from tokshard.storage.digest import file_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.epochs import EpochPlan

GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLEND_ARRAYS = ("dataset_index", "dataset_sample_index")

State = Literal["fresh", "stale", "damaged", "foreign", "missing"]
Arrays = Mapping[str, "NDArray[Any]"]
Specs = Mapping[str, ArraySpec]


def default_directory(path_prefix: str) -> str:
    """Return where Megatron keeps the indexes of a dataset when it is given no ``--data-cache-path``.

    Example:
        >>> default_directory("data/web")
        'data/web/cache/GPTDataset_indices'
    """
    return os.path.join(path_prefix, "cache", f"{GPTDatasetDescription.CLASS}_indices")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one index or of one blend.

    Attributes:
        directory: The directory of the cache.
        stem: What their names begin with: ``{hash}-{class}-{split}``.
        text: The description, which is also the content of ``description.txt``.
        arrays: The names of the arrays, in Megatron's order.
    """

    directory: str
    stem: str
    text: str
    arrays: tuple[str, ...]

    @property
    def hash(self) -> str:
        """The MD5 of the description."""
        return self.stem.partition("-")[0]

    @property
    def description_path(self) -> str:
        """The description; it appears last."""
        return self._path("description.txt")

    @property
    def sidecar_path(self) -> str:
        """Our own file, which Megatron does not look at."""
        return self._path("tokshard.json")

    @property
    def lock_path(self) -> str:
        """The file that is locked while the entry is written."""
        return self._path("tokshard.lock")

    @property
    def megatron_files(self) -> tuple[str, ...]:
        """The files that must exist for Megatron to build nothing."""
        return (self.description_path, *(self.array_path(name) for name in self.arrays))

    def array_path(self, name: str) -> str:
        """Return the path of one of :attr:`arrays`."""
        return self._path(f"{name}.npy")

    def _path(self, suffix: str) -> str:
        return os.path.join(self.directory, f"{self.stem}-{suffix}")


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory of cached indexes, Megatron's ``--data-cache-path``.

    Example:
        >>> description = GPTDatasetDescription("data/web", None, "valid", 1234, 64, None, None, {})
        >>> Cache("cache").gpt_files(description).array_path("shuffle_index")
        'cache/61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid-shuffle_index.npy'
    """

    directory: str

    def gpt_files(self, description: GPTDatasetDescription) -> CacheEntry:
        """Return the files of a dataset's index."""
        return self._entry(description, description.index_split, GPT_ARRAYS)

    def blended_files(self, description: BlendedDescription) -> CacheEntry:
        """Return the files of a blend."""
        return self._entry(description, description.split, BLEND_ARRAYS)

    def _entry(self, description: Description, split: str, arrays: tuple[str, ...]) -> CacheEntry:
        stem = f"{description.hash()}-{description.CLASS}-{split}"
        return CacheEntry(self.directory, stem, description.text(), arrays)


@dataclass(frozen=True, slots=True)
class CacheState:
    """What an entry is, and why.

    Attributes:
        state: ``"fresh"``: complete, as written, and made from the dataset as it is now. ``"stale"``:
            made from another content of the dataset, or with other options. ``"damaged"``: not what was
            written. ``"foreign"``: Megatron's own, of the right shape, which nothing is known of.
            ``"missing"``: a file of Megatron's is not there, so Megatron would build all of them.
        reason: Why, as the rest of a sentence that begins with the entry.
    """

    state: State
    reason: str


def gpt_specs(plan: EpochPlan) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a dataset's index, as Megatron chooses them."""
    return {
        "document_index": ArraySpec(np.dtype(np.int32), (plan.documents,)),
        "sample_index": ArraySpec(np.dtype(sample_index_dtype(plan.documents)), (plan.samples + 1, 2)),
        "shuffle_index": ArraySpec(np.dtype(shuffle_index_dtype(plan.samples)), (plan.samples,)),
    }


def blend_specs(description: BlendedDescription) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a blend."""
    size = int(sum(description.weights)) if description.size is None else description.size
    return {
        "dataset_index": ArraySpec(np.dtype("<i2"), (size,)),
        "dataset_sample_index": ArraySpec(np.dtype("<i8"), (size,)),
    }


def examine(entry: CacheEntry, specs: Specs, origin: Origin, *, digests: bool) -> CacheState:
    """Tell the state of an entry, which another process may be replacing meanwhile: then it is missing.

    Args:
        entry: The files.
        specs: The dtypes and shapes that follow from the dataset as it is now, and the description.
        origin: What it would be made from now.
        digests: Whether to read the arrays whole and hold them against their digests. Without, their
            headers and sizes are looked at.

    Raises:
        StorageError: A file cannot be read.
    """
    try:
        # Who replaces an entry removes its description first and writes it last.
        description = InputFile(entry.description_path) if os.path.isfile(entry.description_path) else None
        found = _examine(entry, specs, origin, digests=digests)
        if description is None or description.is_in_place():
            return found
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    return CacheState("missing", "is being replaced by another process")


def _examine(entry: CacheEntry, specs: Specs, origin: Origin, *, digests: bool) -> CacheState:
    absent = [path for path in entry.megatron_files if not os.path.isfile(path)]
    if len(absent) == len(entry.megatron_files):
        return CacheState("missing", "is not there")
    if absent:
        names = ", ".join(os.path.basename(path) for path in absent)
        return CacheState("missing", f"is not complete: {names} not there, so Megatron would build all anew")
    try:
        _check_text(entry)
        found = {name: read_spec(entry.array_path(name)) for name in entry.arrays}
        sidecar = Sidecar.read(entry.sidecar_path)
    except IntegrityError as error:
        return CacheState("damaged", f"is damaged: {error.message}")
    if sidecar is None:
        return _examine_foreign(found, specs)
    return _examine_ours(entry, sidecar, found, specs, origin, digests=digests)


def load(entry: CacheEntry) -> dict[str, NDArray[Any]]:
    """Map the arrays of an entry, read-only. Their structure is checked, their content is not.

    Raises:
        IntegrityError: A file is no whole ``.npy`` file.
        StorageError: A file is missing or cannot be read.
    """
    return {name: map_npy(entry.array_path(name)) for name in entry.arrays}


def _check_text(entry: CacheEntry) -> None:
    file = InputFile(entry.description_path)
    text = entry.text.encode("ascii")
    content = bytearray(min(file.size_bytes, len(text) + 1))
    file.read_into(memoryview(content), 0)
    if content != text:
        raise IntegrityError(
            f"{file.path} does not hold the text that its name is the hash of", path=file.path
        )


def _examine_foreign(found: Specs, specs: Specs) -> CacheState:
    for name, spec in specs.items():
        if found[name] != spec:
            return CacheState(
                "stale",
                f"does not fit the dataset as it is now: {name}.npy is {found[name]}, "
                f"but {spec} follows from the dataset",
            )
    return CacheState("foreign", "was not made by tokshard: its content is not known to be right")


def _examine_ours(
    entry: CacheEntry, sidecar: Sidecar, found: Specs, specs: Specs, origin: Origin, *, digests: bool
) -> CacheState:
    changes = fingerprint_differences(sidecar.dataset, origin.dataset)
    if changes:
        return CacheState("stale", f"was made from another content of the dataset: {', '.join(changes)}")
    for name, value in origin.options.items():
        if sidecar.options.get(name) != value:
            was = sidecar.options.get(name)
            return CacheState("stale", f"was made with {name}={was}, and not with {name}={value}")
    for name, spec in specs.items():
        file = f"{name}.npy"
        recorded = sidecar.files.get(file, {})
        if found[name] != spec or recorded.get("bytes") != spec.file_bytes:
            return CacheState("damaged", f"is damaged: {file} is {found[name]}, but {spec} was to be written")
        if digests and file_digest(entry.array_path(name)) != recorded.get("xxh3_128"):
            return CacheState("damaged", f"is damaged: {file} does not have the digest that was recorded")
    return CacheState("fresh", "is complete and made from the dataset as it is now")
