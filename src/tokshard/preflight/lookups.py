"""What a job looks up in a cache of indexes, and what lies there instead where it is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tokshard.errors import StorageError
from tokshard.index_cache.description import (
    BlendedDescription,
    Description,
    Difference,
    descriptions_in,
    differences,
)
from tokshard.index_cache.entry import CacheEntry, Condition

_DESCRIPTION_NAME = re.compile(
    r"[0-9a-f]{32}-(GPTDataset|BlendedDataset)-(train|valid|test)-description\.txt"
)
_PLACE = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Nearest:
    """The description in a cache that differs least from one that is missing.

    Attributes:
        path: Its file.
        differences: Each field that differs, with the value that is looked up and the one that is there.
    """

    path: str
    differences: tuple[Difference, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ, each once, without the numbers of sources."""
        return tuple(dict.fromkeys(_PLACE.sub("", name) for name, _, _ in self.differences))

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "path": self.path,
            "differences": [
                {"field": name, "looked_up": wanted, "there": there}
                for name, wanted, there in self.differences
            ],
        }


@dataclass(frozen=True, slots=True)
class Lookup:
    """One set of files that a job looks up.

    Attributes:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        name: What they belong to: a dataset as the job names it, or ``"the blend"``.
        entry: The files.
        description: The text whose hash is in their names.
        state: Their state; None where it cannot be told because the dataset is not here.
        reason: Why it is that.
        nearest: For missing files the description in the same directory that differs least.
    """

    split: str
    name: str
    entry: CacheEntry
    description: str
    state: Condition | None
    reason: str
    nearest: Nearest | None = None

    @property
    def will_be_found(self) -> bool:
        """Whether Megatron will take the files: it only asks whether they exist."""
        return all(map(os.path.isfile, self.entry.megatron_files))

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "split": self.split,
            "name": self.name,
            "hash": self.entry.hash,
            "description": self.description,
            "files": list(self.entry.megatron_files),
            "state": self.state,
            "reason": self.reason,
            "nearest": self.nearest.to_json() if self.nearest else None,
        }


@dataclass(frozen=True, slots=True)
class CachedDescriptions:
    """The descriptions in directories of caches, each directory read once, when it is first asked for."""

    _read: dict[str, dict[tuple[str, str], list[tuple[str, Description]]]] = field(default_factory=dict)

    def nearest(self, wanted: Description, directory: str) -> Nearest | None:
        """Return the description in a directory that differs least from the one wanted.

        Those of the same dataset (or with the same number of sources) come first.
        """
        candidates = self._of(directory).get((wanted.CLASS, _split_of(wanted)), [])
        related = [one for one in candidates if _subject(one[1]) == _subject(wanted)]
        found = [Nearest(path, tuple(differences(wanted, one))) for path, one in related or candidates]
        return min(found, key=lambda one: (len(one.fields), len(one.differences), one.path), default=None)

    def tokenizers(self, directories: Iterable[str]) -> list[dict[str, Any]]:
        """Return the different identifiers of tokenizers in the descriptions, the most frequent first."""
        times: dict[str, int] = {}
        values: dict[str, dict[str, Any]] = {}
        for directory in dict.fromkeys(directories):
            for (kind, _), descriptions in self._of(directory).items():
                for _, one in descriptions if kind == "GPTDataset" else ():
                    if not isinstance(one, BlendedDescription) and one.tokenizer is not None:
                        key = repr(one.tokenizer)
                        times[key] = times.get(key, 0) + 1
                        values[key] = one.tokenizer
        return [values[key] for key in sorted(times, key=lambda key: -times[key])]

    def _of(self, directory: str) -> dict[tuple[str, str], list[tuple[str, Description]]]:
        if directory not in self._read:
            self._read[directory] = _read_directory(directory)
        return self._read[directory]


def _read_directory(directory: str) -> dict[tuple[str, str], list[tuple[str, Description]]]:
    found: dict[tuple[str, str], list[tuple[str, Description]]] = {}
    try:
        for path, description in descriptions_in(directory):
            found.setdefault((description.CLASS, _split_of(description)), []).append((path, description))
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return found


def _split_of(description: Description) -> str:
    return description.split if isinstance(description, BlendedDescription) else description.index_split


def _subject(description: Description) -> object:
    if isinstance(description, BlendedDescription):
        return tuple(one.dataset_path for one in description.datasets)
    return description.dataset_path
