"""Options of diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import Positive
from tokshard.core.options import Option, Options


@dataclass(frozen=True, kw_only=True)
class DiffOptions(Options):
    """Options of :func:`tokshard.diff`, for plans only.

    Raises:
        UsageError: The number of steps is below 1.
    """

    steps: Annotated[Positive | None, Option("Compare N steps of two plans.", default="all")] = None
