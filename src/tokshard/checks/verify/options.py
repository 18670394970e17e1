"""Options of verify."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, get_args

from tokshard.core.codec import Positive
from tokshard.core.options import Option, Options, StrPath, parse_share
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock

Level = Literal["structure", "digest", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Each level includes those before it. ``"structure"``: sizes, headers, counts, all entries of indexes.
``"digest"``: every byte, against the recorded digests. ``"deep"``: the content."""

# Above that of any percentage: shares are exact, though floats are not.
_MOST_DENOMINATOR = 10**8


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Options):
    """Options of :func:`tokshard.verify`; with ``recursive``, the path can be any directory.

    Raises:
        UsageError: A value is invalid.

    Example:
        >>> VerifyOptions(path="data/web", subset=0.05).share
        Fraction(1, 20)
    """

    path: Annotated[
        StrPath,
        Option(
            "A dataset (its path prefix), index cache, blend, plan, rank manifest or export.",
            is_argument=True,
            metavar="PATH",
        ),
    ]
    level: Annotated[
        Level,
        Option(
            "Check sizes, headers, counts and index entries (structure), also all bytes against recorded "
            "digests (digest), or also the content: tokens, documents and inputs (deep)."
        ),
    ] = "digest"
    subset: Annotated[
        float | None,
        Option(
            "Check digests of a fixed subset of the data, such as 5% or 0.05.",
            metavar="PERCENT",
            parse=parse_share,
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Compare this tokenizer with those of the datasets; at --level deep, check ids against its "
            "vocabulary and decode with it; record it with --adopt.",
            metavar="PATH",
        ),
    ] = None
    recursive: Annotated[
        bool,
        Option(
            "Verify everything below a directory, and everything that an index, blend or plan was made from."
        ),
    ] = False
    adopt: Annotated[bool, Option("Write a manifest for valid datasets that other programs wrote.")] = False
    workers: Annotated[Positive | None, Option("Use N threads.", default="all cores")] = None
    lock: Lock = "flock"

    def _validate(self) -> None:
        share = self.share
        if share is not None and not 0 < share <= 1:
            raise UsageError(
                f"--subset must be above 0% and at most 100% of the data, got {float(100 * share):g}%",
                hint="pass a percentage, for example --subset 5%",
            )

    @property
    def share(self) -> Fraction | None:
        """The share of the pieces whose digests are checked; None for all."""
        return None if self.subset is None else Fraction(self.subset).limit_denominator(_MOST_DENOMINATOR)
