"""The samples of a split of ``blend.json``: its sources, its order and their files.

They are not in the module of the document, because the loader of a rank reads no other part of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tokshard.core.codec import Count, Record, decode
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.errors import IntegrityError, UsageError
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.packing import Packing
from tokshard.storage.paths import is_remote

Kind = Literal["single", "weighted", "proportional", "exhaustive"]


@dataclass(frozen=True, slots=True)
class BlendSource(Record):
    """A source of a split, and its index.

    The dataset is text: a blend of a multimodal dataset is refused.

    Attributes:
        path_prefix: Path prefix of the dataset.
        draws: Samples that the blend reads: 0 to draws - 1.
        tokenizer: Number of its tokenizer in ``tokenizers``.
        bin: Fingerprint of the ``.bin`` file.
        idx: Fingerprint of the ``.idx`` file.
        fingerprint: Fingerprint of the dataset when its index was built.
        index: Arrays of its index. Their names begin with the hash of its description.
        epochs: Numbers of the index, which determine its arrays.
    """

    path_prefix: str
    draws: Count
    tokenizer: Count
    bin: FileFingerprint
    idx: FileFingerprint
    fingerprint: DatasetFingerprint
    index: CachedArrays
    epochs: EpochPlan

    @property
    def packing(self) -> Packing | None:
        """The packing of its documents; None if they are concatenated."""
        return None if self.epochs.packed is None else self.epochs.packed.packing


@dataclass(frozen=True, slots=True)
class BlendSplit(Record):
    """A split, or one of several validation sets.

    Raises:
        UsageError: The fields contradict each other.

    Attributes:
        split: Split of the datasets that the samples are from.
        kind: ``single``: sample k is sample k of the one source. All others have an order: ``weighted``,
            ``proportional`` or ``exhaustive``.
        samples: Number of samples.
        sources: Sources, in the order of their numbers.
        order: Arrays of the order. Absent for ``single``.
        weights: Weights as hashed: normalized, or the samples of each source in an exhaustive blend. Absent
            for ``single``.
        size: Size as hashed. Absent for ``single`` and in an exhaustive blend.
    """

    split: Literal["train", "valid", "test"]
    kind: Kind
    samples: Count
    sources: tuple[BlendSource, ...]
    order: CachedArrays | None = None
    weights: tuple[float, ...] | None = None
    size: Count | None = None

    def _validate(self) -> None:
        if not (self.kind == "single") == (self.order is None) == (self.weights is None):
            raise UsageError(f"kind {self.kind} contradicts order and weights")
        if (self.kind in {"single", "exhaustive"}) != (self.size is None):
            raise UsageError(f"kind {self.kind} contradicts size {self.size}")
        if not self.sources:
            raise UsageError("sources must not be empty")
        if self.weights is not None and len(self.weights) != len(self.sources):
            raise UsageError("weights must have one number for each source")
        largest = math.inf if self.size is None else 1.0
        if not all(0 < weight <= largest for weight in self.weights or ()):
            raise UsageError("weights must be positive, and shares if there is a size")
        if sum(source.draws for source in self.sources) != self.samples:
            raise UsageError(f"samples must be the sum of the draws, got {self.samples}")
        indexes = [(source.index, "GPTDataset") for source in self.sources]
        orders = [] if self.order is None else [(self.order, "BlendedDataset")]
        for arrays, kind in (*indexes, *orders):
            if not arrays.stem.endswith(f"-{kind}-{self.split}"):
                raise UsageError(f"files must be named HASH-{kind}-{self.split}, got {arrays.stem}")

    @property
    def shares(self) -> tuple[float, ...]:
        """The requested share of each source in the samples; their sum is 1."""
        from tokshard.samples.blend.weights import shares_of  # the loader needs no weights

        return (1.0,) if self.weights is None else shares_of(self.weights, self.size)


def with_paths(value: Any, path: Callable[[str], str], levels: int = 8) -> Any:
    """Return JSON with a function applied to the values of all fields ``path_prefix``.

    Deeper levels have no paths and stay unchanged: a hostile file could be nested deeper than Python's calls.
    """
    if isinstance(value, list) and levels:
        return [with_paths(item, path, levels - 1) for item in value]
    if not isinstance(value, dict) or not levels:
        return value
    return {
        name: path(item)
        if name == "path_prefix" and isinstance(item, str)
        else with_paths(item, path, levels - 1)
        for name, item in value.items()
    }


def opened_path(stored: str, path: str) -> str:
    """Return a path in the document at ``path`` as it can be opened.

    Raises:
        IntegrityError: It contains a NUL character.
    """
    if "\0" in stored:
        raise IntegrityError(f"{path}: a path contains a NUL character", path=path)
    return stored if is_remote(stored) else os.path.normpath(os.path.join(os.path.dirname(path), stored))


def read_split(document: dict[str, Any], path: str, name: str, moved: Callable[[str], str]) -> BlendSplit:
    """Return a split of ``blend.json``; no other field of the document is read.

    Args:
        document: The parsed JSON of the file.
        path: The file, which its paths are relative to.
        name: The name of the split.
        moved: Returns the path that replaces a path, for data that was moved.

    Raises:
        IntegrityError: The split does not exist, or one of its fields is missing, unknown or invalid.
    """
    splits = document.get("splits")
    stored = splits.get(name) if isinstance(splits, dict) else splits
    value = with_paths({"splits": {name: stored}}, lambda relative: moved(opened_path(relative, path)))
    # The objects around the split make errors name the full path of a field.
    return decode(dict[str, dict[str, BlendSplit]], value, path)["splits"][name]
