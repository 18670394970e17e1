"""From what a user names to documents of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tokshard.errors import MissingFileError
from tokshard.storage.fs import exists, realpath
from tokshard.storage.paths import idx_path
from tokshard.tracing.items import Item
from tokshard.tracing.provenance import Provenance
from tokshard.tracing.sequences import SequenceTable

Target = tuple[str, int]
"""The path prefix of a dataset, and the number of a document."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """An item and what it is.

    Attributes:
        item: The item.
        targets: The documents that were made of it.
        problem: Why there is none.
        rejected: Whether that is because the record was rejected.
    """

    item: Item
    targets: tuple[Target, ...]
    problem: str | None = None
    rejected: bool = False


class Resolver:
    """Looks items up in some datasets, each of which is opened at the first question about it.

    Args:
        datasets: The path prefixes of the datasets, and whether each is multimodal.
    """

    def __init__(self, datasets: Mapping[str, bool]) -> None:
        self._datasets = datasets
        self._tables: dict[str, SequenceTable] = {}
        self._real_path = lru_cache(maxsize=4096)(realpath)
        self._provenance: dict[str, Provenance | None] = {}

    def resolve(self, item: Item) -> Resolved:
        """Return the documents that an item names.

        Raises:
            IntegrityError: A sidecar file of a dataset is damaged.
        """
        if item.kind == "document":
            real = self._real_path(item.path)
            named = [prefix for prefix in self._datasets if self._real_path(prefix) == real]
            if named:
                return self._numbered(item, named)
        matches = [
            (prefix, match)
            for prefix in self._datasets
            if (provenance := self._provenance_of(prefix)) is not None
            for match in provenance.matches(item)
        ]
        targets = tuple((prefix, match.document) for prefix, match in matches if match.document is not None)
        if targets:
            return Resolved(item, targets)
        for _, match in matches:
            return Resolved(item, (), match.problem, match.rejected)
        return Resolved(item, (), self._unknown(item))

    def tokens_of(self, targets: list[Target]) -> dict[Target, int]:
        """Return the tokens of documents."""
        found: dict[Target, int] = {}
        for prefix in {prefix for prefix, _ in targets}:
            mine = [target for target in targets if target[0] == prefix]
            tokens = self.table(prefix).tokens_of(np.array([document for _, document in mine], np.int64))
            found |= dict(zip(mine, tokens.tolist(), strict=True))
        return found

    def table(self, prefix: str) -> SequenceTable:
        """Return the sequences of a dataset.

        Raises:
            MissingFileError: Its index file is not there.
            IntegrityError: It is damaged.
        """
        if prefix not in self._tables:
            path = idx_path(prefix)
            if not exists(path):
                raise MissingFileError(f"there is no dataset at {prefix}: {path} is missing", path=path)
            self._tables[prefix] = SequenceTable(prefix, multimodal=self._datasets[prefix])
        return self._tables[prefix]

    def _numbered(self, item: Item, prefixes: list[str]) -> Resolved:
        count = self.table(prefixes[0]).document_count
        if item.number >= count:
            return Resolved(item, (), f"{item.path} has {count} documents, from 0")
        return Resolved(item, tuple((prefix, item.number) for prefix in prefixes))

    def _provenance_of(self, prefix: str) -> Provenance | None:
        if prefix not in self._provenance:
            self._provenance[prefix] = Provenance.open(prefix)
        return self._provenance[prefix]

    def _unknown(self, item: Item) -> str:
        if item.kind == "document":
            return f"{item.path} is none of the {len(self._datasets)} datasets, nor merged into one"
        known = [self._provenance_of(prefix) for prefix in self._datasets]
        silent = sum(one is None or one.is_silent for one in known)
        problem = f"no dataset was made from {item.path}, as far as is known"
        if silent:
            problem += f"; of {silent} of {len(known)}, made by another program, nothing tells from what"
        return problem
