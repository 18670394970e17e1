"""Versions of Megatron Core whose rules are known, and defaults of Megatron's arguments."""

from __future__ import annotations

import re

from tokshard.errors import UsageError

MEGATRON_VERSIONS = ("0.15", "0.16", "0.17", "0.18", "0.19", "main-20260822")
"""From the oldest to the newest; ``main-20260822`` is the main branch on that day."""

SEED = 1234

SPLIT = "969, 30, 1"
"""It reserves 3.1% of the data for validation and test."""

SURPLUS = 0.005
"""``--mid-level-dataset-surplus``."""

EVAL_INTERVAL = 1000
"""Of Megatron 0.15; later versions have no default, and fail without ``--eval-interval``."""

EVAL_ITERS = 100

_RELEASE = re.compile(r"(?:core_)?v?([0-9]+\.[0-9]+)(?:\.[0-9]+)?")


def known_version(version: str, *, hint: str = "") -> str:
    """Return the known version of a version's name.

    Args:
        version: A known version, a patch release of one, or the tag of one.
        hint: The hint of the error; there is a default.

    Raises:
        UsageError: The version is not known.

    Example:
        >>> known_version("0.16.1"), known_version("core_v0.19.0")
        ('0.16', '0.19')
    """
    release = _RELEASE.fullmatch(version)
    found = release[1] if release else version
    if found not in MEGATRON_VERSIONS:
        raise UsageError(
            f"the Megatron version must be one of {', '.join(MEGATRON_VERSIONS)}, got {version!r}",
            hint=hint or f"pass --megatron {MEGATRON_VERSIONS[-2]}, or the version whose rules are closest",
        )
    return found


def is_at_least(version: str, first: str) -> bool:
    """Return whether a known version is ``first`` or newer.

    Example:
        >>> is_at_least("main-20260822", "0.18"), is_at_least("0.17", "0.18")
        (True, False)
    """
    return MEGATRON_VERSIONS.index(version) >= MEGATRON_VERSIONS.index(first)
