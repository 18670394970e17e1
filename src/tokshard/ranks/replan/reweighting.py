"""Re-weighted blends: new weights in the middle of a run, each source at its own next unread sample.

The order is written into the directory of the new plan. Besides Megatron's two arrays of a blend there are
two arrays that Megatron does not have, named alike: ``{hash}-BlendedDataset-{split}-{array}.npy``::

    dataset_index         int16 (samples,)   the source of each sample
    dataset_sample_index  int64 (samples,)   its number in the index of the source
    unread                int64 (k, 4)       source, source epoch, first and one past the last unread sample
    source_epochs         int64 (k, 3)       source, source epoch, and the first sample of the plan in it
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.dataset.products import BLEND_NAME
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.history import Reweighting, StoppedStream, reweighting_of
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import PlanWarning
from tokshard.ranks.publication import LOCK_NAME
from tokshard.ranks.replan.source_progress import (
    SourceEpochTable,
    SourceProgress,
    by_source,
    index_samples,
    progress_of_rows,
    progress_rows,
    source_progress_after,
)
from tokshard.ranks.sources import CachedArrays, DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.recipe_files import read_arguments
from tokshard.samples.index.npy import map_npy, npy_fingerprint, write_npy
from tokshard.samples.index.packing import Packing, pack_words
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import abspath
from tokshard.storage.lock import WriterLock
from tokshard.storage.publication import remove_temporary_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.plan import Stream

SCHEMA = "tokshard.reweighted/1"
_HASH_DIGITS = 32
_BLOCK = 1 << 22
_BUILD = "pass the directory of a blend built with tokshard blend"

Weights = tuple[tuple[DatasetReference, float], ...]


@dataclass(frozen=True, slots=True)
class BlendComponent:
    """A dataset of the new blend.

    Attributes:
        reference: The dataset and its index, which is the frozen one where the plan has read of it.
        weight: Its weight; 0 where it is not drawn any more.
        progress: What is unread of it.
    """

    reference: DatasetReference
    weight: float
    progress: SourceProgress


@dataclass(frozen=True, slots=True, eq=False)
class ReweightedOrder:
    """The samples of a plan from its start on.

    Attributes:
        dataset_index: int16 of shape ``(samples,)``: the source of each sample.
        dataset_sample_index: int64 of shape ``(samples,)``: the number of the sample in the source's index.
    """

    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]
    source_epochs: SourceEpochTable


def names_blend(text: str) -> bool:
    """Return whether a text names a blend that was built, not a recipe or its words; it may be missing."""
    return os.path.isdir(text) or os.path.basename(text) == BLEND_NAME


def read_weights(text: str, source: SampleSource, stream: str) -> tuple[Weights, tuple[PlanWarning, ...]]:
    """Read the new weights.

    ``text`` is a blend that was built (its directory or ``blend.json``); or a recipe, or words such as ``"0.7
    data/web 0.3 data/code"``, whose datasets the plan has already.

    Returns:
        Pairs of a dataset and its weight, and warnings.

    Raises:
        UsageError: It names what needs an index that the plan does not have, or says more than weights.
        MissingFileError, InputError, IntegrityError: See
            :func:`~tokshard.ranks.discovery.open_sources`.
    """
    if names_blend(text):
        return _of_blend(text, source, stream)
    return _of_recipe(text, source, stream), ()


def _of_blend(path: str, source: SampleSource, stream: str) -> tuple[Weights, tuple[PlanWarning, ...]]:
    document = BlendDocument.read(path)
    split = document.splits.get(stream)
    if split is None:
        raise UsageError(f"the blend {path} has no {stream} split to continue with")
    found = open_sources([path], RequestedSamples(split=stream.partition(".")[0]))[stream]
    pairs = [
        (reference, share) for reference, share in zip(found.datasets, split.shares, strict=True) if share > 0
    ]
    warnings = [
        PlanWarning("changed-dataset", stream, path_prefix=reference.path_prefix)
        for reference, _ in pairs
        if any(
            reference.path_prefix == old.path_prefix and not _same_data(reference, old)
            for old in source.datasets
        )
    ]
    return tuple((_all_samples(reference), weight) for reference, weight in pairs), tuple(warnings)


def _of_recipe(text: str, source: SampleSource, stream: str) -> Weights:
    recipe, _ = read_arguments(shlex.split(text))
    mixture = recipe.for_split(stream.partition(".")[0])
    if mixture is None or not mixture.is_plain or mixture.weights is None:
        raise UsageError(f"new weights must be pairs of weight and dataset, got {text!r}", hint=_BUILD)
    known = {abspath(reference.path_prefix): reference for reference in source.datasets}
    pairs = []
    for mixture_source, weight in zip(mixture.sources, mixture.weights, strict=True):
        reference = known.get(abspath(mixture_source.prefix))
        if reference is None:
            raise UsageError(
                f"the plan does not read {mixture_source.prefix}, and a new source requires an index",
                hint=_BUILD,
            )
        pairs.append((_all_samples(reference), weight))
    return tuple(pairs)


def match_components(
    wanted: Weights, source: SampleSource, progress: Sequence[SourceProgress]
) -> tuple[BlendComponent, ...]:
    """Give each dataset the index and the progress that it has in the plan.

    A dataset of the plan continues in the index that the plan has read, whatever index the new blend has for
    it, because another size would have shuffled it differently. Datasets that the new blend does not draw
    are kept at weight 0.

    Raises:
        UsageError: A dataset occurs twice in the new blend, and once in the plan, or is packed otherwise.
    """
    unused = dict(enumerate(source.datasets))
    found = []
    for reference, weight in wanted:
        number = _match(reference, unused)
        if number is None:
            if any(_same_data(reference, old) for old in source.datasets):
                raise UsageError(
                    f"{reference.path_prefix} is in the new blend more often than in the plan",
                    hint="pass its total weight for one source",
                )
            found.append(BlendComponent(reference, weight, SourceProgress.at_start(reference.samples)))
        else:
            _check_packing(reference, unused[number])
            found.append(BlendComponent(_all_samples(unused.pop(number)), weight, progress[number]))
    found += [
        BlendComponent(_all_samples(reference), 0.0, progress[number]) for number, reference in unused.items()
    ]
    return tuple(found)


def _match(reference: DatasetReference, unused: dict[int, DatasetReference]) -> int | None:
    # Of several references to the same data, the one with the same index wins, then the same path.
    same = [number for number, old in unused.items() if _same_data(reference, old)]
    same.sort(
        key=lambda number: (
            _index_name(unused[number]) != _index_name(reference),
            unused[number].path_prefix != reference.path_prefix,
        )
    )
    return same[0] if same else None


def _same_data(reference: DatasetReference, other: DatasetReference) -> bool:
    return (reference.bin, reference.idx) == (other.bin, other.idx)


def _index_name(reference: DatasetReference) -> tuple[str | None, Packing | None]:
    return None if reference.index is None else reference.index.files.hash, reference.packing


def _check_packing(reference: DatasetReference, old: DatasetReference) -> None:
    if reference.packing != old.packing:
        words = ["--pack", "concat"] if old.packing is None else old.packing.options()
        raise UsageError(
            f"the new blend reads {reference.path_prefix} with --pack {pack_words([reference.packing])}, but "
            f"a source keeps the index that the plan has read: --pack {pack_words([old.packing])}",
            hint=f"build the blend with {' '.join(words)}",
        )


def _all_samples(reference: DatasetReference) -> DatasetReference:
    # Includes samples that the plan does not draw.
    if reference.index is None:
        raise UsageError(f"cannot weight {reference.path_prefix}: its samples are documents")
    return replace(reference, samples=reference.index.epochs.samples)


def reweight(
    weights: Sequence[float], progress: Sequence[SourceProgress], samples: int, seed: int
) -> ReweightedOrder:
    """Draw from sources by weight, each from its next unread sample on.

    The order of the sources is Megatron's for these weights. Memory is 10 bytes a sample.

    ``seed`` is that of new source epochs.

    Raises:
        UsageError: There is nothing to draw, a weight is not positive, or a source has no sample.

    Example:
        >>> sources = [SourceProgress.at_start(2), SourceProgress.at_start(3)]
        >>> order = reweight([0.5, 0.5], sources, 6, seed=1)
        >>> order.dataset_index.tolist(), order.source_epochs.rows.tolist()
        ([0, 1, 0, 1, 0, 1], [[0, 0, 0], [0, 1, 4], [1, 0, 1]])
    """
    from tokshard.samples.blend.order import build_blending_indices, normalize

    if samples < 1:
        raise UsageError("no unread samples remain for the new weights")
    for number, of_source in enumerate(progress):
        if of_source.samples < 1:
            raise UsageError(f"source {number} of the new blend has no samples")
    sources, numbers = build_blending_indices(normalize(list(weights)), samples)
    rows = _source_epoch_rows(sources, progress)
    for begin in range(0, samples, _BLOCK):
        block = numbers[begin : begin + _BLOCK]
        for source, places in by_source(sources[begin : begin + _BLOCK]):
            block[places] = progress[source].samples_of(block[places], seed, source)
    return ReweightedOrder(sources, numbers, SourceEpochTable(rows, samples))


def _source_epoch_rows(sources: NDArray[np.int16], progress: Sequence[SourceProgress]) -> NDArray[np.int64]:
    draws = np.bincount(sources, minlength=len(progress)).tolist()
    wanted = [
        (source, epoch, first)
        for source, of_source in enumerate(progress)
        for epoch, first in of_source.epoch_starts(draws[source])
    ]
    rows = np.array(wanted, dtype=np.int64).reshape(-1, 3)
    bounds = np.searchsorted(rows[:, 0], np.arange(len(progress) + 1))
    firsts = rows[:, 2].copy()
    drawn = np.zeros(len(progress), dtype=np.int64)
    for begin in range(0, len(sources), _BLOCK):
        for source, places in by_source(sources[begin : begin + _BLOCK]):
            low, high = bounds[source], bounds[source + 1]
            limits = (drawn[source], drawn[source] + len(places))
            here = slice(*(low + np.searchsorted(firsts[low:high], limits)))
            rows[here, 2] = begin + places[firsts[here] - drawn[source]]
            drawn[source] += len(places)
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class OrderFiles:
    """The files of a re-weighted blend, which :meth:`write` writes.

    Attributes:
        blend: The two of Megatron's form, as a source refers to them.
        record: Weights, seed and the other two files, as the history of a plan records them.
        arrays: The content of each file, by the names of the arrays.
    """

    blend: CachedArrays
    record: Reweighting
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def of(
        cls,
        order: ReweightedOrder,
        progress: Sequence[SourceProgress],
        weights: Sequence[float],
        seed: int,
        *,
        directory: str,
        stream: str,
        made_from: Any,
    ) -> Self:
        """Return the files of an order in a directory; nothing is written.

        ``made_from``, a JSON value that identifies what the files follow from, makes their names.
        """
        identity = {"schema": SCHEMA, "from": made_from, "weights": list(weights), "seed": seed}
        arrays: dict[str, NDArray[Any]] = {
            "dataset_index": order.dataset_index,
            "dataset_sample_index": order.dataset_sample_index,
            "unread": progress_rows(progress),
            "source_epochs": order.source_epochs.rows,
        }
        fingerprints = {name: npy_fingerprint(array) for name, array in arrays.items()}
        record = Reweighting(
            weights=tuple(weights),
            seed=seed,
            next_source_epochs=tuple(of_source.next_epoch for of_source in progress),
            unread=fingerprints.pop("unread"),
            source_epochs=fingerprints.pop("source_epochs"),
        )
        name, split = identity_digest(identity)[:_HASH_DIGITS], stream.partition(".")[0]
        return cls(CachedArrays(directory, name, split, "BlendedDataset", fingerprints), record, arrays)

    def write(self) -> None:
        """Write the files; each appears whole or not at all.

        Temporary files of a killed run for the same files are removed.

        Raises:
            LockedError: Another process is writing a plan there.
            StorageError: The disk is full or broken.
        """
        directory = self.blend.directory
        syscalls.make_directory(directory)
        with WriterLock(os.path.join(directory, LOCK_NAME)):
            remove_temporary_files(directory, f"{self.blend.hash}-")
            for name, array in self.arrays.items():
                write_npy(self.blend.path(name), array)


def open_start(
    source: SampleSource, record: Reweighting
) -> tuple[tuple[SourceProgress, ...], SourceEpochTable]:
    """Return the progress of the sources before the first sample of a re-weighted blend, and its epochs.

    Raises:
        MissingFileError: A file is missing.
        IntegrityError: A file has changed, or its rows contradict each other.
    """
    files = source.order
    if files is None:
        raise IntegrityError(f"{source.name} was re-weighted, but its source has no blend")
    rows = {}
    for name, fingerprint in (("unread", record.unread), ("source_epochs", record.source_epochs)):
        fingerprint.check(files.path(name))
        rows[name] = np.asarray(map_npy(files.path(name)))
    progress = progress_of_rows(
        rows["unread"], index_samples(source), record.next_source_epochs, files.path("unread")
    )
    table = SourceEpochTable.checked(rows["source_epochs"], source.total, files.path("source_epochs"))
    return progress, table


def source_progress_of(
    stream: Stream, step: int, stops: tuple[StoppedStream, ...]
) -> tuple[SourceProgress, ...]:
    """Return the progress of the datasets of a stream after some of its steps."""
    record = reweighting_of(stops)
    start = None if record is None else open_start(stream.source, record)
    key_of = stream.open_sort_key()
    return source_progress_after(stream.assignment, step, Locator(stream.source), start, key_of)
