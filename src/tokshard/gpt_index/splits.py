"""The split string: which share of a dataset's sequences is for training, validation and testing.

The arithmetic is Megatron Core's to the last bit, because its results enter the names of cache files.
What Megatron would silently read as another split is refused here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

from tokshard.core import megatron_defaults
from tokshard.errors import UsageError

TRAIN = "train"
SPLITS = (TRAIN, "valid", "test")

# Megatron takes every run of digits and dots for a number and skips everything else without a word.
_MEGATRON_NUMBER = re.compile(r"[.0-9]+")
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_SEPARATOR = r"(?:\s*[,;:/]\s*|\s+)"
_PLAIN = re.compile(rf"\s*{_NUMBER}(?:{_SEPARATOR}{_NUMBER})*\s*[,;:/]?\s*", re.ASCII)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of a dataset.

    Attributes:
        text: The split string as it enters the hash of a cache; None where each split has datasets of
            its own.
        matrix: For training, validation and testing: the half-open interval of the share, in fractions
            of all sequences, or None where the share is empty. The first bound is the integer 0 where
            the matrix comes from a string, because Megatron writes it so.
    """

    text: str | None
    matrix: tuple[Interval | None, Interval | None, Interval | None]

    def matrix_json(self) -> list[list[float] | None] | None:
        """Return the matrix as it enters the hash of a cache: None where there is no split string.

        Example:
            >>> parse_split("3,1").matrix_json()
            [[0, 0.75], [0.75, 1.0], None]
        """
        if self.text is None:
            return None
        return [None if share is None else list(share) for share in self.matrix]

    JSON_TYPE: ClassVar[Any] = Any  # the bounds keep their type, int or float, which Megatron hashes

    def to_json_value(self) -> dict[str, Any]:
        """Return the split as a JSON object."""
        matrix = [None if share is None else list(share) for share in self.matrix]
        return {"text": self.text, "matrix": matrix}

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> Self:
        """Return the split that a JSON object holds.

        Example:
            >>> Split.from_json_value({"text": "1", "matrix": [[0, 1.0], None, None]}).matrix
            ((0, 1.0), None, None)
        """
        train, valid, test = (None if share is None else (share[0], share[1]) for share in value["matrix"])
        return cls(value["text"], (train, valid, test))

    def ranges(self, count: int) -> tuple[range | None, range | None, range | None]:
        """Return the numbers of the sequences of each split.

        Returns:
            For training, validation and testing: a range, which is empty where rounding leaves nothing
            of the share, or None where there is no share.

        Example:
            >>> parse_split("90,9,1").ranges(10)
            (range(0, 9), range(9, 10), range(10, 10))
        """
        train, valid, test = (None if share is None else _rounded(share, count) for share in self.matrix)
        return train, valid, test


def parse_split(text: str) -> Split:
    """Read a split string: one to three weights, by commas or spaces, which need not sum to anything.

    Args:
        text: For example ``"969, 30, 1"``. It is kept as it is, because it enters the hash of a cache.

    Raises:
        UsageError: Megatron would fail on it, or read it otherwise than it is written: with a sign, an
            exponent, letters or an empty field, with more than three numbers or none, all zero, or too
            large. The message tells what it would have read.

    Example:
        >>> parse_split("969, 30, 1").matrix
        ((0, 0.969), (0.969, 0.999), (0.999, 1.0))
        >>> parse_split("99,-1,2")
        Traceback (most recent call last):
            ...
        tokshard.errors.UsageError: the split '99,-1,2' is not what it seems: Megatron would read 99, 1, 2
    """
    words: list[str] = _MEGATRON_NUMBER.findall(text)
    hint = f"write one to three weights, for example {megatron_defaults.SPLIT!r}"
    if not words:
        raise UsageError(f"the split {text!r} holds no number", hint=hint)
    if len(words) > len(SPLITS):
        raise UsageError(
            f"the split {text!r} holds {len(words)} numbers ({', '.join(words)}), but there are three splits",
            hint=hint,
        )
    if _PLAIN.fullmatch(text) is None:
        raise UsageError(
            f"the split {text!r} is not what it seems: Megatron would read {', '.join(words)}", hint=hint
        )
    weights = [float(word) for word in words] + [0.0] * (len(SPLITS) - len(words))
    total = sum(weights)
    if not 0.0 < total < math.inf:
        raise UsageError(f"the weights of the split {text!r} sum to {total:g}", hint=hint)
    return Split(text, _matrix(weights))


def whole_split(name: str) -> Split:
    """Return the split of a dataset that serves one split alone.

    Args:
        name: ``"train"``, ``"valid"`` or ``"test"``.

    Example:
        >>> whole_split("valid").matrix
        (None, (0.0, 1.0), None)
    """
    if name not in SPLITS:
        raise UsageError(f"there is no split {name!r}", hint=f"use one of {', '.join(SPLITS)}")
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
