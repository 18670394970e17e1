"""The files of a blend that was weighted anew: written into the plan's directory, read, and checked again.

Beside Megatron's two arrays of a blend there are two of our own, under names of the same form,
``{hash}-BlendedDataset-{split}-{array}.npy``::

    dataset_index         int16 (samples,)   the source of each sample
    dataset_sample_index  int64 (samples,)   its number in the index of the source
    unread                int64 (k, 4)       source, lap, first and one past the last: unread at the start
    laps                  int64 (k, 3)       source, lap, and the first sample of the plan in it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.npy import map_npy, write_npy
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.publication import LOCK_NAME
from tokshard.sharding.replan.counting import blocks_of
from tokshard.sharding.replan.history import Reweighting, StoppedStream, reweighting_of
from tokshard.sharding.replan.laps import LapTable, Standing
from tokshard.sharding.replan.proof import SourceCount, StreamProof
from tokshard.sharding.replan.reweighting import Mixture, by_source
from tokshard.sharding.replan.standing import (
    index_samples,
    standing_rows,
    standings_after,
    standings_of_rows,
)
from tokshard.sharding.sources import CachedFiles, FileStamp, SampleSource
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.files import is_temporary
from tokshard.storage.lock import WriterLock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.plan import Stream

SCHEMA = "tokshard.reweighted/1"
_HASH_DIGITS = 32


def write_mixture(
    mixture: Mixture,
    standings: Sequence[Standing],
    weights: Sequence[float],
    seed: int,
    *,
    directory: str,
    stream: str,
    made_from: Any,
) -> tuple[CachedFiles, Reweighting]:
    """Write the files of a blend that was weighted anew; each appears whole or not at all.

    What a killed run for the same files has left is removed.

    Args:
        mixture: The samples.
        standings: Where the sources stood before them.
        weights: The weights.
        seed: The seed of new laps.
        directory: Where they go.
        stream: The name of the stream.
        made_from: A JSON value that identifies what the files follow from; it makes their names.

    Raises:
        LockedError: Another process is writing a plan there.
        StorageError: The disk is full or broken.
    """
    identity = {"schema": SCHEMA, "from": made_from, "weights": list(weights), "seed": seed}
    name = identity_digest(identity)[:_HASH_DIGITS]
    split = stream.partition(".")[0]
    files = CachedFiles(directory, name, split, "BlendedDataset", {})
    arrays: dict[str, NDArray[Any]] = {
        "dataset_index": mixture.dataset_index,
        "dataset_sample_index": mixture.dataset_sample_index,
        "unread": standing_rows(standings),
        "laps": mixture.laps.rows,
    }
    stamps = {}
    with WriterLock(os.path.join(directory, LOCK_NAME)):
        for left in os.listdir(directory):
            if left.startswith(f".{name}-") and is_temporary(left):
                syscalls.unlink(os.path.join(directory, left))
        for array_name, array in arrays.items():
            write_npy(files.path(array_name), array)
            stamps[array_name] = FileStamp.of(files.path(array_name))
    record = Reweighting(
        weights=tuple(weights),
        seed=seed,
        next_laps=tuple(one.next_lap for one in standings),
        unread=stamps.pop("unread"),
        laps=stamps.pop("laps"),
    )
    return CachedFiles(directory, name, split, "BlendedDataset", stamps), record


def open_start(source: SampleSource, record: Reweighting) -> tuple[tuple[Standing, ...], LapTable]:
    """Return where the sources of a blend stood before its first sample, and the laps of its samples.

    Raises:
        MissingFileError: A file is not there.
        IntegrityError: A file has changed, or holds what cannot be.
    """
    rows = {}
    for name, stamp in (("unread", record.unread), ("laps", record.laps)):
        stamp.check(path_of(source, name))
        rows[name] = np.asarray(map_npy(path_of(source, name)))
    standings = standings_of_rows(
        rows["unread"], index_samples(source), record.next_laps, path_of(source, "unread")
    )
    return standings, LapTable.checked(rows["laps"], source.total, path_of(source, "laps"))


def path_of(source: SampleSource, name: str) -> str:
    """Return the path of one of the files."""
    files = source.order or CachedFiles("", "", SPLITS[0], "BlendedDataset", {})
    return files.path(name)


def count_draws(locator: Locator, standings: Sequence[Standing], table: LapTable) -> StreamProof:
    """Count what a blend draws of the unread samples of each source, and of new laps."""
    next_laps = np.array([one.next_lap for one in standings], dtype=np.int64)
    planned, later = np.zeros_like(next_laps), np.zeros_like(next_laps)
    for ids in blocks_of(Intervals.of([(0, locator.source.total)])):
        datasets, _ = locator.locate(ids)
        is_open = table.of(ids, datasets) < next_laps[datasets]
        planned += np.bincount(datasets[is_open], minlength=planned.size)
        later += np.bincount(datasets[~is_open], minlength=later.size)
    counts = []
    for number, one in enumerate(standings):
        samples, unread = one.samples * len(one.laps), one.supply
        drawn = int(planned[number])
        counts.append(
            SourceCount(samples, 0, samples - unread, drawn, unread - drawn, later=int(later[number]))
        )
    return StreamProof(None, tuple(counts))


def recheck_draws(
    stream: Stream,
    stop: StoppedStream,
    earlier: Sequence[StoppedStream],
    parent: Stream | None,
) -> Iterator[tuple[str, str]]:
    """Check a blend that was weighted anew: no draw was read before, and none comes twice in a lap.

    Args:
        stream: The stream.
        stop: Where the one before it was stopped.
        earlier: The stops before that one.
        parent: The stream before it, if it is at hand.

    Yields:
        Pairs of a code and a sentence.
    """
    record = stop.reweighting
    if record is None:
        return
    locator = Locator(stream.source)
    standings, table = open_start(stream.source, record)
    if stream.assignment.samples_per_rank * stream.assignment.ranks != stream.source.total:
        yield "wrong-count", "the steps do not read every sample of the blend once"
    yield from _repeated(locator, standings, table)
    proof = count_draws(locator, standings, table)
    if proof != stop.proof or not all(one.adds_up and one.left >= 0 for one in proof.sources):
        yield "wrong-count", f"the proof says {stop.proof.total}, but counted are {proof.total}"
    if parent is not None:
        known = standings_of(parent, stop.step, tuple(earlier))
        if not _are_among(known, parent, standings, stream):
            yield "wrong-standing", "the unread samples are not those that the plan before it has left"


def standings_of(stream: Stream, step: int, stops: tuple[StoppedStream, ...]) -> tuple[Standing, ...]:
    """Return where the datasets of a stream stand after some of its steps.

    Args:
        stream: The stream.
        step: How many steps were taken.
        stops: Where it was stopped before.
    """
    record = reweighting_of(stops)
    start = None if record is None else open_start(stream.source, record)
    key_of = None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)
    return standings_after(stream.assignment, step, Locator(stream.source), start, key_of)


def _repeated(locator: Locator, standings: Sequence[Standing], table: LapTable) -> Iterator[tuple[str, str]]:
    """Find the first draw that was read before, in its lap."""
    complete: list[set[int]] = [set() for _ in standings]
    unread: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for number, standing in enumerate(standings):
        for one in standing.laps:
            marks = unread[number, one.lap] = np.zeros(standing.samples, dtype=np.bool_)
            for block in blocks_of(one.unread):
                marks[block] = True
    for ids in blocks_of(Intervals.of([(0, locator.source.total)])):
        datasets, samples = locator.locate(ids)
        laps = table.of(ids, datasets)
        for number, places in by_source(datasets):
            for lap in np.unique(laps[places]).tolist():
                here = places[laps[places] == lap]
                marks = unread.setdefault((number, lap), np.ones(standings[number].samples, dtype=np.bool_))
                drawn = samples[here]
                if lap in complete[number] or not marks[drawn].all() or np.unique(drawn).size != drawn.size:
                    yield "read-twice", f"a sample of dataset {number} is read twice in lap {lap}"
                    return
                marks[drawn] = False
                if not marks.any():
                    # Laps come one after the other, so that it is enough to remember the last one.
                    complete[number] = {lap}
                    del unread[number, lap]


def _are_among(
    known: Sequence[Standing], parent: Stream, standings: Sequence[Standing], stream: Stream
) -> bool:
    """Tell whether every source that the parent had stands where the parent has left it."""
    by_index: dict[Any, list[Standing]] = {}
    for reference, standing in zip(parent.source.datasets, known, strict=True):
        by_index.setdefault(_key(reference), []).append(standing)
    for reference, standing in zip(stream.source.datasets, standings, strict=True):
        candidates = by_index.get(_key(reference))
        if candidates and candidates.pop(0) == standing:
            continue
        if candidates is not None or standing != Standing.untouched(standing.samples):
            return False
    return True


def _key(reference: Any) -> tuple[Any, ...]:
    files = None if reference.index is None else (reference.index.files.hash, reference.index.files.split)
    return (reference.bin, reference.idx, files)
