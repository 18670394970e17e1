"""Seed of the shuffles: its default and its range."""

from __future__ import annotations

from tokshard.core import megatron_defaults
from tokshard.errors import UsageError

DEFAULT_SEED = megatron_defaults.SEED
"""Megatron's default."""

MAX_SEED = 2**32 - 1
"""The largest seed of numpy's ``RandomState``."""


def check_seed(seed: int) -> None:
    """Check the range of a seed.

    Raises:
        UsageError: The seed is out of range.
    """
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(f"the seed must be from 0 to {MAX_SEED}, got {seed}")
