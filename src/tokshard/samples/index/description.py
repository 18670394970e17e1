"""Descriptions: the texts whose MD5 names Megatron's cache files, and the settings of a job in them.

The text is JSON exactly as Megatron Core 0.10 and later write it (indented by four, ASCII, floats in
their shortest form, keys in a fixed order), because every byte of it enters the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from tokshard.core.codec import Bounds, Record, decode, encode, shown
from tokshard.core.json_text import parse_json_object, paused_garbage_collection
from tokshard.dataset.products import DESCRIPTION_SUFFIX
from tokshard.errors import InputError, IntegrityError, StorageError, UsageError
from tokshard.samples.index.splits import SPLITS
from tokshard.storage.reading import read_small_file

_HINT = "pass a description.txt that Megatron Core 0.10 or later wrote for a GPTDataset or a blend"
_MISSING = object()
_SPLIT = "|".join(SPLITS)
_ANY_COUNT = 10**40  # Megatron hashes Python integers, of any size

Difference = tuple[str, Any, Any]


class _DescribedIndex(Record):
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the described fields, in their order."""
        value: dict[str, Any] = encode(self)
        return value

    def text(self) -> str:
        """Return the text, which is also the content of ``description.txt``."""
        return json.dumps(self.to_json(), indent=4)

    def hash(self) -> str:
        """Return the MD5 of the text as 32 hex digits."""
        return hashlib.md5(self.text().encode("ascii"), usedforsecurity=False).hexdigest()

    @classmethod
    def from_text(cls, text: str, source: str = "the description") -> Self:
        """Read a description; the text that it gives again is the one that was read.

        Raises:
            InputError: It describes something else, or in another way than Megatron 0.10 and later.
        """
        content = text.encode("utf-8", "surrogatepass")
        try:
            with paused_garbage_collection():
                description = decode(cls, parse_json_object(content, source), source)
        except IntegrityError as error:
            raise InputError(error.message, hint=_HINT) from error
        if description.text() != text:
            raise InputError(
                f"{source} is not formatted as Megatron does (order, spaces, numbers or a final newline)",
                hint=_HINT,
            )
        return description


@dataclass(frozen=True, slots=True)
class GPTDatasetDescription(_DescribedIndex):
    """Everything that the name of a dataset's index depends on.

    Example:
        >>> description = GPTDatasetDescription("data/web", 100, "train", 1234, 64, None, None, {})
        >>> print(description.text().splitlines()[1].strip())
        "class": "GPTDataset",
    """

    dataset_path: str
    num_samples: Annotated[int, Bounds(0, _ANY_COUNT)] | None
    index_split: Annotated[str, Bounds(pattern=_SPLIT)]
    random_seed: Annotated[int, Bounds(0, _ANY_COUNT)]
    sequence_length: Annotated[int, Bounds(1, _ANY_COUNT)]
    split: str | None
    # Any: the bounds keep their type, int or float, which is hashed.
    split_matrix: Any
    tokenizer: dict[str, Any] | None

    CLASS = "GPTDataset"
    TAG = ("class", CLASS)

    def _validate(self) -> None:
        if not _is_matrix(self.split_matrix):
            raise UsageError(f"split_matrix must be null or three shares, got {shown(self.split_matrix)}")

    @property
    def split_name(self) -> str:
        """The split in the names of the files."""
        return self.index_split


@dataclass(frozen=True, slots=True)
class BlendedDescription(_DescribedIndex):
    """Everything that the name of a blend's index depends on."""

    datasets: tuple[GPTDatasetDescription, ...]
    split: Annotated[str, Bounds(pattern=_SPLIT)]
    # Any: int and float are different texts, and so different hashes.
    weights: tuple[Any, ...]
    size: Annotated[int, Bounds(0, _ANY_COUNT)] | None

    CLASS = "BlendedDataset"
    TAG = ("class", CLASS)

    def _validate(self) -> None:
        for weight in self.weights:
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UsageError(f"weights must be numbers, got {shown(weight)}")

    @property
    def split_name(self) -> str:
        """The split in the names of the files."""
        return self.split

    @property
    def samples(self) -> int:
        """The number of samples: ``size``, or the sum of weights that are samples."""
        return int(sum(self.weights)) if self.size is None else self.size

    @property
    def has_a_size(self) -> bool:
        """True if the number of samples is known: from ``size``, or from weights that are samples."""
        return self.size is not None or all(type(weight) is int and weight > 0 for weight in self.weights)


Description = GPTDatasetDescription | BlendedDescription


def default_directory(path_prefix: str) -> str:
    """Return the directory of a dataset's indexes without ``--data-cache-path``, Megatron's default.

    Example:
        >>> default_directory("data/web")
        'data/web/cache/GPTDataset_indices'
    """
    return os.path.join(path_prefix, "cache", f"{GPTDatasetDescription.CLASS}_indices")


