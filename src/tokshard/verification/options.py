"""Options of verify."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from tokshard.errors import UsageError

Level = Literal["structure", "digest", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Each level includes those before it. ``"structure"``: sizes, headers, counts, all entries of indexes.
``"digest"``: every byte, against the digests that were recorded. ``"deep"``: what the bytes mean."""

_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")


@dataclass(frozen=True)
class VerifyOptions:
    """Options of :func:`tokshard.verify`.

    Attributes:
        path: The path prefix or a file of a dataset; a cache of indexes or one of its files; a blend, a
            plan, or the manifest of a rank; or with ``recursive`` a directory.
        level: One of :data:`LEVELS`.
        subset: A share of the pieces of data, above 0 and up to 1 or as ``"5%"``, whose digests are checked:
            always the same pieces. None for all.
        tokenizer: A tokenizer to decode with, where the dataset was not made with the built-in one.
        recursive: Whether to look at everything below a directory, and at everything that a blend or a plan
            is made from.
        adopt: Whether to write a manifest for datasets that have none, if nothing is wrong with them.
        workers: Threads; None for one for each core.

    Raises:
        UsageError: A value is invalid.

    Example:
        >>> VerifyOptions("data/web", subset="12.5%").share
        Fraction(1, 8)
    """

    path: str | os.PathLike[str]
    level: Level = "digest"
    subset: Fraction | float | str | None = None
    tokenizer: str | None = None
    recursive: bool = False
    adopt: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UsageError(f"there is no level {self.level!r}", hint=f"use one of {', '.join(LEVELS)}")
        if self.subset is not None and not 0 < self._subset() <= 1:
            raise UsageError(
                f"a subset must be a share of the data above 0% and up to 100%, got {self.subset!r}",
                hint="a percentage, for example --subset 5%",
            )
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers cannot do anything", hint="use 1 or more")

    @property
    def share(self) -> Fraction | None:
        """The share of the pieces whose digests are checked; None for all."""
        return None if self.subset is None else self._subset()

    def _subset(self) -> Fraction:
        if isinstance(self.subset, str):
            found = _PERCENT.fullmatch(self.subset)
            return Fraction(found[1]) / 100 if found else Fraction(0)
        return Fraction(self.subset or 0).limit_denominator(10**6)
