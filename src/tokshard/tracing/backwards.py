"""Backwards: from lines and documents to every sample, step and rank that reads them.

Everything goes through the indexes: a document's sequences are looked for in the document index, their
places lead to rows of the sample index, these to samples by way of the shuffle index, samples to ids of the
blend, and ids by formulas to steps and ranks. Each array is looked through once for all documents
together, block by block; tokens are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.sharding.sources import DatasetReference, SampleSource
from tokshard.storage.paths import idx_path
from tokshard.tracing.course import Stage, visits
from tokshard.tracing.items import Item
from tokshard.tracing.pieces import Pieces, pieces_with
from tokshard.tracing.report import (
    FOUND,
    NOT_FOUND,
    READ,
    REJECTED,
    UNREAD,
    DocumentReadings,
    ItemTrace,
    Reading,
    ReadingsReport,
)
from tokshard.tracing.resolution import Resolved, Resolver, Target
from tokshard.tracing.scanning import find_in_blocks, pairs, spread
from tokshard.tracing.sequences import SequenceTable
from tokshard.tracing.subject import Course, Subject, of_one_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

TRAIN = "train"


@of_one_state
def trace_items(
    subject: Subject,
    items: Sequence[Item],
    *,
    streams: Sequence[str] | None = None,
    consumed_samples: int | None = None,
) -> ReadingsReport:
    """Return everything that reads some lines or documents.

    Memory grows with what is asked for and found, not with the data. The time is that of one pass over the
    indexes of the datasets that hold the documents, and over the order of the blend: about 2 ns an entry.

    Args:
        subject: What may read them.
        items: The lines and documents.
        streams: The streams to look through; None for all.
        consumed_samples: Tell what was seen when all ranks had consumed so many samples of training, or of
            the one stream that is named. Without a plan, samples are taken to be consumed in their order.

    Raises:
        UsageError: There is no such stream.
        InputError: A dataset was changed meanwhile.
        MissingFileError: A file of a dataset or of an index is not there.
        IntegrityError: An index does not fit its dataset, or something has changed since the plan was made.
    """
    names = tuple(subject.courses if streams is None else dict.fromkeys(streams))
    courses = [subject.course(name) for name in names]
    resolver = Resolver(subject.datasets)
    resolved = [resolver.resolve(item) for item in items]
    targets = sorted({target for one in resolved for target in one.targets})
    found: dict[Target, list[Reading]] = {target: [] for target in targets}
    counted = names[0] if streams is not None and len(names) == 1 else TRAIN
    for course in courses:
        limit = consumed_samples if course.name == counted else None
        for target, reading in _readings(course, targets, resolver, limit):
            found[target].append(reading)
    tokens = resolver.tokens_of(targets)
    documents = {
        target: DocumentReadings(*target, tokens[target], tuple(found[target])) for target in targets
    }
    read_by = {one.data_parallel_rank for readings in found.values() for one in readings}
    return ReadingsReport(
        kind=subject.kind,
        path=subject.path,
        streams=names,
        plan_id=None if subject.plan is None else subject.plan.plan_id,
        consumed_samples=consumed_samples,
        ranks={rank: subject.ranks_of(rank) for rank in sorted(one for one in read_by if one is not None)},
        notes=subject.notes,
        items=tuple(
            _item_trace(one, documents, through=bool(names), asked=consumed_samples is not None)
            for one in resolved
        ),
    )


def _item_trace(
    resolved: Resolved, documents: Mapping[Target, DocumentReadings], *, through: bool, asked: bool
) -> ItemTrace:
    if resolved.problem is not None:
        status = REJECTED if resolved.rejected else NOT_FOUND
        return ItemTrace(resolved.item.text, status, resolved.problem, None, ())
    mine = tuple(documents[target] for target in resolved.targets)
    if not through:
        return ItemTrace(resolved.item.text, FOUND, None, None, mine)
    readings = [reading for one in mine for reading in one.readings]
    problem = None
    if not any(one.tokens for one in mine):
        problem = "the document has no tokens"
    elif not readings:
        problem = "nothing reads the document"
    seen = any(reading.seen for reading in readings) if asked else None
    return ItemTrace(resolved.item.text, READ if readings else UNREAD, problem, seen, mine)


@dataclass(frozen=True, slots=True, eq=False)
class _Hits:
    """Parts of documents in samples of datasets: int64 arrays of one shape."""

    target: Integers
    dataset: Integers
    sample: Integers
    sequence: Integers
    first: Integers
    stop: Integers

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return all hits of some parts, of which there may be none."""
        empty = np.empty(0, np.int64)
        names = cls.__slots__
        return cls(*(np.concatenate([empty, *(getattr(one, name) for one in parts)]) for name in names))


