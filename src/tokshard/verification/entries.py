"""One set of files of a cache, of which any may be missing or wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokshard.index_cache.cache import BLEND_ARRAYS, GPT_ARRAYS
from tokshard.index_cache.description import GPTDatasetDescription


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """One set of files of a cache, by what their names begin with.

    Attributes:
        directory: The directory of the cache.
        stem: ``{hash}-{class}-{split}``.
        prefix: The dataset that it is made from, where that is known better than its description says.
    """

    directory: str
    stem: str
    prefix: str | None = None

    @property
    def path(self) -> str:
        """The path of the description, which need not be there."""
        return self.file("description.txt")

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its arrays."""
        return GPT_ARRAYS if f"-{GPTDatasetDescription.CLASS}-" in self.stem else BLEND_ARRAYS

    def file(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.directory, f"{self.stem}-{suffix}")
