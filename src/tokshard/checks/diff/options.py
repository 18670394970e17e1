"""Options of diff."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError


@dataclass(frozen=True)
class DiffOptions:
    """Options of :func:`tokshard.diff`, both for plans only.

    Attributes:
        steps: Compare so many steps; None for all.
        first_only: Stop at the first step that differs, and count no samples.

    Raises:
        UsageError: The number of steps is below 1.
    """

    steps: int | None = None
    first_only: bool = False

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"steps must be at least 1, got {self.steps}")