def _readings(
    course: Course, targets: list[Target], resolver: Resolver, limit: int | None
) -> Iterator[tuple[Target, Reading]]:
    """Yield everything in a stream that reads the targets, in the order of time."""
    hits = _hits(course.source, targets, resolver)
    which, ids = _ids_of(course.source, hits)
    if not course.stages:
        for place in np.lexsort((hits.first[which], ids)).tolist():
            seen = None if limit is None else bool(ids[place] < limit)
            yield _reading(course.name, targets, hits, int(which[place]), int(ids[place]), {"seen": seen})
        return
    numbers, place_of = np.unique(ids, return_inverse=True)
    found = visits(course.stages, numbers, course.key_of)
    places, times = pairs(place_of, found.which, numbers.size)
    order = np.lexsort(
        (
            hits.first[which[places]],
            found.slot[times],
            found.rank[times],
            found.step[times],
            found.stage[times],
        )
    )
    columns = np.stack(
        [
            found.stage,
            found.epoch,
            found.step,
            found.rank,
            found.slot,
            found.again.astype(np.int64),
            found.consumed,
        ]
    )
    for place, time in zip(places[order].tolist(), times[order].tolist(), strict=True):
        details = _details(course.stages, columns[:, time].tolist(), limit)
        yield _reading(course.name, targets, hits, int(which[place]), int(ids[place]), details)


def _details(stages: tuple[Stage, ...], visit: list[int], limit: int | None) -> dict[str, Any]:
    stage, epoch, step, rank, slot, again, consumed = visit
    return {
        "plan_id": stages[stage].plan_id,
        "epoch": epoch,
        "step": step,
        "data_parallel_rank": rank,
        "slot": slot,
        "micro_batch": slot // stages[stage].assignment.micro_batch_size,
        "again": bool(again),
        "seen": None if limit is None else consumed <= limit,
    }


def _reading(
    stream: str, targets: list[Target], hits: _Hits, hit: int, sample: int, details: dict[str, Any]
) -> tuple[Target, Reading]:
    reading = Reading(
        stream=stream,
        sample=sample,
        dataset_sample=int(hits.sample[hit]),
        sequence=int(hits.sequence[hit]),
        first_token=int(hits.first[hit]),
        stop_token=int(hits.stop[hit]),
        **details,
    )
    return targets[int(hits.target[hit])], reading


def _hits(source: SampleSource, targets: list[Target], resolver: Resolver) -> _Hits:
    """Return what the samples of the datasets have of the targets."""
    by_prefix: dict[str, list[int]] = {}
    for number, (prefix, _) in enumerate(targets):
        by_prefix.setdefault(prefix, []).append(number)
    parts = []
    for number, reference in enumerate(source.datasets):
        mine = np.array(by_prefix.get(reference.prefix, ()), np.int64)
        if mine.size:
            reference.idx.check(idx_path(reference.prefix))
            documents = np.array([targets[one][1] for one in mine.tolist()], np.int64)
            table = resolver.table(reference.prefix)
            owner, pieces = _pieces(reference, table, documents)
            shift = table.places(pieces.sequences, documents[owner])
            parts.append(
                _Hits(
                    target=mine[owner],
                    dataset=np.full(owner.shape, number, np.int64),
                    sample=pieces.samples,
                    sequence=pieces.sequences,
                    first=pieces.firsts + shift,
                    stop=pieces.stops + shift,
                )
            )
    return _Hits.joined(parts)


def _pieces(
    reference: DatasetReference, table: SequenceTable, documents: Integers
) -> tuple[Integers, Pieces]:
    """Return for each piece of the documents in samples which of them it is of, and the piece."""
    firsts, stops = table.sequences_of(documents)
    # Ascending and each once, because the documents are.
    owners, sequences = spread(firsts, stops - firsts)
    if reference.index is not None:
        found = pieces_with(reference.open_index(), table, sequences)
    else:
        lengths = table.lengths(sequences)
        some = lengths > 0
        whole = (documents[owners[some]], sequences[some], np.zeros_like(lengths[some]), lengths[some])
        found = Pieces(*whole)
    return owners[np.searchsorted(sequences, found.sequences)], found


def _ids_of(source: SampleSource, hits: _Hits) -> tuple[Integers, Integers]:
    """Return for each time that a hit's sample is one of the source: the hit, and the id of the sample."""
    if source.order is None:
        references = source.datasets
        within = hits.sample - np.array([one.first for one in references], np.int64)[hits.dataset]
        counts = np.array([one.samples for one in references], np.int64)[hits.dataset]
        here = np.flatnonzero((within >= 0) & (within < counts))
        return here, (source.bounds[hits.dataset] + within)[here]
    arrays = source.order.open()
    numbers, samples = arrays["dataset_index"], arrays["dataset_sample_index"]
    if numbers.shape != (source.total,) or samples.shape != (source.total,):
        path = source.order.path("dataset_index")
        raise IntegrityError(f"{path}: the arrays of the blend do not hold {source.total} samples", path=path)
    count = len(source.datasets)
    keys, key_of = np.unique(hits.sample * count + hits.dataset, return_inverse=True)

    def block_of(first: int, stop: int) -> Integers:
        block: Integers = samples[first:stop] * count + numbers[first:stop]
        return block

    ids, which = find_in_blocks(source.total, block_of, keys)
    found, times = pairs(key_of, which, keys.size)
    return found, ids[times]
