"""Split strings: the shares of a dataset for training, validation and testing.

The arithmetic is bit-identical to Megatron Core's, because its results enter the names of cache files.
Strings that Megatron would silently read as another split are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from tokshard.core import megatron_rules
from tokshard.core.codec import Record
from tokshard.core.formatting import shortened
from tokshard.errors import UsageError

TRAIN = "train"
SPLITS = (TRAIN, "valid", "test")

# Megatron reads every run of digits and dots as a number and silently skips everything else.
_MAX_CHARACTERS = 1000
_MEGATRON_NUMBER = re.compile(r"[.0-9]+")
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_SEPARATOR = r"(?:\s*[,;:/]\s*|\s+)"
# Quotes around it are common in launch scripts.
_PLAIN = re.compile(rf"[\s'\"]*{_NUMBER}(?:{_SEPARATOR}{_NUMBER})*\s*[,;:/]?[\s'\"]*", re.ASCII)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Split(Record):
    """The shares of a dataset.

    Attributes:
        text: The split string as it enters the hash of a cache; None if each split has its own datasets.
        matrix: For training, validation and testing: the half-open interval of the share, in fractions
            of all sequences, or None if the share is empty. The first bound is the integer 0 if the
            matrix comes from a string, because Megatron writes it so.
    """

    text: str | None
    matrix: tuple[Interval | None, Interval | None, Interval | None]

    def matrix_json(self) -> list[list[float] | None] | None:
        """Return the matrix as it enters the hash of a cache; None without a split string.

        Example:
            >>> parse_split("3,1").matrix_json()
            [[0, 0.75], [0.75, 1.0], None]
        """
        if self.text is None:
            return None
        return [None if share is None else list(share) for share in self.matrix]

    def ranges(self, count: int) -> tuple[range | None, range | None, range | None]:
        """Return the sequence numbers of each split.

        Returns:
            For training, validation and testing: a range, which is empty if the share rounds to 0
            sequences, or None without a share.

        Example:
            >>> parse_split("90,9,1").ranges(10)
            (range(0, 9), range(9, 10), range(10, 10))
        """
        train, valid, test = (None if share is None else _rounded(share, count) for share in self.matrix)
        return train, valid, test


@lru_cache  # a blend asks for its shares once for each source
def parse_split(text: str) -> Split:
    """Parse a split string: one to three weights, separated by commas or spaces, with any sum.

    Args:
        text: For example ``"969, 30, 1"``. It is stored unchanged, because it enters the hash of a cache.

    Raises:
        UsageError: Megatron would fail on it, or misread it: it has a sign, an exponent, letters, an empty
            field, more than three numbers or none, all zero, or too large. The message shows what Megatron
            would read.

    Example:
        >>> parse_split("969, 30, 1").matrix
        ((0, 0.969), (0.969, 0.999), (0.999, 1.0))
        >>> parse_split("99,-1,2")
        Traceback (most recent call last):
            ...
        tokshard.errors.UsageError: invalid split '99,-1,2': Megatron would read 99, 1, 2
        hint: pass one to three weights, for example '969, 30, 1'
    """
    hint = f"pass one to three weights, for example {megatron_rules.SPLIT!r}"
    if len(text) > _MAX_CHARACTERS:  # the patterns need seconds for long texts
        raise UsageError(f"invalid split {shortened(text)!r}: it has {len(text):,} characters", hint=hint)
    words: list[str] = _MEGATRON_NUMBER.findall(text)
    if not words:
        raise UsageError(f"invalid split {text!r}: no number found", hint=hint)
    if len(words) > len(SPLITS):
        raise UsageError(
            f"invalid split {text!r}: expected at most 3 numbers, got {len(words)} ({', '.join(words)})",
            hint=hint,
        )
    if _PLAIN.fullmatch(text) is None:
        raise UsageError(f"invalid split {text!r}: Megatron would read {', '.join(words)}", hint=hint)
    weights = [float(word) for word in words] + [0.0] * (len(SPLITS) - len(words))
    total = sum(weights)
    if not 0.0 < total < math.inf:
        raise UsageError(
            f"invalid split {text!r}: the sum of the weights must be positive and finite, got {total:g}",
            hint=hint,
        )
    return Split(text, _matrix(weights))


def whole_split(name: str) -> Split:
    """Return the split of a dataset that is used for one split only.

    Args:
        name: ``"train"``, ``"valid"`` or ``"test"``.

    Example:
        >>> whole_split("valid").matrix
        (None, (0.0, 1.0), None)
    """
    if name not in SPLITS:
        raise UsageError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
    train, valid, test = ((0.0, 1.0) if split == name else None for split in SPLITS)
    return Split(None, (train, valid, test))


def _matrix(weights: list[float]) -> tuple[Interval | None, Interval | None, Interval | None]:
    import numpy as np  # Megatron sums and divides with numpy

    vector = np.array(weights, dtype=np.float64)
    bounds: list[float] = [0]
    for share in (vector / np.sum(vector)).tolist():
        bounds.append(bounds[-1] + share)
    train, valid, test = (None if high <= low else (low, high) for low, high in pairwise(bounds))
    return train, valid, test


def _rounded(share: Interval, count: int) -> range:
    low, high = (round(bound * float(count)) for bound in share)
    return range(low, high)
