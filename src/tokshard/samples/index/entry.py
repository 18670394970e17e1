"""Files of Megatron's index cache: their names, and their fingerprints in blends and plans.

Their examination and their sidecars are in other modules, because the loader of a rank needs neither.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from tokshard.core.codec import Bounds, Record
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.products import CACHE_FILE, CACHE_LOCK, DESCRIPTION_SUFFIX
from tokshard.errors import UsageError
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS, map_npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.samples.index.description import Description


@dataclass(frozen=True, slots=True)
class CacheEntry(Record):
    """The files of one dataset's index or of one blend. Any of them may be missing.

    Attributes:
        path_prefix: The beginning of the paths of the files: ``DIRECTORY/{hash}-{class}-{split}``.

    Example:
        >>> entry = CacheEntry("cache/61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid")
        >>> entry.array_path("shuffle_index")
        'cache/61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid-shuffle_index.npy'
    """

    path_prefix: str

    @classmethod
    def of(cls, description: Description, directory: str) -> Self:
        """Return the entry that a description names."""
        stem = f"{description.hash()}-{description.CLASS}-{description.split_name}"
        return cls(os.path.join(directory, stem))

    @classmethod
    def of_file(cls, path: str) -> Self | None:
        """Return the entry that a file belongs to by its name, or None if it is not a file of an entry.

        Example:
            >>> CacheEntry.of_file("cache/notes.txt") is None
            True
        """
        directory, name = os.path.split(path)
        match = CACHE_FILE.fullmatch(name)
        return cls(os.path.join(directory, match[1])) if match else None

    @property
    def directory(self) -> str:
        """The directory of the cache."""
        return os.path.dirname(self.path_prefix)

    @property
    def stem(self) -> str:
        """The beginning of the names of the files."""
        return os.path.basename(self.path_prefix)

    @property
    def hash(self) -> str:
        """The MD5 of the description."""
        return self.stem.split("-")[0]

    @property
    def is_blend(self) -> bool:
        """True if it is the order of a blend."""
        return self.stem.split("-")[1] == "BlendedDataset"

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
        return self.path_prefix + DESCRIPTION_SUFFIX

    @property
    def sidecar_path(self) -> str:
        """The file of tokshard, which Megatron ignores."""
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

    def load(self) -> dict[str, NDArray[Any]]:
        """Map the arrays, read-only. Their structure is checked, their content is not.

        Raises:
            IntegrityError: A file is not a complete ``.npy`` file.
            StorageError: A file is missing or cannot be read.
        """
        return {name: map_npy(self.array_path(name)) for name in self.arrays}

    def _path(self, suffix: str) -> str:
        return f"{self.path_prefix}-{suffix}"


@dataclass(frozen=True, slots=True)
class CachedArrays(CacheEntry):
    """The arrays of an index or of a blend, with their fingerprints.

    Raises:
        UsageError: A fingerprint is missing, or is of another array.

    Attributes:
        path_prefix: Path prefix of the files, such as ``cache/HASH-GPTDataset-train``.
        files: Fingerprint of each file ``PREFIX-NAME.npy``, by the name of its array.
    """

    path_prefix: Annotated[
        str, Bounds(pattern="(?:.*/)?[0-9a-f]{32}-(?:GPTDataset|BlendedDataset)-(?:train|valid|test)")
    ]
    files: dict[str, FileFingerprint]

    def _validate(self) -> None:
        if set(self.files) != set(self.arrays):
            raise UsageError(f"files must be {', '.join(self.arrays)}, got {', '.join(self.files)}")

    @classmethod
    def at(cls, path_prefix: str) -> Self:
        """Return the arrays as they are now.

        Raises:
            MissingFileError: One does not exist.
        """
        entry = CacheEntry(path_prefix)
        return cls(path_prefix, {name: FileFingerprint.of(entry.array_path(name)) for name in entry.arrays})

    @property
    def fingerprints(self) -> dict[str, FileFingerprint]:
        """The fingerprints of the files by their paths."""
        return {self.array_path(name): fingerprint for name, fingerprint in self.files.items()}

    def open(self) -> dict[str, NDArray[Any]]:
        """Map the arrays of a plan, read-only.

        Raises:
            MissingFileError: One does not exist.
            IntegrityError: A file has changed since the plan was made, or is not a complete array.
        """
        self.check()
        arrays = self.load()
        self.check()  # again, in case a file was replaced between the check and the mapping
        return arrays

    def check(self) -> None:
        """Check that the files are those that the plan was made for.

        Raises:
            MissingFileError: One does not exist.
            IntegrityError: One has changed since the plan was made.
        """
        for path, fingerprint in self.fingerprints.items():
            fingerprint.check(path, "plan")
