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
from typing import Any, Self

from tokshard.core.strict_json import parse_json_object
from tokshard.errors import InputError, IntegrityError, StorageError
from tokshard.gpt_index.splits import SPLITS
from tokshard.storage.small_files import read_small_file

_HINT = "give a description.txt that Megatron Core 0.10 or later has written for a GPTDataset or a blend"
_MISSING = object()
_DESCRIPTION_SUFFIX = "-description.txt"

Difference = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class GPTDatasetDescription:
    """Everything that the name of a dataset's index depends on.

    Attributes:
        dataset_path: The path prefix exactly as the training job gives it.
        num_samples: The samples asked for, or None for one epoch.
        index_split: ``"train"``, ``"valid"`` or ``"test"``.
        random_seed: Megatron's ``--seed``.
        sequence_length: Tokens of a sample, without the extra one.
        split: The split string, or None where each split has datasets of its own.
        split_matrix: The shares, as in :meth:`tokshard.gpt_index.splits.Split.matrix_json`.
        tokenizer: The tokenizer's identifiers.

    Example:
        >>> description = GPTDatasetDescription("data/web", 100, "train", 1234, 64, None, None, {})
        >>> print(description.text().splitlines()[1].strip())
        "class": "GPTDataset",
    """

    dataset_path: str
    num_samples: int | None
    index_split: str
    random_seed: int
    sequence_length: int
    split: str | None
    split_matrix: list[list[float] | None] | None
    tokenizer: dict[str, Any] | None

    CLASS = "GPTDataset"

    @property
    def split_name(self) -> str:
        """The split in the names of the files."""
        return self.index_split

    def to_json(self) -> dict[str, Any]:
        """Return the described fields, in their order."""
        return {
            "class": self.CLASS,
            "dataset_path": self.dataset_path,
            "num_samples": self.num_samples,
            "index_split": self.index_split,
            "random_seed": self.random_seed,
            "sequence_length": self.sequence_length,
            "split": self.split,
            "split_matrix": self.split_matrix,
            "tokenizer": self.tokenizer,
        }

    def text(self) -> str:
        """Return the text, which is also the content of ``description.txt``."""
        return _text(self.to_json())

    def hash(self) -> str:
        """Return the MD5 of the text as 32 hex digits."""
        return _md5(self.text())

    @classmethod
    def from_text(cls, text: str, source: str = "the description") -> Self:
        """Read a description; the text that it gives again is the one that was read.

        Args:
            text: The content of a ``description.txt``.
            source: Where it comes from, for errors.

        Raises:
            InputError: It describes something else, or in another way than Megatron 0.10 and later.
        """
        description = cls._from_json(_parsed(text, source), source)
        _check_same(description.text(), text, source)
        return description

    @classmethod
    def _from_json(cls, value: dict[str, Any], source: str) -> Self:
        _check_keys(value, ("class", *cls.__dataclass_fields__), cls.CLASS, source)
        checks = {
            "dataset_path": isinstance(value["dataset_path"], str),
            "num_samples": _is_count(value["num_samples"]) or value["num_samples"] is None,
            "index_split": value["index_split"] in SPLITS,
            "random_seed": _is_count(value["random_seed"]),
            "sequence_length": _is_count(value["sequence_length"]) and value["sequence_length"] > 0,
            "split": isinstance(value["split"], str | None),
            "split_matrix": _is_matrix(value["split_matrix"]),
            "tokenizer": isinstance(value["tokenizer"], dict | None),
        }
        _check_values(value, checks, source)
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class BlendedDescription:
    """Everything that the name of a blend's index depends on.

    Attributes:
        datasets: The descriptions of the sources, in order.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        weights: Normalised weights (all float), or the samples of each source (all int) where every
            sample is drawn once.
        size: The samples of the blend, or None where every sample is drawn once.
    """

    datasets: tuple[GPTDatasetDescription, ...]
    split: str
    weights: tuple[float, ...] | tuple[int, ...]
    size: int | None

    CLASS = "BlendedDataset"

    @property
    def split_name(self) -> str:
        """The split in the names of the files."""
        return self.split

    @property
    def has_a_size(self) -> bool:
        """Whether the number of samples is known: from ``size``, or from weights that are samples."""
        return self.size is not None or all(type(weight) is int and weight > 0 for weight in self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return the described fields, in their order."""
        return {
            "class": self.CLASS,
            "datasets": [one.to_json() for one in self.datasets],
            "split": self.split,
            "weights": list(self.weights),
            "size": self.size,
        }

    def text(self) -> str:
        """Return the text, which is also the content of ``description.txt``."""
        return _text(self.to_json())

    def hash(self) -> str:
        """Return the MD5 of the text as 32 hex digits."""
        return _md5(self.text())

    @classmethod
    def from_text(cls, text: str, source: str = "the description") -> Self:
        """Read a description; the text that it gives again is the one that was read.

        Raises:
            InputError: It describes something else, or in another way than Megatron 0.10 and later.
        """
        value = _parsed(text, source)
        _check_keys(value, ("class", *cls.__dataclass_fields__), cls.CLASS, source)
        datasets, weights = value["datasets"], value["weights"]
        checks = {
            "datasets": isinstance(datasets, list) and all(isinstance(one, dict) for one in datasets),
            "split": value["split"] in SPLITS,
            "weights": isinstance(weights, list) and all(type(one) in {int, float} for one in weights),
            "size": value["size"] is None or _is_count(value["size"]),
        }
        _check_values(value, checks, source)
        description = cls(
            datasets=tuple(
                GPTDatasetDescription._from_json(one, f"{source}, source {place}")  # noqa: SLF001 - of this module
                for place, one in enumerate(datasets)
            ),
            split=value["split"],
            weights=tuple(weights),
            size=value["size"],
        )
        _check_same(description.text(), text, source)
        return description


Description = GPTDatasetDescription | BlendedDescription


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
    value = _parsed_bytes(content, path)
    kind = BlendedDescription if value.get("class") == BlendedDescription.CLASS else GPTDatasetDescription
    return kind.from_text(content.decode(), path)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of a job, from the descriptions of one of its datasets.

    Attributes:
        random_seed: Megatron's ``--seed``.
        sequence_length: Tokens of a sample, without the extra one.
        split: The split string, or None where each split has datasets of its own.
        tokenizer: The tokenizer's identifiers.
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

    Args:
        path: The description of a dataset's index, or of a blend.

    Raises:
        MissingFileError: There is no such file.
        InputError: It is no description that is understood, or that of a blend without sources.
    """
    described = read_description(path)
    if isinstance(described, GPTDatasetDescription):
        return _settings(described, _sizes(described, os.path.dirname(path)))
    if not described.datasets:
        raise InputError(f"{path} describes a blend of nothing")
    return _settings(described.datasets[0], {})


def descriptions_in(directory: str) -> Iterator[tuple[str, Description]]:
    """Yield all descriptions in a directory that are understood, with their paths, by name.

    Raises:
        OSError: The directory cannot be read.
    """
    for name in sorted(os.listdir(directory)):
        if name.endswith(_DESCRIPTION_SUFFIX):
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
    """Say in which fields two descriptions differ, each with the values of both.

    Fields inside others are named as in ``tokenizer.use_fast`` and ``datasets[1].num_samples``; where
    one side lacks a field, its value is None there.

    Example:
        >>> one = GPTDatasetDescription("a", 8, "train", 1234, 64, None, None, {"class": "A"})
        >>> two = GPTDatasetDescription("a", 9, "train", 1234, 64, None, None, {"class": "B"})
        >>> differences(one, two)
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
        return [one for place, (x, y) in pairs for one in _differences(f"{name}[{place}]", x, y)]
    # The text decides and not the value: 0 and 0.0 are equal, but their texts are not.
    if a is not _MISSING and b is not _MISSING and json.dumps(a) == json.dumps(b):
        return []
    return [(name, None if a is _MISSING else a, None if b is _MISSING else b)]


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=4)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("ascii"), usedforsecurity=False).hexdigest()


def _parsed(text: str, source: str) -> dict[str, Any]:
    return _parsed_bytes(text.encode("utf-8", "surrogatepass"), source)


def _parsed_bytes(content: bytes, source: str) -> dict[str, Any]:
    try:
        return parse_json_object(content, source)
    except IntegrityError as error:
        raise InputError(error.message, hint=_HINT) from error


def _check_keys(value: dict[str, Any], names: tuple[str, ...], kind: str, source: str) -> None:
    if value.get("class") != kind:
        raise InputError(f"{source} describes a {value.get('class')!r} and not a {kind}", hint=_HINT)
    for name in names:
        if name not in value:
            raise InputError(f"{source} lacks the field {name!r}", hint=_HINT)
    for name in value:
        if name not in names:
            raise InputError(f"{source} has the unknown field {name!r}", hint=_HINT)


def _check_values(value: dict[str, Any], checks: dict[str, bool], source: str) -> None:
    for name, good in checks.items():
        if not good:
            raise InputError(f"{source}: {name} cannot be {value[name]!r}", hint=_HINT)


def _check_same(ours: str, theirs: str, source: str) -> None:
    if ours != theirs:
        raise InputError(
            f"{source} is not written as Megatron writes it (order, spaces, numbers or a final newline)",
            hint=_HINT,
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


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
