"""What the sample ids of a stream mean: which datasets they come from, and which files hold them.

A source is a description, all of it in the plan: small, and read without opening any data. There are three
kinds. In a ``blend`` the two arrays of the blend say for each id the dataset and the sample of it. In an
``index`` the ids number the samples of one or more indexes, one after the other; in ``documents`` the
documents of one or more datasets, the shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.gpt_index.epochs import EpochPlan
from tokshard.sharding.fields import Fields
from tokshard.sharding.sources.places import Places
from tokshard.storage.digest import identity_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray
from tokshard.sharding.sources.files import CachedFiles
from tokshard.sharding.sources.references import DatasetReference

KINDS = ("blend", "index", "documents")

MAX_DATASETS = 32767
"""The int16 that says the dataset of a sample goes no further, as Megatron's."""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The samples of a stream, by their ids.

    Attributes:
        kind: One of :data:`KINDS`.
        name: The split that it is, as ``blend.json`` names it: ``"train"``, ``"valid.0"``, ...
        total: The number of ids.
        datasets: The datasets, in the order of their numbers.
        order: The arrays of a blend of several datasets; None where ids number the samples through.

    Raises:
        UsageError: The parts do not fit.
    """

    kind: str
    name: str
    total: int
    datasets: tuple[DatasetReference, ...]
    order: CachedFiles | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not 0 < len(self.datasets) <= MAX_DATASETS:
            raise UsageError(f"a source of kind {self.kind!r} has 1 to {MAX_DATASETS} datasets")
        for one in self.datasets:
            if (one.index is None) != (self.kind == "documents"):
                raise UsageError(f"{one.prefix} does not fit a source of kind {self.kind}")
            if one.index is not None and one.samples > one.index.epochs.samples:
                raise UsageError(
                    f"{one.samples} samples of {one.prefix} are more than the "
                    f"{one.index.epochs.samples} of its index"
                )
        if self.order is None and self.total != sum(one.samples for one in self.datasets):
            raise UsageError(f"{self.total} is not the sum of the samples of the datasets")
        if self.order is not None and self.kind != "blend":
            raise UsageError("only a blend has an order of its own")
        if len({(one.sequence_length, one.extra_token) for one in self._epochs}) > 1:
            raise UsageError("the indexes of a source have samples of different lengths")

    @property
    def _epochs(self) -> tuple[EpochPlan, ...]:
        return tuple(one.index.epochs for one in self.datasets if one.index is not None)

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sample without the extra one; None for documents."""
        return self._epochs[0].sequence_length if self._epochs else None

    @property
    def extra_token(self) -> bool:
        """Whether a sample has one token more, so that every token has its next as label."""
        return bool(self._epochs) and self._epochs[0].extra_token

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where each dataset's ids begin, and the total: int64 of shape (datasets + 1,).

        Raises:
            UsageError: It is a blend, whose ids are mixed.
        """
        if self.order is not None:
            raise UsageError("the ids of a blend are not numbered dataset by dataset")
        sizes = [one.samples for one in self.datasets]
        return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))

    @property
    def sort_keys(self) -> tuple[str, ...]:
        """The names of the numbers that samples can be sorted by without loading them."""
        return ("length", "sequences") if self.kind == "documents" else ("pieces",)

    @property
    def id(self) -> str:
        """The SHA-256 of what the ids mean.

        Where the files lie is no part of it, nor how much is known of their content beside their stamps.
        """
        value = self.to_json(Places.nowhere())
        value["datasets"] = [one | {"fingerprint": None} for one in value["datasets"]]
        return identity_digest(value)

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the source as JSON values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "total": self.total,
            "datasets": [one.to_json(places) for one in self.datasets],
            "order": None if self.order is None else self.order.to_json(places),
        }

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the source that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or its parts do not fit.
        """
        record = Fields(value, places.source, "a source", tuple(cls.__slots__))
        order = record.value("order")
        try:
            return cls(
                kind=record.one_of("kind", KINDS),
                name=record.text("name"),
                total=record.count("total"),
                datasets=tuple(DatasetReference.from_json(one, places) for one in record.array("datasets")),
                order=None if order is None else CachedFiles.from_json(order, "BlendedDataset", places),
            )
        except UsageError as error:
            raise IntegrityError(f"{places.source}: {error}", path=places.source) from error
