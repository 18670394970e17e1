"""Range of the seed of the shuffles."""

from __future__ import annotations

from typing import Annotated

from tokshard.core.codec import Bounds
from tokshard.errors import UsageError

MAX_SEED = 2**32 - 1
"""The largest seed of numpy's ``RandomState``."""

Seed = Annotated[int, Bounds(0, MAX_SEED)]


def check_seed(seed: int) -> None:
    """Check the range of a seed.

    Raises:
        UsageError: The seed is out of range.
    """
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(f"the seed must be from 0 to {MAX_SEED}, got {seed}")
