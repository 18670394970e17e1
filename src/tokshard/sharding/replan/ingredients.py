"""What a blend is weighted anew with: datasets and weights, matched with what the plan has read of each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokshard.blending.document import DOCUMENT_NAME, BlendDocument
from tokshard.blending.forms import read_arguments
from tokshard.errors import UsageError
from tokshard.sharding.discovery import Wanted, open_sources
from tokshard.sharding.replan.laps import Standing
from tokshard.sharding.sources import DatasetReference, SampleSource
from tokshard.storage.fs import abspath

_BUILD = "build it with tokshard blend, and name its directory"


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A dataset of the new blend.

    Attributes:
        reference: The dataset and its index, which is the frozen one where the plan has read of it.
        weight: Its weight; 0 where it is not drawn any more.
        standing: Where it stands.
    """

    reference: DatasetReference
    weight: float
    standing: Standing


def read_weights(
    text: str, source: SampleSource, stream: str
) -> tuple[tuple[tuple[DatasetReference, float], ...], tuple[str, ...]]:
    """Read what ``--blend`` names.

    Args:
        text: A blend that was built (its directory or ``blend.json``); or a recipe, or words such as
            ``"0.7 data/web 0.3 data/code"``, whose datasets the plan has already.
        source: What the plan reads.
        stream: The name of the stream.

    Returns:
        Pairs of a dataset and its weight, and warnings.

    Raises:
        UsageError: It names what needs an index that the plan does not have, or says more than weights.
        MissingFileError, InputError, IntegrityError: See
            :func:`~tokshard.sharding.discovery.open_sources`.
    """
    if _is_blend(text):
        return _of_blend(text, source, stream)
    return _of_recipe(text, source, stream), ()


def _is_blend(text: str) -> bool:
    path = os.path.join(text, DOCUMENT_NAME) if os.path.isdir(text) else text
    return os.path.basename(path) == DOCUMENT_NAME


def _of_blend(
    path: str, source: SampleSource, stream: str
) -> tuple[tuple[tuple[DatasetReference, float], ...], tuple[str, ...]]:
    document = BlendDocument.read(path)
    split = document.splits.get(stream)
    if split is None:
        raise UsageError(f"the blend {path} has no {stream} split to go on with")
    found = open_sources([path], Wanted(split=stream.partition(".")[0]))[stream]
    pairs = [
        (one, entry.share)
        for one, entry in zip(found.datasets, split.sources, strict=True)
        if entry.share > 0
    ]
    warnings = [
        f"{one.prefix} is not the dataset any more that was read before: it begins anew"
        for one, _ in pairs
        if any(one.prefix == old.prefix and not _same_data(one, old) for old in source.datasets)
    ]
    return tuple((_all_samples(one), weight) for one, weight in pairs), tuple(warnings)


def _of_recipe(text: str, source: SampleSource, stream: str) -> tuple[tuple[DatasetReference, float], ...]:
    mixture = read_arguments(shlex.split(text)).for_split(stream.partition(".")[0])
    if mixture is None or not mixture.is_plain or mixture.weights is None:
        raise UsageError(f"{text!r} is more than weights of datasets", hint=_BUILD)
    known = {abspath(one.prefix): one for one in source.datasets}
    pairs = []
    for one, weight in zip(mixture.sources, mixture.weights, strict=True):
        reference = known.get(abspath(one.prefix))
        if reference is None:
            raise UsageError(
                f"the plan has not read {one.prefix}, and a source that is new needs an index",
                hint=f"for a blend with new sources: {_BUILD}",
            )
        pairs.append((_all_samples(reference), weight))
    return tuple(pairs)


def match_ingredients(
    wanted: Sequence[tuple[DatasetReference, float]],
    source: SampleSource,
    standings: Sequence[Standing],
) -> tuple[Ingredient, ...]:
    """Give each dataset the index and the standing that it has in the plan.

    A dataset of the plan goes on in the index that the plan has read, whatever index the new blend has for
    it, because another size would have shuffled it anew. Those that are not wanted are kept at weight 0.

    Raises:
        UsageError: A dataset occurs twice in the new blend, and once in the plan.
    """
    unused = dict(enumerate(source.datasets))
    found = []
    for reference, weight in wanted:
        number = _match(reference, unused)
        if number is None:
            if any(_same_data(reference, old) for old in source.datasets):
                raise UsageError(
                    f"{reference.prefix} is in the new blend more often than in the plan",
                    hint="give its share to one source",
                )
            found.append(Ingredient(reference, weight, Standing.untouched(reference.samples)))
        else:
            found.append(Ingredient(_all_samples(unused.pop(number)), weight, standings[number]))
    found += [Ingredient(_all_samples(one), 0.0, standings[number]) for number, one in unused.items()]
    return tuple(found)


def _match(reference: DatasetReference, unused: dict[int, DatasetReference]) -> int | None:
    """Return the number of the same data; of several the one with the same index, else the same path."""
    same = [number for number, old in unused.items() if _same_data(reference, old)]
    same.sort(
        key=lambda number: (
            _index_name(unused[number]) != _index_name(reference),
            unused[number].prefix != reference.prefix,
        )
    )
    return same[0] if same else None


def _same_data(one: DatasetReference, other: DatasetReference) -> bool:
    return (one.bin, one.idx) == (other.bin, other.idx)


def _index_name(reference: DatasetReference) -> str | None:
    return None if reference.index is None else reference.index.files.hash


def _all_samples(reference: DatasetReference) -> DatasetReference:
    """Return the reference to everything that the index has, also what a plan does not draw."""
    if reference.index is None:
        raise UsageError(f"the samples of {reference.prefix} are its documents, which cannot be weighted")
    return replace(reference, samples=reference.index.epochs.samples)
