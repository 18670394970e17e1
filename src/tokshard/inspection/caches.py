"""Looking at a directory of cached indexes, Megatron's ``--data-cache-path``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.inspection.indexfiles import IndexFiles, look_at_files
from tokshard.inspection.recognition import stems_in

SCHEMA = "tokshard.inspect-cache/1"


@dataclass(frozen=True, slots=True)
class CacheSummary:
    """What a cache holds.

    Attributes:
        directory: Where it lies.
        indexes: Indexes of datasets and orders of blends: the blends last, each by dataset and split.
    """

    directory: str
    indexes: tuple[IndexFiles, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all arrays."""
        return sum(one.size_bytes for one in self.indexes)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        return {
            "schema": SCHEMA,
            "directory": self.directory,
            "size_bytes": self.size_bytes,
            "indexes": [one.to_json() for one in self.indexes],
        }


def inspect_cache(directory: str) -> CacheSummary:
    """Summarise a cache from names and headers: no array is read.

    Raises:
        InputError: The directory cannot be listed.
        StorageError: A file cannot be read.
    """
    found = [look_at_files(directory, stem) for stem in stems_in(directory)]
    found.sort(key=lambda one: (one.is_blend, one.subject, one.split, one.hash))
    return CacheSummary(directory, tuple(found))
