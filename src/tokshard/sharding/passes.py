"""What is read one after the other: epochs, each with its order and its layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from tokshard.errors import IntegrityError, UsageError
from tokshard.sharding.layouts import Layout, layout_from_json
from tokshard.sharding.order import SampleOrder

ENDLESS = 2**62
"""More samples than any rank will read."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One or more epochs over the same positions, dealt out the same way.

    Attributes:
        order: Positions to sample ids, in each epoch.
        layout: Ranks to positions.
        first_epoch: The number of the first epoch.
        epochs: How many there are; None for no end.
    """

    order: SampleOrder
    layout: Layout
    first_epoch: int = 0
    epochs: int | None = 1

    def __post_init__(self) -> None:
        if self.layout.samples != self.order.samples:
            raise UsageError(
                f"a layout of {self.layout.samples} positions does not fit an order of {self.order.samples}"
            )
        if self.layout.samples_per_rank is None:
            raise UsageError("ranks that read different numbers of samples cannot train together")
        if self.first_epoch < 0 or (self.epochs is not None and self.epochs < 1):
            raise UsageError(f"{self.epochs} epochs from {self.first_epoch} on do not exist")

    @property
    def per_epoch(self) -> int:
        """The samples that each rank reads in an epoch."""
        return self.layout.samples_per_rank or 0

    @property
    def per_rank(self) -> int:
        """The samples that each rank reads in all epochs."""
        return ENDLESS if self.epochs is None else self.per_epoch * self.epochs

    def has_epoch(self, epoch: int) -> bool:
        """Tell whether an epoch is one of these."""
        return self.first_epoch <= epoch and (self.epochs is None or epoch < self.first_epoch + self.epochs)

    def to_json(self) -> dict[str, Any]:
        """Return the pass as JSON values."""
        return {
            "order": self.order.to_json(),
            "layout": self.layout.to_json(),
            "first_epoch": self.first_epoch,
            "epochs": self.epochs,
        }

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the pass that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or its parts do not fit.
        """
        if not isinstance(value, dict) or set(value) != set(cls.__slots__):
            raise IntegrityError(f"{path}: a pass has the fields {', '.join(cls.__slots__)}", path=path)
        first_epoch, epochs = value["first_epoch"], value["epochs"]
        if type(first_epoch) is not int or (epochs is not None and type(epochs) is not int):
            raise IntegrityError(f"{path}: the epochs of a pass are not integers", path=path)
        order = SampleOrder.from_json(value["order"], path)
        layout = layout_from_json(value["layout"], path)
        try:
            return cls(order, layout, first_epoch, epochs)
        except UsageError as error:
            raise IntegrityError(f"{path}: {error}", path=path) from error
