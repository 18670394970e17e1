"""Options of verify."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode

Level = Literal["structure", "digest", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Each level includes those before it. ``"structure"``: sizes, headers, counts, all entries of indexes.
``"digest"``: every byte, against the recorded digests. ``"deep"``: the content."""

_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")


@dataclass(frozen=True)
class VerifyOptions:
    """Options of :func:`tokshard.verify`.

    Attributes:
        path: The path prefix or a file of a dataset; an index cache or one of its files; a blend, a plan, or
            the manifest of a rank; or with ``recursive`` a directory.
        level: One of :data:`LEVELS`.
        subset: The fraction of the data, above 0 and up to 1 or as ``"5%"``, whose digests are checked:
            always the same pieces. None for all.
        tokenizer: The tokenizer of the job: it is compared with those of all datasets; at level ``"deep"``,
            ids must be in its vocabulary, and documents are decoded with it. None for those that the datasets
            record.
        recursive: Whether to search everything below a directory, and to include the datasets of indexes,
            blends and plans.
        adopt: Whether to write a manifest for valid datasets that have none.
        workers: Threads; None for one per core.
        lock: The mode of the writer lock of ``adopt``: ``"none"`` for a file
            system without ``flock``, if only one run writes the dataset at a time.

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
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        if self.level not in LEVELS:
            raise UsageError(f"level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        if self.subset is not None and not 0 < self._subset() <= 1:
            raise UsageError(
                f"subset must be above 0% and at most 100% of the data, got {self.subset!r}",
                hint="pass a percentage, for example --subset 5%",
            )
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}")

    @property
    def share(self) -> Fraction | None:
        """The share of the pieces whose digests are checked; None for all."""
        return None if self.subset is None else self._subset()

    def _subset(self) -> Fraction:
        if isinstance(self.subset, str):
            found = _PERCENT.fullmatch(self.subset)
            return Fraction(found[1]) / 100 if found else Fraction(0)
        return Fraction(self.subset or 0).limit_denominator(10**6)
