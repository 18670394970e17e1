"""Entries of Megatron's index cache: their files, and our sidecar beside them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.core.codec import Document, Md5, Record, Tool
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.products import CACHE_FILE, CACHE_LOCK, DESCRIPTION_SUFFIX
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.errors import InputError, TokshardError, UsageError, raise_exhaustion
from tokshard.samples.index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.samples.index.description import BlendedDescription, Description, GPTDatasetDescription
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS, ArraySpec, map_npy
from tokshard.samples.index.packing import pack_words
from tokshard.storage.digest import FileRecord
from tokshard.storage.files import write_atomically
from tokshard.storage.reading import read_document

if TYPE_CHECKING:
    from numpy.typing import NDArray


def default_directory(path_prefix: str) -> str:
    """Return the directory of a dataset's indexes without ``--data-cache-path``, Megatron's default.

    Example:
        >>> default_directory("data/web")
        'data/web/cache/GPTDataset_indices'
    """
    return os.path.join(path_prefix, "cache", f"{GPTDatasetDescription.CLASS}_indices")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrigin(Record):
    """The data and the numbers that a dataset's index was built from, beyond its description."""

    dataset: DatasetFingerprint
    plan: EpochPlan
    tokenizer: DatasetTokenizer | None = None

    @property
    def pack(self) -> str:
        """The packing, for people."""
        return pack_words([self.plan.packing])

    def contradicts(self, description: GPTDatasetDescription) -> bool:
        """Return whether the plan is not the one that follows from its sizes and a description."""
        plan = self.plan
        try:
            expected = plan_epochs(
                sequences=plan.sequences,
                tokens_per_epoch=plan.tokens_per_epoch,
                sequence_length=description.sequence_length,
                num_samples=description.num_samples,
                extra_token=plan.extra_token,
                drop_last_partial=plan.drop_last_partial,
                packed=plan.packed,
            )
        except (InputError, UsageError):
            return True
        return plan != expected

    def difference_from(self, earlier: IndexOrigin) -> str | None:
        """Return the difference of an entry with another origin, None if its content would be the same."""
        if self.pack != earlier.pack:
            return f"was built with --pack {earlier.pack} instead of --pack {self.pack}"
        if changes := self.dataset.changes_since(earlier.dataset):
            return f"was built from other content of the dataset: {', '.join(changes)}"
        for option, then, now in (
            ("add_extra_token_to_sequence", earlier.plan.extra_token, self.plan.extra_token),
            (
                "drop_last_partial_sequence",
                earlier.plan.drop_last_partial,
                self.plan.drop_last_partial,
            ),
        ):
            if then != now:
                return f"was built with {option}={then} instead of {option}={now}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Document):
    """The sidecar file next to Megatron's files: the origin of the arrays and their digests."""

    SCHEMA = "tokshard.cache/2"
    OLDER_HINT = "build it again with the same tokshard build-indices or tokshard blend command"

    tool: Tool
    description_md5: Md5
    origin: IndexOrigin | None
    files: dict[str, FileRecord]
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def write(self, path: str) -> None:
        """Write the file, atomically."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Read the file; None if there is none.

        Raises:
            IntegrityError: It is damaged, or of another version.
        """
        try:
            return read_document(cls, path)
        except (FileNotFoundError, NotADirectoryError):
            return None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one dataset's index or of one blend, of which any may be missing.

    Attributes:
        directory: The directory of the cache.
        stem: The beginning of the names of the files: ``{hash}-{class}-{split}``.

    Example:
        >>> entry = CacheEntry("cache", "61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid")
        >>> entry.array_path("shuffle_index")
        'cache/61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid-shuffle_index.npy'
    """

    directory: str
    stem: str

    @classmethod
    def of(cls, description: Description, directory: str) -> Self:
        """Return the entry that a description names."""
        return cls(directory, f"{description.hash()}-{description.CLASS}-{description.split_name}")

    @classmethod
    def of_file(cls, path: str) -> Self | None:
        """Return the entry that a file belongs to by its name, None if it belongs to none.

        Example:
            >>> CacheEntry.of_file("cache/notes.txt") is None
            True
        """
        directory, name = os.path.split(path)
        found = CACHE_FILE.fullmatch(name)
        return cls(directory, found[1]) if found else None

    @property
    def hash(self) -> str:
        """The MD5 of the description."""
        return self.stem.split("-")[0]

    @property
    def is_blend(self) -> bool:
        """True if it is the order of a blend."""
        return self.stem.split("-")[1] == BlendedDescription.CLASS

    @property
    def split(self) -> str:
        """``"train"``, ``"valid"`` or ``"test"``."""
        return self.stem.split("-")[2]

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays, in Megatron's order."""
        return BLEND_ARRAYS if self.is_blend else GPT_ARRAYS

    @property
    def description_path(self) -> str:
        """The description; it is written last."""
        return os.path.join(self.directory, self.stem + DESCRIPTION_SUFFIX)

    @property
    def sidecar_path(self) -> str:
        """Our own file, which Megatron does not look at."""
        return self._path("tokshard.json")

    @property
    def lock_path(self) -> str:
        """The file that is locked while the entry is written."""
        return self._path(CACHE_LOCK)

    @property
    def megatron_files(self) -> tuple[str, ...]:
        """The files that must exist for Megatron to build nothing."""
        return (self.description_path, *(self.array_path(name) for name in self.arrays))

    def array_path(self, name: str) -> str:
        """Return the path of one of :attr:`arrays`."""
        return self._path(f"{name}.npy")

    def allowed_mismatches(self) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of tokenizers that its sidecar, if it is readable, records as allowed."""
        sidecar = self.readable_sidecar()
        return () if sidecar is None else sidecar.tokenizer_mismatches or ()

    def readable_sidecar(self) -> Sidecar | None:
        """Return its sidecar; None if there is none that can be read."""
        try:
            return Sidecar.read(self.sidecar_path)
        except TokshardError as error:
            raise_exhaustion(error)
            return None

    def load(self) -> dict[str, NDArray[Any]]:
        """Map the arrays, read-only. Their structure is checked, their content is not.

        Raises:
            IntegrityError: A file is no whole ``.npy`` file.
            StorageError: A file is missing or cannot be read.
        """
        return {name: map_npy(self.array_path(name)) for name in self.arrays}

    def _path(self, suffix: str) -> str:
        return os.path.join(self.directory, f"{self.stem}-{suffix}")


def entries_of(directory: str, names: Iterable[str]) -> list[CacheEntry]:
    """Return the entries of a cache that files belong to by their names, sorted; locks are no entries."""
    files = (name for name in names if not name.endswith(f"-{CACHE_LOCK}"))
    entries = (CacheEntry.of_file(os.path.join(directory, name)) for name in files)
    return sorted({entry for entry in entries if entry is not None}, key=lambda entry: entry.stem)


def entries_in(directory: str) -> list[CacheEntry]:
    """Return the entries of which there is any file in a directory, sorted.

    Raises:
        InputError: The directory cannot be read.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}") from error
    return entries_of(directory, names)


def gpt_specs(plan: EpochPlan) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a dataset's index, as Megatron chooses them."""
    return {
        "document_index": ArraySpec(np.dtype(np.int32), (plan.documents,)),
        "sample_index": ArraySpec(np.dtype(sample_index_dtype(plan.documents)), (plan.samples + 1, 2)),
        "shuffle_index": ArraySpec(np.dtype(shuffle_index_dtype(plan.samples)), (plan.samples,)),
    }


def blend_specs(samples: int) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a blend."""
    return {
        "dataset_index": ArraySpec(np.dtype(np.int16), (samples,)),
        "dataset_sample_index": ArraySpec(np.dtype(np.int64), (samples,)),
    }
