"""Re-weighted blends: new weights in the middle of a run, each source with its own next draw.

What was read of a blend in its own order is a prefix, so one number for each source is all that is needed:
its draws so far. The new order is written into the directory of the new plan as Megatron's two arrays of a
blend, ``{hash}-BlendedDataset-train-{array}.npy``::

    dataset_index         int16 (samples,)   the source of each sample
    dataset_sample_index  int64 (samples,)   its number in the index of the source
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.codec import encode
from tokshard.core.keyed_orders import Bijection, derive_key, subkeys
from tokshard.dataset.products import BLEND_NAME
from tokshard.errors import UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator
from tokshard.ranks.options import ReplanOptions
from tokshard.ranks.plan import Plan, Reweighting, Stream
from tokshard.ranks.publication import LOCK_NAME
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.globs import expand_globs
from tokshard.samples.blend.recipe_files import read_arguments
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.npy import npy_fingerprint, write_npy
from tokshard.samples.index.packing import Packing, pack_words
from tokshard.samples.index.splits import TRAIN
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import abspath
from tokshard.storage.lock import WriterLock
from tokshard.storage.publication import remove_temporary_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_SCHEMA = "tokshard.reweighted/2"
_HASH_DIGITS = 32
_BLOCK = 1 << 22
_BUILD = "pass the directory of a blend built with tokshard blend"

Weights = list[tuple[DatasetReference, float]]


@dataclass(frozen=True, slots=True, eq=False)
class OrderFiles:
    """The files of a re-weighted blend, which :meth:`write` writes.

    Attributes:
        arrays: The files, as a source refers to them.
        record: Weights, seed and draws, as the history of a plan records them.
        contents: The content of each file, by the name of the array.
    """

    arrays: CachedArrays
    record: Reweighting
    contents: dict[str, NDArray[Any]]

    def write(self) -> None:
        """Write the files; each appears whole or not at all.

        Temporary files of a killed run for the same files are removed.

        Raises:
            LockedError: Another process is writing a plan there.
            StorageError: The disk is full or broken.
        """
        directory = os.path.dirname(self.arrays.path_prefix)
        syscalls.make_directory(directory)
        with WriterLock(os.path.join(directory, LOCK_NAME)):
            remove_temporary_files(directory, self.arrays.stem)
            for name, content in self.contents.items():
                write_npy(self.arrays.array_path(name), content)


def names_blend(text: str) -> bool:
    """Return whether a text names a blend that was built, not a recipe or its words; it may be missing."""
    return os.path.isdir(text) or os.path.basename(text) == BLEND_NAME


def reweighted_source(
    plan: Plan, consumed_samples: int, samples: int, options: ReplanOptions
) -> tuple[SampleSource, OrderFiles, list[str]]:
    """Return the samples of the training stream of a plan with another blend.

    A dataset of the plan continues in the index that the plan has read, whatever index the new blend has for
    it, because another size would have shuffled it differently. Datasets that the new blend does not draw
    are kept at weight 0.

    Args:
        plan: The plan that was stopped.
        consumed_samples: Samples that all ranks have consumed.
        samples: Number of samples of the new order.
        options: The new blend, the seed and the output.

    Returns:
        The samples, the files of their order, and warnings.

    Raises:
        UsageError: The plan does not read its blend in order, or the new blend does not fit the plan.
        MissingFileError, InputError, IntegrityError: See :func:`~tokshard.ranks.discovery.open_sources`.
    """
    stream = plan.streams[TRAIN]
    _refuse_own_order(stream)
    record = plan.reweighting_of(TRAIN)
    seed = options.seed
    if record is not None:
        if options.is_given("seed") and seed != record.seed:
            raise UsageError(f"--seed must be {record.seed}, as in the plan that continues, got {seed}")
        seed = record.seed
    weights, warnings = _read_weights(options.blend or "", stream.source)
    draws_before = _draws(stream, consumed_samples, record)
    keys_before = range(len(draws_before)) if record is None else record.keys
    references: list[DatasetReference] = []
    draws: list[int] = []
    keys: list[int | None] = []
    unused = dict(enumerate(stream.source.datasets))
    for reference, _ in weights:
        number = _match(reference, unused, stream.source)
        references.append(_all_samples(reference if number is None else unused.pop(number)))
        draws.append(0 if number is None else draws_before[number])
        keys.append(None if number is None else keys_before[number])
    references += map(_all_samples, unused.values())
    draws += [draws_before[number] for number in unused]
    keys += [keys_before[number] for number in unused]
    shares = [*(weight for _, weight in weights), *(0.0 for _ in unused)]
    record = Reweighting(tuple(shares), seed, tuple(draws), _filled(keys, is_first=record is None))
    sizes = [reference.samples for reference in references]
    dataset_index, sample_index = draw_samples(record, sizes, samples)
    made_from = {
        "schema": _SCHEMA,
        "plan_id": plan.plan_id,
        "consumed_samples": consumed_samples,
        "samples": samples,
        "reweighting": encode(record),
        "datasets": [encode(replace(reference, path_prefix="")) for reference in references],
    }
    stem = f"{identity_digest(made_from)[:_HASH_DIGITS]}-BlendedDataset-{TRAIN}"
    contents: dict[str, NDArray[Any]] = {
        "dataset_index": dataset_index,
        "dataset_sample_index": sample_index,
    }
    arrays = CachedArrays(
        os.path.join(os.path.abspath(options.output), stem),
        {name: npy_fingerprint(content) for name, content in contents.items()},
    )
    source = SampleSource("blend", TRAIN, samples, tuple(references), arrays)
    return source, OrderFiles(arrays, record, contents), warnings


def draw_samples(
    record: Reweighting, sizes: Sequence[int], samples: int
) -> tuple[NDArray[np.int16], Integers]:
    """Draw from sources by weight, in Megatron's order for these weights. Memory is 10 bytes a sample.

    Args:
        record: Weights, and the draws before the first sample; weights of 0 come last.
        sizes: Samples of the index of each source.
        samples: Number of samples to draw.

    Returns:
        The source of each sample, and its number in the index of the source.

    Raises:
        UsageError: There is nothing to draw, or a source has no samples.
    """
    from tokshard.samples.blend.order import build_blending_indices, normalize

    if samples < 1:
        raise UsageError("no unread samples remain for the new weights")
    weights = [weight for weight in record.weights if weight > 0]
    for number, size in enumerate(sizes):
        if size < 1:
            raise UsageError(f"source {number} of the new blend has no samples")
    sources, numbers = build_blending_indices(normalize(weights), samples)
    for begin in range(0, samples, _BLOCK):
        block = numbers[begin : begin + _BLOCK]
        block_sources = sources[begin : begin + _BLOCK]
        for source in np.unique(block_sources).tolist():
            is_source = block_sources == source
            block[is_source] = _samples_of(block[is_source], source, record, sizes[source])
    return sources, numbers


def source_epochs(source: SampleSource, record: Reweighting) -> NDArray[np.int32]:
    """Return the source epoch of each sample of a re-weighted blend.

    Returns:
        int32 of shape ``(samples,)``.

    Raises:
        UsageError: The source has no arrays.
        MissingFileError, IntegrityError: They do not exist or have changed.
    """
    if source.order is None:
        raise UsageError(f"{source.name} was re-weighted, but its source has no blend")
    locator = Locator(source)
    sizes = np.array([dataset.samples for dataset in source.datasets], dtype=np.int64)
    drawn = np.array(record.draws, dtype=np.int64)
    epochs = np.empty(source.total, dtype=np.int32)
    for begin in range(0, source.total, _BLOCK):
        ids = np.arange(begin, min(begin + _BLOCK, source.total), dtype=np.int64)
        datasets, _ = locator.locate(ids)
        # In the order of the datasets, the draws of each follow each other.
        order = np.argsort(datasets, kind="stable")
        counts = np.bincount(datasets, minlength=sizes.size)
        before = np.cumsum(counts) - counts
        draws = np.arange(ids.size) + np.repeat(drawn - before, counts)
        epochs[ids[order]] = draws // np.repeat(sizes, counts)
        drawn += counts
    return epochs


def _samples_of(numbers: Integers, source: int, record: Reweighting, size: int) -> Integers:
    """Return the samples of draws of one source, numbered from the first sample of the plan."""
    epochs, samples = np.divmod(numbers + record.draws[source], size)
    key_number = np.array([record.keys[source]], dtype=np.int64)
    for epoch in np.unique(epochs[epochs > 0]).tolist():
        key = subkeys(derive_key(Reweighting.ALGORITHM, record.seed, epoch), key_number)
        in_epoch = epochs == epoch
        samples[in_epoch] = Bijection(size).forward(samples[in_epoch], key)
    return samples


def _refuse_own_order(stream: Stream) -> None:
    if stream.mode != "single" or any(epochs.links for epochs in stream.order.epoch_ranges):
        raise UsageError(
            "another blend requires a plan of mode single without shuffle and bucketing: what such a plan "
            "has read is the beginning of its blend",
            hint="build a new blend and a new plan for the samples that follow",
        )


def _draws(stream: Stream, consumed_samples: int, record: Reweighting | None) -> list[int]:
    """Return the draws of each dataset of a stream so far."""
    _, position = stream.order.point(consumed_samples - stream.order.consumed_samples)
    drawn = Locator(stream.source).count(0, min(position, stream.source.total))
    earlier = np.zeros(drawn.size, dtype=np.int64) if record is None else np.array(record.draws)
    draws: list[int] = (drawn + earlier).tolist()
    return draws


def _filled(keys: Sequence[int | None], *, is_first: bool) -> tuple[int, ...]:
    """Return the key of each source: those of the plan stay, new sources get unused ones."""
    if is_first:
        return tuple(range(len(keys)))
    used = {key for key in keys if key is not None}
    free = (number for number in range(2 * len(keys)) if number not in used)
    return tuple(next(free) if key is None else key for key in keys)


def _read_weights(text: str, source: SampleSource) -> tuple[Weights, list[str]]:
    """Read a blend that was built, a recipe, or words such as ``"0.7 data/web 0.3 data/code"``.

    A recipe and words can name only datasets of the plan.
    """
    if names_blend(text):
        return _of_blend(text, source)
    recipe, _ = read_arguments(shlex.split(text))
    mixture = expand_globs(recipe).for_split(TRAIN)
    if mixture is None or not mixture.is_plain or mixture.weights is None:
        raise UsageError(f"new weights must be pairs of weight and dataset, got {text!r}", hint=_BUILD)
    references = {abspath(reference.path_prefix): reference for reference in source.datasets}
    weights = []
    for mixture_source, weight in zip(mixture.sources, mixture.weights, strict=True):
        reference = references.get(abspath(mixture_source.prefix))
        if reference is None:
            raise UsageError(
                f"the plan does not read {mixture_source.prefix}, and a new source requires an index",
                hint=_BUILD,
            )
        weights.append((reference, weight))
    return weights, []


def _of_blend(path: str, source: SampleSource) -> tuple[Weights, list[str]]:
    split = BlendDocument.read(path).splits.get(TRAIN)
    if split is None:
        raise UsageError(f"the blend {path} has no {TRAIN} split to continue with")
    blended = open_sources([path], RequestedSamples(split=TRAIN))[TRAIN]
    weights = [
        (reference, share)
        for reference, share in zip(blended.datasets, split.shares, strict=True)
        if share > 0
    ]
    warnings = [
        f"{reference.path_prefix} has changed since the earlier plan read it, and is read from its start"
        for reference, _ in weights
        if any(
            reference.path_prefix == old.path_prefix and not _same_data(reference, old)
            for old in source.datasets
        )
    ]
    return weights, warnings


def _match(
    reference: DatasetReference, unused: dict[int, DatasetReference], source: SampleSource
) -> int | None:
    """Return the number of the dataset in the plan, or None if the plan has not read it.

    Raises:
        UsageError: It occurs twice in the new blend and once in the plan, or is packed otherwise.
    """
    numbers = [number for number, old in unused.items() if _same_data(reference, old)]
    if not numbers:
        if any(_same_data(reference, old) for old in source.datasets):
            raise UsageError(
                f"{reference.path_prefix} is in the new blend more often than in the plan",
                hint="pass its total weight for one source",
            )
        return None
    # Of several references to the same data, the one with the same index wins, then the same path.
    number = min(
        numbers,
        key=lambda number: (
            _index_name(unused[number]) != _index_name(reference),
            unused[number].path_prefix != reference.path_prefix,
        ),
    )
    packing = unused[number].packing
    if reference.packing != packing:
        words = ["--pack", "concat"] if packing is None else packing.options()
        raise UsageError(
            f"the new blend reads {reference.path_prefix} with --pack {pack_words([reference.packing])}, but "
            f"a source keeps the index that the plan has read: --pack {pack_words([packing])}",
            hint=f"build the blend with {' '.join(words)}",
        )
    return number


def _same_data(reference: DatasetReference, other: DatasetReference) -> bool:
    return (reference.bin, reference.idx) == (other.bin, other.idx)


def _index_name(reference: DatasetReference) -> tuple[str | None, Packing | None]:
    return None if reference.index is None else reference.index.stem, reference.packing


def _all_samples(reference: DatasetReference) -> DatasetReference:
    """Return the reference with the samples that the plan does not draw."""
    if reference.epochs is None:
        raise UsageError(f"cannot weight {reference.path_prefix}: its samples are documents")
    return replace(reference, samples=reference.epochs.samples)
