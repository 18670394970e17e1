"""What an existing cache tells of the job that has written it, to make another cache like it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokshard.errors import InputError
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.description import Description, GPTDatasetDescription, read_description

_DESCRIPTION_SUFFIX = "-description.txt"


@dataclass(frozen=True, slots=True)
class Likeness:
    """The settings of a job, as far as the descriptions of one of its datasets tell them.

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


def read_likeness(path: str) -> Likeness:
    """Read the settings of a job from one of the ``description.txt`` files that it has written.

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
        return _likeness(described, _sizes(described, os.path.dirname(path)))
    if not described.datasets:
        raise InputError(f"{path} describes a blend of nothing")
    return _likeness(described.datasets[0], {})


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


def _likeness(described: GPTDatasetDescription, num_samples: dict[str, int | None]) -> Likeness:
    return Likeness(
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
