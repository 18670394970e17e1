"""The arrays in Megatron's cache that samples come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.npy import map_npy
from tokshard.sharding.fields import Fields
from tokshard.sharding.sources.places import Places
from tokshard.sharding.sources.stamps import FileStamp

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