def read_description(path: str) -> Description:
    """Read a ``description.txt``, of a dataset's index or of a blend's.

    Raises:
        MissingFileError: There is no such file.
        InputError: It is no description that is understood.
    """
    try:
        content = read_small_file(path, "description", hint=_HINT)
    except StorageError as error:
        raise InputError(error.message, hint=_HINT) from error
    try:
        with paused_garbage_collection():
            name = parse_json_object(content, path).get("class")
    except IntegrityError as error:
        raise InputError(error.message, hint=_HINT) from error
    kind = BlendedDescription if name == BlendedDescription.CLASS else GPTDatasetDescription
    return kind.from_text(content.decode(), path)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of a job, from the descriptions of one of its datasets.

    Attributes:
        num_samples: For each split of which it is known: the samples asked for, or None for one epoch.
            Empty where the description is that of a blend, whose sources have sizes of their own.
    """

    random_seed: int
    sequence_length: int
    split: str | None
    tokenizer: dict[str, Any] | None
    num_samples: dict[str, int | None]


def settings_from_cache(path: str) -> JobSettings:
    """Read the settings of a job from one of the ``description.txt`` files that it wrote.

    The sizes of the other splits come from the descriptions beside it that differ in nothing but split
    and size, if there is exactly one for a split.

    Raises:
        MissingFileError: There is no such file.
        InputError: It is no description that is understood, or that of a blend without sources.
    """
    described = read_description(path)
    if isinstance(described, GPTDatasetDescription):
        return _settings(described, _sizes(described, os.path.dirname(path)))
    if not described.datasets:
        raise InputError(f"{path} describes a blend without sources")
    return _settings(described.datasets[0], {})


def descriptions_in(directory: str) -> Iterator[tuple[str, Description]]:
    """Yield all descriptions in a directory that are understood, with their paths, by name.

    Raises:
        OSError: The directory cannot be read.
    """
    for name in sorted(os.listdir(directory)):
        if name.endswith(DESCRIPTION_SUFFIX):
            path = os.path.join(directory, name)
            try:
                yield path, read_description(path)
            except InputError:
                continue


def _settings(described: GPTDatasetDescription, num_samples: dict[str, int | None]) -> JobSettings:
    return JobSettings(
        random_seed=described.random_seed,
        sequence_length=described.sequence_length,
        split=described.split,
        tokenizer=described.tokenizer,
        num_samples=num_samples,
    )


def _sizes(described: GPTDatasetDescription, directory: str) -> dict[str, int | None]:
    found: dict[str, set[int | None]] = {}
    for _, other in descriptions_in(directory or "."):
        if isinstance(other, GPTDatasetDescription):
            same = replace(other, index_split=described.index_split, num_samples=described.num_samples)
            if same == described:
                found.setdefault(other.index_split, set()).add(other.num_samples)
    found[described.index_split] = {described.num_samples}
    return {split: found[split].pop() for split in SPLITS if len(found.get(split, ())) == 1}


def differences(a: Description, b: Description) -> list[Difference]:
    """Return the fields in which two descriptions differ, each with the values of both.

    Fields inside others are named as in ``tokenizer.use_fast`` and ``datasets[1].num_samples``; a
    field that one side does not have is None there.

    Example:
        >>> first = GPTDatasetDescription("a", 8, "train", 1234, 64, None, None, {"class": "A"})
        >>> second = GPTDatasetDescription("a", 9, "train", 1234, 64, None, None, {"class": "B"})
        >>> differences(first, second)
        [('num_samples', 8, 9), ('tokenizer.class', 'A', 'B')]
    """
    return _differences("", a.to_json(), b.to_json())


def _differences(name: str, a: Any, b: Any) -> list[Difference]:
    if isinstance(a, dict) and isinstance(b, dict):
        found: list[Difference] = []
        for key in {**a, **b}:
            inner = f"{name}.{key}" if name else key
            found += _differences(inner, a.get(key, _MISSING), b.get(key, _MISSING))
        if not found and list(a) != list(b):
            return [(f"the order in {name or 'the description'}", list(a), list(b))]
        return found
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and name == "datasets":
        pairs = enumerate(zip(a, b, strict=True))
        return [
            difference for place, (x, y) in pairs for difference in _differences(f"{name}[{place}]", x, y)
        ]
    # The text decides and not the value: 0 and 0.0 are equal, but their texts are not.
    if a is not _MISSING and b is not _MISSING and json.dumps(a) == json.dumps(b):
        return []
    return [(name, None if a is _MISSING else a, None if b is _MISSING else b)]


def _is_matrix(value: Any) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, list)
        and len(value) == len(SPLITS)
        and all(share is None or _is_share(share) for share in value)
    )


def _is_share(share: Any) -> bool:
    return isinstance(share, list) and len(share) == 2 and all(type(bound) in {int, float} for bound in share)
